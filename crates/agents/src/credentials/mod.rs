//! Finds API keys and tokens for agents.
//!
//! The order is: environment, files of Amp, files of the agent itself, files of OpenCode. A file that is missing, too
//! large or malformed is skipped.

mod file;
mod home;
mod providers;
mod query;
mod secret;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, path::PathBuf};

pub(crate) use self::file::bytes;
pub use self::{
    home::home,
    query::{CredentialQuery, CredentialQueryError, environment_script},
    secret::CredentialSecret,
};
use crate::agent::AgentId;

/// Where to search.
pub struct CredentialSources {
    /// Home directory.
    pub home: Option<PathBuf>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Whether OAuth tokens are included.
    pub oauth: bool,
}

/// The credentials that were found.
#[derive(Clone, Debug, Default)]
pub struct AgentCredentials {
    pub anthropic: Option<AgentCredential>,
    /// For OpenAI.
    pub openai: Option<AgentCredential>,
    /// For other providers, by name.
    pub other: BTreeMap<String, AgentCredential>,
}

/// A key or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCredential {
    pub secret: CredentialSecret,
    /// Key or token.
    pub kind: CredentialKind,
    /// Where it was found.
    pub origin: CredentialOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// API key, which does not expire.
    ApiKey,
    /// OAuth token.
    Oauth,
}

/// Where a credential was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialOrigin {
    /// Environment variable.
    Environment,
    /// Files of Amp.
    Amp,
    /// Files of Claude Code.
    Claude,
    /// Files of Codex.
    Codex,
    /// Files of OpenCode.
    OpenCode,
}

// === impl CredentialSources ===

impl CredentialSources {
    /// The environment and home of this process.
    pub fn from_environment() -> Self {
        let environment =
            providers::VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        Self { home: home(), environment: environment.collect(), oauth: true }
    }
}

// === impl AgentCredentials ===

impl AgentCredentials {
    /// Searches all sources; the first match wins.
    pub fn find(sources: &CredentialSources) -> Self {
        let mut opencode = providers::opencode(sources);
        let open_anthropic = opencode.remove("anthropic");
        let open_openai = opencode.remove("openai");
        Self {
            anthropic: providers::anthropic_variables(sources)
                .or_else(|| providers::amp(sources))
                .or_else(|| providers::claude(sources))
                .or(open_anthropic),
            openai: providers::openai_variables(sources).or_else(|| providers::codex(sources)).or(open_openai),
            other: opencode,
        }
    }

    /// The credential that an agent uses.
    pub fn of(&self, agent: AgentId) -> Option<&AgentCredential> {
        match agent {
            AgentId::Claude => self.anthropic.as_ref(),
            AgentId::Codex => self.openai.as_ref(),
            AgentId::Mock => None,
        }
    }

    /// Variables for an agent's environment. Empty if the credential is in the agent's own files, where the agent can
    /// refresh it.
    pub fn environment(&self, agent: AgentId) -> Vec<(String, String)> {
        let Some(credential) = self.of(agent) else { return Vec::new() };
        let names: &[&str] = match (agent, credential.kind, credential.origin) {
            (AgentId::Claude, _, CredentialOrigin::Claude) | (AgentId::Codex, _, CredentialOrigin::Codex) => &[],
            (AgentId::Claude, CredentialKind::ApiKey, _) => &["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"],
            (AgentId::Claude, CredentialKind::Oauth, _) => &["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"],
            (AgentId::Codex, CredentialKind::ApiKey, _) => &["OPENAI_API_KEY", "CODEX_API_KEY"],
            // Codex reads OAuth tokens only from its own file.
            (AgentId::Codex, CredentialKind::Oauth, _) | (AgentId::Mock, ..) => &[],
        };
        names.iter().map(|name| ((*name).to_owned(), credential.secret.expose().to_owned())).collect()
    }

    /// Whether an agent has usable credentials.
    pub fn available(&self, agent: AgentId) -> bool {
        match (agent, self.of(agent)) {
            (AgentId::Mock, _) => true,
            (_, None) => false,
            (AgentId::Codex, Some(found)) => {
                found.kind == CredentialKind::ApiKey || found.origin == CredentialOrigin::Codex
            }
            (AgentId::Claude, Some(_)) => true,
        }
    }
}

// === impl CredentialKind ===

impl fmt::Display for CredentialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiKey => "api_key",
            Self::Oauth => "oauth",
        })
    }
}

// === impl CredentialOrigin ===

impl fmt::Display for CredentialOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Environment => "environment",
            Self::Amp => "amp",
            Self::Claude => "claude-code",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
        })
    }
}
