//! Searches the environment and the files of each tool.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::Value;

use super::{AgentCredential, CredentialKind, CredentialOrigin, CredentialSecret, CredentialSources, file};

/// Prefix of Anthropic's keys.
const ANTHROPIC_KEY: &str = "sk-ant-";

const ANTHROPIC_KEYS: [&str; 2] = ["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"];
const ANTHROPIC_TOKENS: [&str; 2] = ["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"];
const OPENAI_KEYS: [&str; 2] = ["OPENAI_API_KEY", "CODEX_API_KEY"];

/// All variables that are read.
pub(super) const VARIABLES: [&str; 9] = [
    "ANTHROPIC_API_KEY",
    "CLAUDE_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "ANTHROPIC_AUTH_TOKEN",
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "XDG_DATA_HOME",
];

/// Fields of Amp's file that hold an Anthropic key.
const AMP_NAMED: [&[&str]; 5] = [
    &["anthropicApiKey"],
    &["anthropic_api_key"],
    &["auth", "anthropicApiKey"],
    &["anthropic", "apiKey"],
    &["anthropic", "token"],
];
/// Fields that may hold any key, so the prefix is checked.
const AMP_UNNAMED: [&[&str]; 7] = [
    &["apiKey"],
    &["api_key"],
    &["accessToken"],
    &["access_token"],
    &["token"],
    &["auth", "apiKey"],
    &["auth", "token"],
];

const CLAUDE_FILES: [&str; 3] = [".claude.json.api", ".claude.json", ".claude.json.nathan"];
const CLAUDE_FIELDS: [&str; 4] = ["primaryApiKey", "apiKey", "anthropicApiKey", "customApiKey"];

/// Environment variables for Anthropic.
pub(super) fn anthropic_variables(sources: &CredentialSources) -> Option<AgentCredential> {
    let key = variable(sources, &ANTHROPIC_KEYS, CredentialKind::ApiKey);
    key.or_else(|| sources.oauth.then(|| variable(sources, &ANTHROPIC_TOKENS, CredentialKind::Oauth)).flatten())
}

/// Environment variables for OpenAI.
pub(super) fn openai_variables(sources: &CredentialSources) -> Option<AgentCredential> {
    variable(sources, &OPENAI_KEYS, CredentialKind::ApiKey)
}

/// Amp's file, for Anthropic.
pub(super) fn amp(sources: &CredentialSources) -> Option<AgentCredential> {
    let config = file::read(&sources.home.as_ref()?.join(".amp/config.json"))?;
    let named = AMP_NAMED.iter().filter_map(|keys| file::text(&config, keys));
    let unnamed = AMP_UNNAMED.iter().filter_map(|keys| file::text(&config, keys)).filter(|text| is_anthropic(text));
    named.chain(unnamed).find_map(|text| credential(text, CredentialKind::ApiKey, CredentialOrigin::Amp))
}

/// Files of Claude Code: keys first, then a login that is valid or can be refreshed.
pub(super) fn claude(sources: &CredentialSources) -> Option<AgentCredential> {
    let files = CLAUDE_FILES
        .iter()
        .flat_map(|name| [in_variable_directory(sources, "CLAUDE_CONFIG_DIR", name), in_home(sources, name)]);
    let key = files.flatten().find_map(|path| {
        let config = file::read(&path)?;
        let mut keys = CLAUDE_FIELDS.iter().filter_map(|field| file::text(&config, &[field]));
        keys.find(|text| is_anthropic(text))
            .and_then(|text| credential(text, CredentialKind::ApiKey, CredentialOrigin::Claude))
    });
    let logins = [
        in_variable_directory(sources, "CLAUDE_CONFIG_DIR", ".credentials.json"),
        in_home(sources, ".claude/.credentials.json"),
        in_home(sources, ".claude-oauth-credentials.json"),
    ];
    key.or_else(|| {
        logins.into_iter().flatten().filter(|_| sources.oauth).find_map(|path| {
            let config = file::read(&path)?;
            let login = config.get("claudeAiOauth")?;
            let token = file::text(login, &["accessToken"])?;
            let is_renewed = || file::text(login, &["refreshToken"]).is_some_and(|token| !token.trim().is_empty());
            let lasts = !file::has_expired(login.get("expiresAt")) || is_renewed();
            credential(token, CredentialKind::Oauth, CredentialOrigin::Claude).filter(|_| lasts)
        })
    })
}

/// Codex's file: a key, or a login.
pub(super) fn codex(sources: &CredentialSources) -> Option<AgentCredential> {
    let in_variable_directory = in_variable_directory(sources, "CODEX_HOME", "auth.json");
    let config = file::read(&in_variable_directory.or_else(|| in_home(sources, ".codex/auth.json"))?)?;
    let key = file::text(&config, &["OPENAI_API_KEY"])
        .and_then(|key| credential(key, CredentialKind::ApiKey, CredentialOrigin::Codex));
    let token = || file::text(&config, &["tokens", "access_token"]).filter(|_| sources.oauth);
    key.or_else(|| credential(token()?, CredentialKind::Oauth, CredentialOrigin::Codex))
}

/// OpenCode's file, by provider.
pub(super) fn opencode(sources: &CredentialSources) -> BTreeMap<String, AgentCredential> {
    let in_variable_directory = in_variable_directory(sources, "XDG_DATA_HOME", "opencode/auth.json");
    let path = in_variable_directory.or_else(|| in_home(sources, ".local/share/opencode/auth.json"));
    let Some(Value::Object(providers)) = path.and_then(|path| file::read(&path)) else { return BTreeMap::new() };
    let found = providers.into_iter().filter_map(|(provider, config)| {
        let found = match file::text(&config, &["type"])? {
            "api" => credential(file::text(&config, &["key"])?, CredentialKind::ApiKey, CredentialOrigin::OpenCode),
            "oauth" if sources.oauth && !file::has_expired(config.get("expires")) => {
                credential(file::text(&config, &["access"])?, CredentialKind::Oauth, CredentialOrigin::OpenCode)
            }
            _ => None,
        };
        Some((provider, found?))
    });
    found.collect()
}

fn variable(sources: &CredentialSources, names: &[&str], kind: CredentialKind) -> Option<AgentCredential> {
    let set = names.iter().filter_map(|name| sources.environment.get(*name));
    set.into_iter().find_map(|text| credential(text, kind, CredentialOrigin::Environment))
}

fn credential(text: &str, kind: CredentialKind, origin: CredentialOrigin) -> Option<AgentCredential> {
    Some(AgentCredential { secret: CredentialSecret::new(text)?, kind, origin })
}

fn is_anthropic(text: &str) -> bool {
    text.trim().starts_with(ANTHROPIC_KEY)
}

fn in_home(sources: &CredentialSources, name: &str) -> Option<PathBuf> {
    Some(sources.home.as_ref()?.join(name))
}

/// A file in the directory that a variable names.
fn in_variable_directory(sources: &CredentialSources, variable: &str, name: &str) -> Option<PathBuf> {
    let directory = PathBuf::from(sources.environment.get(variable)?);
    directory.is_absolute().then(|| directory.join(name))
}
