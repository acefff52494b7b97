//! What a person is told about credentials: hidden, unless asked otherwise.

use std::{fmt::Write, path::PathBuf};

use serde_json::{Map, Value, json};

use super::{Credential, Credentials, Kind, Secret, Sources};
use crate::agent::AgentId;

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Extract {
    /// That of an agent alone.
    pub agent: Option<AgentId>,
    /// That of a provider alone: `anthropic`, `openai`, or another that OpenCode knows.
    pub provider: Option<String>,
    /// Another home than ours. Keys in our environment come first all the same.
    pub home: Option<PathBuf>,
    /// Keys only, and no tokens of a login.
    pub no_oauth: bool,
    /// In full.
    pub reveal: bool,
}

/// Why there is nothing to tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// There is none.
    #[error("no credentials for {0}")]
    Missing(String),
    /// An agent uses those of one provider.
    #[error("{agent} does not use {provider}")]
    Mixed {
        /// The agent.
        agent: AgentId,
        /// The provider.
        provider: String,
    },
}

// === impl Extract ===

impl Extract {
    /// One credential as a line, or all of them as JSON.
    pub fn run(&self) -> Result<String, ExtractError> {
        self.tell(&Credentials::find(&sources(self.home.clone(), self.no_oauth)))
    }

    fn tell(&self, found: &Credentials) -> Result<String, ExtractError> {
        let provider = match (self.agent.map(|agent| (agent, provider(agent))), self.provider.as_deref()) {
            (Some((agent, Some(own))), Some(asked)) if own != asked => {
                return Err(ExtractError::Mixed { agent, provider: asked.to_owned() });
            }
            (Some((agent, None)), _) => return Err(ExtractError::Missing(agent.to_string())),
            (Some((_, own)), _) => own,
            (None, asked) => asked,
        };
        let Some(provider) = provider else {
            return Ok(format!("{:#}", self.all(found)));
        };
        let one = match provider {
            "anthropic" => found.anthropic.as_ref(),
            "openai" => found.openai.as_ref(),
            other => found.other.get(other),
        };
        one.map(|one| self.shown(&one.secret)).ok_or_else(|| ExtractError::Missing(provider.to_owned()))
    }

    fn all(&self, found: &Credentials) -> Value {
        let one = |provider: &str, found: &Credential| {
            json!({
                "provider": provider,
                "source": found.origin.to_string(),
                "authType": found.kind.to_string(),
                "apiKey": self.shown(&found.secret),
                "redacted": !self.reveal,
            })
        };
        let other: Map<_, _> = found.other.iter().map(|(name, found)| (name.clone(), one(name, found))).collect();
        json!({
            "anthropic": found.anthropic.as_ref().map(|found| one("anthropic", found)),
            "openai": found.openai.as_ref().map(|found| one("openai", found)),
            "other": other,
        })
    }

    fn shown(&self, secret: &Secret) -> String {
        if self.reveal { secret.expose().to_owned() } else { secret.to_string() }
    }
}

/// Lines for a shell that set the variables of all agents, in full.
pub fn extract_env(home: Option<PathBuf>, no_oauth: bool, export: bool) -> String {
    lines(&Credentials::find(&sources(home, no_oauth)), export)
}

fn lines(found: &Credentials, export: bool) -> String {
    let mut text = String::new();
    let mut line = |names: &[&str], credential: &Credential| {
        for name in names {
            let before = if export { "export " } else { "" };
            // Writing to a text does not fail.
            let _written = writeln!(text, "{before}{name}={}", quoted(credential.secret.expose()));
        }
    };
    match &found.anthropic {
        Some(found) if found.kind == Kind::ApiKey => line(&["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"], found),
        Some(found) => line(&["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"], found),
        None => {}
    }
    if let Some(found) = found.openai.as_ref().filter(|found| found.kind == Kind::ApiKey) {
        line(&["OPENAI_API_KEY", "CODEX_API_KEY"], found);
    }
    text
}

/// A text as a shell takes it literally.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The sources of this process, with the files of another home.
fn sources(home: Option<PathBuf>, no_oauth: bool) -> Sources {
    let mut sources = Sources::from_environment();
    if let Some(home) = home {
        for moved in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME"] {
            sources.environment.remove(moved);
        }
        sources.home = Some(home);
    }
    sources.oauth = !no_oauth;
    sources
}

fn provider(agent: AgentId) -> Option<&'static str> {
    match agent {
        AgentId::Claude => Some("anthropic"),
        AgentId::Codex => Some("openai"),
        AgentId::Mock => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Origin;

    fn found() -> Credentials {
        let credential = |text: &str, kind, origin| Credential { secret: Secret::new(text).unwrap(), kind, origin };
        Credentials {
            anthropic: Some(credential("sk-ant-0123456789", Kind::ApiKey, Origin::Environment)),
            openai: Some(credential("it's a $(key)", Kind::ApiKey, Origin::Codex)),
            other: [("groq".to_owned(), credential("gsk", Kind::ApiKey, Origin::OpenCode))].into(),
        }
    }

    //= promises.agents-server.credentials-printed-full
    #[test]
    fn nothing_is_shown_in_full_unless_asked() {
        let all = Extract::default().tell(&found()).unwrap();
        assert!(!all.contains("0123456789") && !all.contains("$(key)") && !all.contains("gsk"), "{all}");
        let all: Value = serde_json::from_str(&all).unwrap();
        assert_eq!(all["anthropic"]["apiKey"], "sk-a...6789");
        assert_eq!(all["anthropic"]["source"], "environment");
        assert_eq!(all["openai"]["authType"], "api_key");
        assert_eq!(all["other"]["groq"]["apiKey"], "****");
        let revealed = Extract { reveal: true, ..Extract::default() }.tell(&found()).unwrap();
        assert!(revealed.contains("sk-ant-0123456789"));
    }

    #[test]
    fn one_of_an_agent_or_a_provider_is_a_line() {
        let ask = |agent, provider: Option<&str>, reveal| {
            Extract { agent, provider: provider.map(Into::into), reveal, ..Extract::default() }.tell(&found())
        };
        assert_eq!(ask(Some(AgentId::Claude), None, true).unwrap(), "sk-ant-0123456789");
        assert_eq!(ask(Some(AgentId::Claude), Some("anthropic"), false).unwrap(), "sk-a...6789");
        assert_eq!(ask(None, Some("openai"), true).unwrap(), "it's a $(key)");
        assert_eq!(ask(None, Some("groq"), false).unwrap(), "****");
        assert_eq!(ask(None, Some("nobody"), false), Err(ExtractError::Missing("nobody".into())));
        assert_eq!(ask(Some(AgentId::Mock), None, false), Err(ExtractError::Missing("mock".into())));
        let mixed = ExtractError::Mixed { agent: AgentId::Codex, provider: "anthropic".into() };
        assert_eq!(ask(Some(AgentId::Codex), Some("anthropic"), false), Err(mixed));
    }

    #[test]
    fn a_shell_gets_back_exactly_what_was_kept() {
        let script = lines(&found(), true) + "printf '%s|%s' \"$CODEX_API_KEY\" \"$CLAUDE_API_KEY\"";
        let run = std::process::Command::new("sh").env_clear().args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(run.stdout).unwrap(), "it's a $(key)|sk-ant-0123456789");
        assert!(lines(&found(), false).starts_with("ANTHROPIC_API_KEY='sk-ant-0123456789'\n"));
    }
}
