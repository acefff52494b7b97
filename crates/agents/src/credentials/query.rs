//! Prints credentials, redacted by default.

use std::{fmt::Write, path::PathBuf};

use serde_json::{Map, Value, json};

use super::{AgentCredential, AgentCredentials, CredentialKind, CredentialSecret, CredentialSources};
use crate::agent::AgentId;

/// Which credentials to print, and how.
#[derive(Clone, Debug, Default)]
pub struct CredentialQuery {
    /// Only those of this agent.
    pub agent: Option<AgentId>,
    /// Only those of this provider: `anthropic`, `openai`, or another that OpenCode supports.
    pub provider: Option<String>,
    /// Home directory to search. Environment variables still take precedence.
    pub home: Option<PathBuf>,
    /// Exclude OAuth tokens.
    pub no_oauth: bool,
    /// Print secrets in full.
    pub reveal: bool,
}

/// Why no credential is printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialQueryError {
    /// None was found.
    #[error("no credentials for {0}")]
    Missing(String),
    /// The agent does not use this provider.
    #[error("{agent} does not use {provider}")]
    Mixed { agent: AgentId, provider: String },
}

// === impl CredentialQuery ===

impl CredentialQuery {
    /// Returns one credential as a line, or all of them as JSON.
    pub fn run(&self) -> Result<String, CredentialQueryError> {
        self.render(&AgentCredentials::find(&sources(self.home.clone(), self.no_oauth)))
    }

    fn render(&self, found: &AgentCredentials) -> Result<String, CredentialQueryError> {
        let provider = match (self.agent.map(|agent| (agent, provider(agent))), self.provider.as_deref()) {
            (Some((agent, Some(own))), Some(requested)) if own != requested => {
                return Err(CredentialQueryError::Mixed { agent, provider: requested.to_owned() });
            }
            (Some((agent, None)), _) => return Err(CredentialQueryError::Missing(agent.to_string())),
            (Some((_, own)), _) => own,
            (None, requested) => requested,
        };
        let Some(provider) = provider else {
            return Ok(format!("{:#}", self.all(found)));
        };
        let one = match provider {
            "anthropic" => found.anthropic.as_ref(),
            "openai" => found.openai.as_ref(),
            other => found.other.get(other),
        };
        one.map(|one| self.shown(&one.secret)).ok_or_else(|| CredentialQueryError::Missing(provider.to_owned()))
    }

    fn all(&self, found: &AgentCredentials) -> Value {
        let one = |provider: &str, found: &AgentCredential| {
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

    fn shown(&self, secret: &CredentialSecret) -> String {
        if self.reveal { secret.expose().to_owned() } else { secret.to_string() }
    }
}

/// A shell script that sets the variables of all agents, in full.
pub fn environment_script(home: Option<PathBuf>, no_oauth: bool, export: bool) -> String {
    lines(&AgentCredentials::find(&sources(home, no_oauth)), export)
}

fn lines(found: &AgentCredentials, export: bool) -> String {
    let mut text = String::new();
    let mut line = |names: &[&str], credential: &AgentCredential| {
        for name in names {
            let before = if export { "export " } else { "" };
            // Writing to a `String` does not fail.
            let _written = writeln!(text, "{before}{name}={}", quoted(credential.secret.expose()));
        }
    };
    match &found.anthropic {
        Some(found) if found.kind == CredentialKind::ApiKey => line(&["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"], found),
        Some(found) => line(&["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"], found),
        None => {}
    }
    if let Some(found) = found.openai.as_ref().filter(|found| found.kind == CredentialKind::ApiKey) {
        line(&["OPENAI_API_KEY", "CODEX_API_KEY"], found);
    }
    text
}

/// Quotes a string for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The sources of this process, with another home directory.
fn sources(home: Option<PathBuf>, no_oauth: bool) -> CredentialSources {
    let mut sources = CredentialSources::from_environment();
    if let Some(home) = home {
        for in_variable_directory in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME"] {
            sources.environment.remove(in_variable_directory);
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
    use crate::credentials::CredentialOrigin;

    fn found() -> AgentCredentials {
        let credential =
            |text: &str, kind, origin| AgentCredential { secret: CredentialSecret::new(text).unwrap(), kind, origin };
        AgentCredentials {
            anthropic: Some(credential("sk-ant-0123456789", CredentialKind::ApiKey, CredentialOrigin::Environment)),
            openai: Some(credential("it's a $(key)", CredentialKind::ApiKey, CredentialOrigin::Codex)),
            other: [("groq".to_owned(), credential("gsk", CredentialKind::ApiKey, CredentialOrigin::OpenCode))].into(),
        }
    }

    //= promises.agents-server.credentials-printed-full
    #[test]
    fn secrets_are_redacted_by_default() {
        let all = CredentialQuery::default().render(&found()).unwrap();
        assert!(!all.contains("0123456789") && !all.contains("$(key)") && !all.contains("gsk"), "{all}");
        let all: Value = serde_json::from_str(&all).unwrap();
        assert_eq!(all["anthropic"]["apiKey"], "sk-a...6789");
        assert_eq!(all["anthropic"]["source"], "environment");
        assert_eq!(all["openai"]["authType"], "api_key");
        assert_eq!(all["other"]["groq"]["apiKey"], "****");
        let revealed = CredentialQuery { reveal: true, ..CredentialQuery::default() }.render(&found()).unwrap();
        assert!(revealed.contains("sk-ant-0123456789"));
    }

    #[test]
    fn a_single_credential_is_one_line() {
        let ask = |agent, provider: Option<&str>, reveal| {
            CredentialQuery { agent, provider: provider.map(Into::into), reveal, ..CredentialQuery::default() }
                .render(&found())
        };
        assert_eq!(ask(Some(AgentId::Claude), None, true).unwrap(), "sk-ant-0123456789");
        assert_eq!(ask(Some(AgentId::Claude), Some("anthropic"), false).unwrap(), "sk-a...6789");
        assert_eq!(ask(None, Some("openai"), true).unwrap(), "it's a $(key)");
        assert_eq!(ask(None, Some("groq"), false).unwrap(), "****");
        assert_eq!(ask(None, Some("nobody"), false), Err(CredentialQueryError::Missing("nobody".into())));
        assert_eq!(ask(Some(AgentId::Mock), None, false), Err(CredentialQueryError::Missing("mock".into())));
        let mixed = CredentialQueryError::Mixed { agent: AgentId::Codex, provider: "anthropic".into() };
        assert_eq!(ask(Some(AgentId::Codex), Some("anthropic"), false), Err(mixed));
    }

    #[test]
    fn a_shell_reads_back_the_exact_secret() {
        let script = lines(&found(), true) + "printf '%s|%s' \"$CODEX_API_KEY\" \"$CLAUDE_API_KEY\"";
        let run = std::process::Command::new("sh").env_clear().args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(run.stdout).unwrap(), "it's a $(key)|sk-ant-0123456789");
        assert!(lines(&found(), false).starts_with("ANTHROPIC_API_KEY='sk-ant-0123456789'\n"));
    }
}
