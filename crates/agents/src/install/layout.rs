//! Which files of a package are needed, and where they go.

use super::platform::{Libc, Platform};
use crate::agent::AgentId;

/// A file that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its name in the archive.
    pub(super) name: String,
    /// Its place in the install.
    pub(super) place: &'static str,
    /// Whether the agent is none without it.
    pub(super) is_needed: bool,
}

/// What Codex consists of. The host of its code mode has to be beside it; the rest is found by the description. The voice
/// that it comes with is left out: nobody speaks to a server.
const CODEX: [(&str, bool); 5] = [
    ("bin/codex", true),
    ("bin/codex-code-mode-host", false),
    ("codex-package.json", false),
    ("codex-path/rg", false),
    ("codex-resources/bwrap", false),
];

/// Where the program of an agent is in its install.
pub(super) fn program(agent: AgentId) -> &'static str {
    match agent {
        AgentId::Claude => "claude",
        AgentId::Codex => "bin/codex",
        AgentId::Mock => "",
    }
}

/// What is taken of the package of an agent.
pub(super) fn files(agent: AgentId, platform: Platform) -> Vec<Wanted> {
    match agent {
        AgentId::Claude => {
            vec![Wanted { name: "package/claude".to_owned(), place: "claude", is_needed: true }]
        }
        AgentId::Codex => {
            let wanted = |(place, is_needed): (&'static str, bool)| Wanted {
                name: format!("package/vendor/{}/{place}", platform.triple()),
                place,
                is_needed,
            };
            CODEX.into_iter().map(wanted).collect()
        }
        AgentId::Mock => Vec::new(),
    }
}

/// Whether an install for a platform, by its name, runs on another one. Codex brings its library with it.
pub(super) fn runs(agent: AgentId, platform: Platform, recorded: &str) -> bool {
    match agent {
        AgentId::Codex => recorded.trim_end_matches("-musl") == platform.name(),
        AgentId::Claude | AgentId::Mock => recorded == platform.to_string(),
    }
}

/// The package of an agent on a platform, and its version in the registry.
pub(super) fn package(agent: AgentId, platform: Platform, version: &str) -> (String, String) {
    match agent {
        AgentId::Claude => {
            let musl = if platform.libc == Libc::Musl { "-musl" } else { "" };
            (format!("@anthropic-ai/claude-code-{}{musl}", platform.name()), version.to_owned())
        }
        // A build for a platform is a version of the one package.
        AgentId::Codex => ("@openai/codex".to_owned(), format!("{version}-{}", platform.name())),
        AgentId::Mock => (agent.to_string(), version.to_owned()),
    }
}
