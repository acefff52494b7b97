//! The built-in tools, with the paths of the operator's home that each of them mounts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use carrel_store::Pairs;

use super::source::{self, HostAccess, LinkPolicy, SourceKind, SourcePathError};
use super::units::quoted;
use super::{Host, Mount};
use crate::Refusal;

/// Where a path of a tool is on the host.
enum ToolSource {
    /// Below the operator's home.
    Home(&'static str),
    SshAgent,
    /// The sound server.
    PulseAudio,
}

/// Where a path of a tool is in the sandbox.
enum ToolTarget {
    /// At the same path below the home of the sandbox's user.
    Home,
    /// At the same path as on the host, on which its contents depend.
    Same,
    Path(&'static str),
}

struct ToolMount {
    source: ToolSource,
    target: ToolTarget,
    writable: bool,
    required: bool,
    /// The variable with its path, and the prefix of the value.
    env: Option<(&'static str, &'static str)>,
}

const TOOLS: &[(&str, &[ToolMount])] = &[
    ("claude", &[required(".claude"), required(".claude.json"), PULSE_AUDIO]),
    ("codex", &[required(".codex"), optional(".agents")]),
    ("git", &[SSH_AGENT, ToolMount { writable: false, ..optional(".config/gh") }, optional(".ssh/known_hosts")]),
    ("uv", &[optional(".cache/uv"), PYTHONS]),
    ("npm", &[optional(".npm")]),
    (
        "apt",
        &[ToolMount { target: ToolTarget::Path("/var/cache/apt/archives"), ..optional(".cache/agents-sandbox-apt") }],
    ),
    ("opencode", &[optional(".config/opencode"), optional(".local/share/opencode")]),
];

const SSH_AGENT: ToolMount = ToolMount {
    source: ToolSource::SshAgent,
    target: ToolTarget::Path("/ssh-agent"),
    writable: true,
    required: false,
    env: Some(("SSH_AUTH_SOCK", "")),
};
const PULSE_AUDIO: ToolMount = ToolMount {
    source: ToolSource::PulseAudio,
    target: ToolTarget::Path("/pulse-audio"),
    writable: true,
    required: false,
    env: Some(("PULSE_SERVER", "unix:")),
};
const PYTHONS: ToolMount = ToolMount {
    target: ToolTarget::Same,
    env: Some(("UV_PYTHON_INSTALL_DIR", "")),
    ..optional(".local/share/uv/python")
};

const fn optional(path: &'static str) -> ToolMount {
    ToolMount { source: ToolSource::Home(path), target: ToolTarget::Home, writable: true, required: false, env: None }
}

const fn required(path: &'static str) -> ToolMount {
    ToolMount { required: true, ..optional(path) }
}

/// Adds the mounts and variables of tools. The caller's own mounts and variables take precedence.
pub(super) fn add(
    names: &[String],
    caller: HostAccess<'_>,
    targets: BTreeSet<String>,
    mounts: &mut Vec<Mount>,
    envs: &mut Pairs,
) -> Result<(), Refusal> {
    let mut tools = ToolMounts { caller, targets, mounts, envs };
    for (index, name) in names.iter().enumerate() {
        let field = format!("builtin_tools[{index}]");
        if name.is_empty() {
            return Err(Refusal::invalid(&field, "is empty"));
        }
        let Some((_, mounts)) = TOOLS.iter().find(|(tool, _)| tool == name) else {
            let tools: Vec<_> = TOOLS.iter().map(|(tool, _)| *tool).collect();
            let message = format!("{} is not a tool; the tools are {}", quoted(name), tools.join(", "));
            return Err(Refusal::invalid(&field, message));
        };
        if names.iter().take(index).any(|earlier| earlier == name) {
            return Err(Refusal::invalid(&field, format!("{name:?} is used twice")));
        }
        for mount in *mounts {
            tools.add(&field, name, mount)?;
        }
    }
    Ok(())
}

struct ToolMounts<'a> {
    caller: HostAccess<'a>,
    targets: BTreeSet<String>,
    mounts: &'a mut Vec<Mount>,
    envs: &'a mut Pairs,
}

// === impl ToolMounts ===

impl ToolMounts<'_> {
    fn add(&mut self, field: &str, tool: &str, mount: &ToolMount) -> Result<(), Refusal> {
        let paths = mount.path(self.caller.host).and_then(|path| Some((mount.target(&path)?, path)));
        let Some((target, path)) = paths else {
            let missing = Err(Refusal::invalid(field, "needs a home directory, and none is configured"));
            return if mount.required { missing } else { Ok(()) };
        };
        if !self.targets.contains(&target) {
            match source::resolve(&path, SourceKind::TreeOrSocket, LinkPolicy::Follow, self.caller) {
                // A writable mount writes with the rights of the owner, so untrusted callers do not get one.
                Ok(_) if mount.writable && !self.caller.trusted => {
                    return Err(SourcePathError::Forbidden.refusal(field, tool));
                }
                Ok(source) => self.mounts.push(Mount { source, target: target.clone(), writable: mount.writable }),
                Err(SourcePathError::Missing) if !mount.required => return Ok(()),
                // The caller must not learn where the operator keeps it.
                Err(SourcePathError::Forbidden) => return Err(SourcePathError::Forbidden.refusal(field, tool)),
                Err(error) => return Err(error.refusal(field, &path.to_string_lossy())),
            }
            self.targets.insert(target.clone());
        }
        if let Some((name, before)) = mount.env {
            self.envs.entry(name.to_owned()).or_insert_with(|| format!("{before}{target}"));
        }
        Ok(())
    }
}

// === impl ToolMount ===

impl ToolMount {
    fn path(&self, host: &Host) -> Option<PathBuf> {
        match self.source {
            ToolSource::Home(path) => host.home.is_absolute().then(|| host.home.join(path)),
            ToolSource::SshAgent => host.ssh_agent.clone(),
            ToolSource::PulseAudio => host.pulse_audio.clone(),
        }
    }

    fn target(&self, path: &Path) -> Option<String> {
        match (&self.target, &self.source) {
            (ToolTarget::Path(path), _) => Some((*path).to_owned()),
            (ToolTarget::Home, ToolSource::Home(path)) => Some(format!("/home/agbox/{path}")),
            (ToolTarget::Home | ToolTarget::Same, _) => path.to_str().map(str::to_owned),
        }
    }
}
