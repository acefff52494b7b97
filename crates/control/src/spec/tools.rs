//! Tools by name: what of the operator's home each of them needs, and where.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use carrel_store::Pairs;

use super::source::{self, Caller, Kinds, Last, Unusable};
use super::units::shown;
use super::{Host, Mount};
use crate::Refusal;

/// Where a tool's thing is on the host.
enum Of {
    /// Below the operator's home.
    Home(&'static str),
    /// The SSH agent.
    SshAgent,
    /// The sound server.
    PulseAudio,
}

/// Where it is inside.
enum At {
    /// Below the home of the user inside, at the same place.
    Home,
    /// At the same path as on the host, which what is in there depends on.
    Same,
    /// There.
    Path(&'static str),
}

struct Thing {
    of: Of,
    at: At,
    writable: bool,
    required: bool,
    /// A variable that says where it is, and what stands before the path there.
    env: Option<(&'static str, &'static str)>,
}

/// The tools, and what each of them needs.
const TOOLS: &[(&str, &[Thing])] = &[
    ("claude", &[required(".claude"), required(".claude.json"), PULSE_AUDIO]),
    ("codex", &[required(".codex"), optional(".agents")]),
    ("git", &[SSH_AGENT, Thing { writable: false, ..optional(".config/gh") }, optional(".ssh/known_hosts")]),
    ("uv", &[optional(".cache/uv"), PYTHONS]),
    ("npm", &[optional(".npm")]),
    ("apt", &[Thing { at: At::Path("/var/cache/apt/archives"), ..optional(".cache/agents-sandbox-apt") }]),
    ("opencode", &[optional(".config/opencode"), optional(".local/share/opencode")]),
];

const SSH_AGENT: Thing = Thing {
    of: Of::SshAgent,
    at: At::Path("/ssh-agent"),
    writable: true,
    required: false,
    env: Some(("SSH_AUTH_SOCK", "")),
};
const PULSE_AUDIO: Thing = Thing {
    of: Of::PulseAudio,
    at: At::Path("/pulse-audio"),
    writable: true,
    required: false,
    env: Some(("PULSE_SERVER", "unix:")),
};
const PYTHONS: Thing =
    Thing { at: At::Same, env: Some(("UV_PYTHON_INSTALL_DIR", "")), ..optional(".local/share/uv/python") };

const fn optional(path: &'static str) -> Thing {
    Thing { of: Of::Home(path), at: At::Home, writable: true, required: false, env: None }
}

const fn required(path: &'static str) -> Thing {
    Thing { required: true, ..optional(path) }
}

/// Adds what tools need. What the caller put at the same place itself stays, and so does what the caller's environment
/// says.
pub(super) fn add(
    names: &[String],
    caller: Caller<'_>,
    taken: BTreeSet<String>,
    mounts: &mut Vec<Mount>,
    envs: &mut Pairs,
) -> Result<(), Refusal> {
    let mut adding = Adding { caller, taken, mounts, envs };
    for (index, name) in names.iter().enumerate() {
        let field = format!("builtin_tools[{index}]");
        if name.is_empty() {
            return Err(Refusal::invalid(&field, "is empty"));
        }
        let Some((_, things)) = TOOLS.iter().find(|(tool, _)| tool == name) else {
            let tools: Vec<_> = TOOLS.iter().map(|(tool, _)| *tool).collect();
            let message = format!("{} is no tool: there are {}", shown(name), tools.join(", "));
            return Err(Refusal::invalid(&field, message));
        };
        if names.iter().take(index).any(|earlier| earlier == name) {
            return Err(Refusal::invalid(&field, format!("{name:?} is there twice")));
        }
        for thing in *things {
            adding.add(&field, name, thing)?;
        }
    }
    Ok(())
}

struct Adding<'a> {
    caller: Caller<'a>,
    taken: BTreeSet<String>,
    mounts: &'a mut Vec<Mount>,
    envs: &'a mut Pairs,
}

// === impl Adding ===

impl Adding<'_> {
    fn add(&mut self, field: &str, tool: &str, thing: &Thing) -> Result<(), Refusal> {
        let place = thing.path(self.caller.host).and_then(|path| Some((thing.target(&path)?, path)));
        let Some((target, path)) = place else {
            let missing = Err(Refusal::invalid(field, "needs a home, and there is none"));
            return if thing.required { missing } else { Ok(()) };
        };
        if !self.taken.contains(&target) {
            match source::look(&path, Kinds::TreeOrSocket, Last::Followed, self.caller) {
                // What is written in the name of its owner is not a stranger's to write.
                Ok(_) if thing.writable && !self.caller.trusted => {
                    return Err(Unusable::Forbidden.refusal(field, tool));
                }
                Ok(source) => self.mounts.push(Mount { source, target: target.clone(), writable: thing.writable }),
                Err(Unusable::Missing) if !thing.required => return Ok(()),
                // Where the operator keeps it is not for this caller either.
                Err(Unusable::Forbidden) => return Err(Unusable::Forbidden.refusal(field, tool)),
                Err(unusable) => return Err(unusable.refusal(field, &path.to_string_lossy())),
            }
            self.taken.insert(target.clone());
        }
        if let Some((name, before)) = thing.env {
            self.envs.entry(name.to_owned()).or_insert_with(|| format!("{before}{target}"));
        }
        Ok(())
    }
}

// === impl Thing ===

impl Thing {
    fn path(&self, host: &Host) -> Option<PathBuf> {
        match self.of {
            Of::Home(path) => host.home.is_absolute().then(|| host.home.join(path)),
            Of::SshAgent => host.ssh_agent.clone(),
            Of::PulseAudio => host.pulse_audio.clone(),
        }
    }

    fn target(&self, path: &Path) -> Option<String> {
        match (&self.at, &self.of) {
            (At::Path(path), _) => Some((*path).to_owned()),
            (At::Home, Of::Home(path)) => Some(format!("/home/agbox/{path}")),
            (At::Home | At::Same, _) => path.to_str().map(str::to_owned),
        }
    }
}
