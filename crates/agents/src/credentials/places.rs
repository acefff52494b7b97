//! The places where credentials are kept.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::Value;

use super::{Credential, Kind, Origin, Secret, Sources, file};

/// How a key of Anthropic begins.
const ANTHROPIC_KEY: &str = "sk-ant-";

const ANTHROPIC_KEYS: [&str; 2] = ["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"];
const ANTHROPIC_TOKENS: [&str; 2] = ["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"];
const OPENAI_KEYS: [&str; 2] = ["OPENAI_API_KEY", "CODEX_API_KEY"];

/// Every variable that is looked at.
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

/// Where Amp keeps a key that is Anthropic's by its name.
const AMP_NAMED: [&[&str]; 5] = [
    &["anthropicApiKey"],
    &["anthropic_api_key"],
    &["auth", "anthropicApiKey"],
    &["anthropic", "apiKey"],
    &["anthropic", "token"],
];
/// Where it keeps one that may be anybody's, Amp's own too: that one must look like Anthropic's.
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

/// In the environment, for Anthropic.
pub(super) fn anthropic_variables(sources: &Sources) -> Option<Credential> {
    let key = variable(sources, &ANTHROPIC_KEYS, Kind::ApiKey);
    key.or_else(|| sources.oauth.then(|| variable(sources, &ANTHROPIC_TOKENS, Kind::Oauth)).flatten())
}

/// In the environment, for OpenAI.
pub(super) fn openai_variables(sources: &Sources) -> Option<Credential> {
    variable(sources, &OPENAI_KEYS, Kind::ApiKey)
}

/// In the files of Amp, for Anthropic.
pub(super) fn amp(sources: &Sources) -> Option<Credential> {
    let config = file::read(&sources.home.as_ref()?.join(".amp/config.json"))?;
    let named = AMP_NAMED.iter().filter_map(|keys| file::text(&config, keys));
    let unnamed = AMP_UNNAMED.iter().filter_map(|keys| file::text(&config, keys)).filter(|text| is_anthropic(text));
    named.chain(unnamed).find_map(|text| credential(text, Kind::ApiKey, Origin::Amp))
}

/// In the files of Claude Code: keys first, then a login that is not over, or that it can renew itself.
pub(super) fn claude(sources: &Sources) -> Option<Credential> {
    let files =
        CLAUDE_FILES.iter().flat_map(|name| [moved(sources, "CLAUDE_CONFIG_DIR", name), in_home(sources, name)]);
    let key = files.flatten().find_map(|path| {
        let config = file::read(&path)?;
        let mut keys = CLAUDE_FIELDS.iter().filter_map(|field| file::text(&config, &[field]));
        keys.find(|text| is_anthropic(text)).and_then(|text| credential(text, Kind::ApiKey, Origin::Claude))
    });
    let logins = [
        moved(sources, "CLAUDE_CONFIG_DIR", ".credentials.json"),
        in_home(sources, ".claude/.credentials.json"),
        in_home(sources, ".claude-oauth-credentials.json"),
    ];
    key.or_else(|| {
        logins.into_iter().flatten().filter(|_| sources.oauth).find_map(|path| {
            let config = file::read(&path)?;
            let login = config.get("claudeAiOauth")?;
            let token = file::text(login, &["accessToken"])?;
            let is_renewed = || file::text(login, &["refreshToken"]).is_some_and(|token| !token.trim().is_empty());
            let lasts = !file::is_past(login.get("expiresAt")) || is_renewed();
            credential(token, Kind::Oauth, Origin::Claude).filter(|_| lasts)
        })
    })
}

/// In the file of Codex: a key, or a login.
pub(super) fn codex(sources: &Sources) -> Option<Credential> {
    let moved = moved(sources, "CODEX_HOME", "auth.json");
    let config = file::read(&moved.or_else(|| in_home(sources, ".codex/auth.json"))?)?;
    let key = file::text(&config, &["OPENAI_API_KEY"]).and_then(|key| credential(key, Kind::ApiKey, Origin::Codex));
    let token = || file::text(&config, &["tokens", "access_token"]).filter(|_| sources.oauth);
    key.or_else(|| credential(token()?, Kind::Oauth, Origin::Codex))
}

/// In the file of OpenCode, by provider.
pub(super) fn opencode(sources: &Sources) -> BTreeMap<String, Credential> {
    let moved = moved(sources, "XDG_DATA_HOME", "opencode/auth.json");
    let path = moved.or_else(|| in_home(sources, ".local/share/opencode/auth.json"));
    let Some(Value::Object(providers)) = path.and_then(|path| file::read(&path)) else { return BTreeMap::new() };
    let found = providers.into_iter().filter_map(|(provider, config)| {
        let found = match file::text(&config, &["type"])? {
            "api" => credential(file::text(&config, &["key"])?, Kind::ApiKey, Origin::OpenCode),
            "oauth" if sources.oauth && !file::is_past(config.get("expires")) => {
                credential(file::text(&config, &["access"])?, Kind::Oauth, Origin::OpenCode)
            }
            _ => None,
        };
        Some((provider, found?))
    });
    found.collect()
}

fn variable(sources: &Sources, names: &[&str], kind: Kind) -> Option<Credential> {
    let set = names.iter().filter_map(|name| sources.environment.get(*name));
    set.into_iter().find_map(|text| credential(text, kind, Origin::Environment))
}

fn credential(text: &str, kind: Kind, origin: Origin) -> Option<Credential> {
    Some(Credential { secret: Secret::new(text)?, kind, origin })
}

fn is_anthropic(text: &str) -> bool {
    text.trim().starts_with(ANTHROPIC_KEY)
}

fn in_home(sources: &Sources, name: &str) -> Option<PathBuf> {
    Some(sources.home.as_ref()?.join(name))
}

/// A file in the directory that a variable gives in place of one in the home.
fn moved(sources: &Sources, variable: &str, name: &str) -> Option<PathBuf> {
    let directory = PathBuf::from(sources.environment.get(variable)?);
    directory.is_absolute().then(|| directory.join(name))
}
