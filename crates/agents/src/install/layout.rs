//! The files of a package that are installed, and their paths.

use super::platform::{AgentPlatform, Libc};
use crate::agent::AgentId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackageFile {
    /// Path in the archive.
    pub(super) name: String,
    pub(super) path_in_install: &'static str,
    /// Whether the package is invalid without it.
    pub(super) is_needed: bool,
}

/// The files of Codex. The code mode host has to be beside the program; the others are found by the package
/// description. The voice component is not needed on a server.
const CODEX: [(&str, bool); 5] = [
    ("bin/codex", true),
    ("bin/codex-code-mode-host", false),
    ("codex-package.json", false),
    ("codex-path/rg", false),
    ("codex-resources/bwrap", false),
];

/// Path of an agent's program in its install.
pub(super) fn program(agent: AgentId) -> &'static str {
    match agent {
        AgentId::Claude => "claude",
        AgentId::Codex => "bin/codex",
        AgentId::Mock => "",
    }
}

/// The files of an agent's package.
pub(super) fn files(agent: AgentId, platform: AgentPlatform) -> Vec<PackageFile> {
    match agent {
        AgentId::Claude => {
            vec![PackageFile { name: "package/claude".to_owned(), path_in_install: "claude", is_needed: true }]
        }
        AgentId::Codex => {
            let wanted = |(path_in_install, is_needed): (&'static str, bool)| PackageFile {
                name: format!("package/vendor/{}/{path_in_install}", platform.triple()),
                path_in_install,
                is_needed,
            };
            CODEX.into_iter().map(wanted).collect()
        }
        AgentId::Mock => Vec::new(),
    }
}

/// Whether an install for the recorded platform runs on this one. Codex is statically linked.
pub(super) fn runs(agent: AgentId, platform: AgentPlatform, recorded: &str) -> bool {
    match agent {
        AgentId::Codex => recorded.trim_end_matches("-musl") == platform.name(),
        AgentId::Claude | AgentId::Mock => recorded == platform.to_string(),
    }
}

/// The package of an agent for a platform, and its version in the registry.
pub(super) fn package(agent: AgentId, platform: AgentPlatform, version: &str) -> (String, String) {
    match agent {
        AgentId::Claude => {
            let musl = if platform.libc == Libc::Musl { "-musl" } else { "" };
            (format!("@anthropic-ai/claude-code-{}{musl}", platform.name()), version.to_owned())
        }
        // Codex publishes each platform as a version of one package.
        AgentId::Codex => ("@openai/codex".to_owned(), format!("{version}-{}", platform.name())),
        AgentId::Mock => (agent.to_string(), version.to_owned()),
    }
}
