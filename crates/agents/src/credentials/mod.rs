//! Keys and tokens for the agents, from the places where their owners keep them.
//!
//! The environment is asked first, then the files of Amp, of the agent itself, and of OpenCode. A file that is missing, too
//! large or not what it should be is passed over: it says nothing about the others.

mod extract;
mod file;
mod home;
mod places;
mod secret;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, path::PathBuf};

pub(crate) use self::file::bytes;
pub use self::{
    extract::{Extract, ExtractError, extract_env},
    home::home,
    secret::Secret,
};
use crate::agent::AgentId;

/// Where is looked.
pub struct Sources {
    /// Whose files.
    pub home: Option<PathBuf>,
    /// The variables that are set.
    pub environment: BTreeMap<String, String>,
    /// Whether tokens of a login count, and not only keys.
    pub oauth: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// For Anthropic.
    pub anthropic: Option<Credential>,
    /// For OpenAI.
    pub openai: Option<Credential>,
    /// For others, by their names.
    pub other: BTreeMap<String, Credential>,
}

/// A key or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// It.
    pub secret: Secret,
    /// Which of the two.
    pub kind: Kind,
    /// Where it was.
    pub origin: Origin,
}

/// What a credential is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A key that does not end.
    ApiKey,
    /// A token of a login.
    Oauth,
}

/// Where a credential was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a variable.
    Environment,
    /// In the files of Amp.
    Amp,
    /// In the files of Claude Code.
    Claude,
    /// In the files of Codex.
    Codex,
    /// In the files of OpenCode.
    OpenCode,
}

// === impl Sources ===

impl Sources {
    /// The variables and the home of this process.
    pub fn from_environment() -> Self {
        let environment =
            places::VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
        Self { home: home(), environment: environment.collect(), oauth: true }
    }
}

// === impl Credentials ===

impl Credentials {
    /// Looks everywhere; the first of each wins.
    pub fn find(sources: &Sources) -> Self {
        let mut opencode = places::opencode(sources);
        let open_anthropic = opencode.remove("anthropic");
        let open_openai = opencode.remove("openai");
        Self {
            anthropic: places::anthropic_variables(sources)
                .or_else(|| places::amp(sources))
                .or_else(|| places::claude(sources))
                .or(open_anthropic),
            openai: places::openai_variables(sources).or_else(|| places::codex(sources)).or(open_openai),
            other: opencode,
        }
    }

    /// The one that an agent would use.
    pub fn of(&self, agent: AgentId) -> Option<&Credential> {
        match agent {
            AgentId::Claude => self.anthropic.as_ref(),
            AgentId::Codex => self.openai.as_ref(),
            AgentId::Mock => None,
        }
    }

    /// What an agent is to find in its environment. Nothing, if it knows the credential already: it lies in its own files,
    /// and the agent can renew it there.
    pub fn environment(&self, agent: AgentId) -> Vec<(String, String)> {
        let Some(credential) = self.of(agent) else { return Vec::new() };
        let names: &[&str] = match (agent, credential.kind, credential.origin) {
            (AgentId::Claude, _, Origin::Claude) | (AgentId::Codex, _, Origin::Codex) => &[],
            (AgentId::Claude, Kind::ApiKey, _) => &["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"],
            (AgentId::Claude, Kind::Oauth, _) => &["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"],
            (AgentId::Codex, Kind::ApiKey, _) => &["OPENAI_API_KEY", "CODEX_API_KEY"],
            // Codex takes the token of a login from its own file only.
            (AgentId::Codex, Kind::Oauth, _) | (AgentId::Mock, ..) => &[],
        };
        names.iter().map(|name| ((*name).to_owned(), credential.secret.expose().to_owned())).collect()
    }

    /// Whether an agent has what it needs.
    pub fn available(&self, agent: AgentId) -> bool {
        match (agent, self.of(agent)) {
            (AgentId::Mock, _) => true,
            (_, None) => false,
            (AgentId::Codex, Some(found)) => found.kind == Kind::ApiKey || found.origin == Origin::Codex,
            (AgentId::Claude, Some(_)) => true,
        }
    }
}

// === impl Kind ===

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiKey => "api_key",
            Self::Oauth => "oauth",
        })
    }
}

// === impl Origin ===

impl fmt::Display for Origin {
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
