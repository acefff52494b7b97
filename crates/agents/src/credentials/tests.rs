use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::json;
use tempfile::TempDir;

use super::*;

const KEY: &str = "sk-ant-from-a-file";

/// A home directory and environment for a test.
struct TestHome {
    directory: TempDir,
    environment: BTreeMap<String, String>,
    oauth: bool,
}

impl TestHome {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), environment: BTreeMap::new(), oauth: true }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn json(&self, name: &str, content: serde_json::Value) -> &Self {
        self.write(name, content.to_string())
    }

    fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    fn find(&self) -> AgentCredentials {
        let home = Some(self.path().to_owned());
        AgentCredentials::find(&CredentialSources { home, environment: self.environment.clone(), oauth: self.oauth })
    }
}

fn describe(found: Option<&AgentCredential>) -> Option<(String, CredentialKind, CredentialOrigin)> {
    found.map(|found| (found.secret.expose().to_owned(), found.kind, found.origin))
}

fn some(
    text: &str,
    kind: CredentialKind,
    origin: CredentialOrigin,
) -> Option<(String, CredentialKind, CredentialOrigin)> {
    Some((text.into(), kind, origin))
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

#[test]
fn an_empty_home_has_no_credentials_and_the_mock_needs_none() {
    let found = TestHome::new().find();
    assert_eq!(AgentId::ALL.map(|agent| found.available(agent)), [false, false, true]);
    assert!(AgentId::ALL.iter().all(|agent| found.environment(*agent).is_empty()));
}

//= agents.credentials.claude-code-anthropic-api
//= agents.credentials.codex-openai-api-key
//= agents.credentials.keys-reach-agents-environment
#[test]
fn a_variable_reaches_its_agent_under_all_of_its_names() {
    let (keys, tokens) = (["ANTHROPIC_API_KEY", "CLAUDE_API_KEY"], ["CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN"]);
    let codex = ["OPENAI_API_KEY", "CODEX_API_KEY"];
    for (agent, names) in [(AgentId::Claude, keys), (AgentId::Claude, tokens), (AgentId::Codex, codex)] {
        for name in names {
            let mut home = TestHome::new();
            home.set(name, "secret");
            assert_eq!(home.find().environment(agent), pairs(&names.map(|name| (name, "secret"))), "{name}");
        }
    }
}

//= agents.credentials.claude-code-anthropic-api
//= agents.credentials.codex-openai-api-key
#[test]
fn variables_have_an_order_and_precede_files() {
    let mut home = TestHome::new();
    home.json(".claude.json", json!({ "primaryApiKey": KEY }));
    home.json(".codex/auth.json", json!({ "OPENAI_API_KEY": "of-codex" }));
    for (name, kind) in [
        ("ANTHROPIC_AUTH_TOKEN", CredentialKind::Oauth),
        ("CLAUDE_CODE_OAUTH_TOKEN", CredentialKind::Oauth),
        ("CLAUDE_API_KEY", CredentialKind::ApiKey),
        ("ANTHROPIC_API_KEY", CredentialKind::ApiKey),
    ] {
        home.set(name, name);
        assert_eq!(describe(home.find().anthropic.as_ref()), some(name, kind, CredentialOrigin::Environment));
    }
    for name in ["CODEX_API_KEY", "OPENAI_API_KEY"] {
        home.set(name, name);
        assert_eq!(
            describe(home.find().openai.as_ref()),
            some(name, CredentialKind::ApiKey, CredentialOrigin::Environment)
        );
    }
    home.set("ANTHROPIC_API_KEY", "  ").set("OPENAI_API_KEY", "");
    let found = home.find();
    assert_eq!(found.anthropic.unwrap().secret.expose(), "CLAUDE_API_KEY");
    assert_eq!(found.openai.unwrap().secret.expose(), "CODEX_API_KEY");
}

#[test]
fn every_file_and_field_of_claude_is_searched() {
    for file in [".claude.json.api", ".claude.json", ".claude.json.nathan"] {
        for field in ["primaryApiKey", "apiKey", "anthropicApiKey", "customApiKey"] {
            let home = TestHome::new();
            home.json(file, json!({ field: KEY }));
            let found = home.find();
            assert_eq!(
                describe(found.anthropic.as_ref()),
                some(KEY, CredentialKind::ApiKey, CredentialOrigin::Claude),
                "{file} {field}"
            );
            assert!(found.available(AgentId::Claude));
            assert_eq!(found.environment(AgentId::Claude), [], "it is the agent's own");
        }
    }
}

#[test]
fn files_and_fields_of_claude_have_an_order() {
    let home = TestHome::new();
    home.json(".claude.json.nathan", json!({ "primaryApiKey": "sk-ant-3" }));
    home.json(".claude.json", json!({ "customApiKey": "sk-ant-2b", "apiKey": "sk-ant-2" }));
    assert_eq!(home.find().anthropic.unwrap().secret.expose(), "sk-ant-2");
    home.json(".claude.json.api", json!({ "primaryApiKey": "no key", "apiKey": "sk-ant-1" }));
    assert_eq!(home.find().anthropic.unwrap().secret.expose(), "sk-ant-1");
}

#[test]
fn a_login_of_claude_is_used_until_it_expires() {
    for file in [".claude/.credentials.json", ".claude-oauth-credentials.json"] {
        let mut home = TestHome::new();
        let login =
            |expiry: serde_json::Value| json!({ "claudeAiOauth": { "accessToken": "login", "expiresAt": expiry } });
        for valid in [json!(null), json!("2999-01-01T00:00:00Z"), json!(32_472_144_000_000_u64)] {
            home.json(file, login(valid));
            assert_eq!(
                describe(home.find().anthropic.as_ref()),
                some("login", CredentialKind::Oauth, CredentialOrigin::Claude)
            );
        }
        for over in [json!("2024-01-01T00:00:00Z"), json!(1_700_000_000_000_u64)] {
            home.json(file, login(over));
            assert_eq!(home.find().anthropic, None);
        }
        home.json(file, login(json!(null)));
        home.oauth = false;
        assert_eq!(home.find().anthropic, None);
    }
}

#[test]
fn an_expired_login_does_not_hide_the_next_one() {
    let home = TestHome::new();
    home.json(".claude/.credentials.json", json!({ "claudeAiOauth": { "accessToken": "old", "expiresAt": 1 } }));
    home.json(".claude-oauth-credentials.json", json!({ "claudeAiOauth": { "accessToken": "new" } }));
    assert_eq!(home.find().anthropic.unwrap().secret.expose(), "new");
}

#[test]
fn a_login_that_claude_can_refresh_is_used_and_not_overridden() {
    let home = TestHome::new();
    home.json(".local/share/opencode/auth.json", json!({ "anthropic": { "type": "api", "key": "another" } }));
    let login =
        |refresh: &str| json!({ "claudeAiOauth": { "accessToken": "old", "expiresAt": 1, "refreshToken": refresh } });
    home.json(".claude/.credentials.json", login(" "));
    assert_eq!(home.find().anthropic.unwrap().origin, CredentialOrigin::OpenCode);
    home.json(".claude/.credentials.json", login("renews"));
    let found = home.find();
    assert_eq!(describe(found.anthropic.as_ref()), some("old", CredentialKind::Oauth, CredentialOrigin::Claude));
    assert!(found.available(AgentId::Claude));
    assert_eq!(found.environment(AgentId::Claude), []);
}

//= agents.credentials.claude-code-anthropic-api
//= agents.credentials.keys-reach-agents-environment
#[test]
fn files_of_amp_precede_those_of_claude() {
    let home = TestHome::new();
    home.json(".claude.json", json!({ "primaryApiKey": KEY }));
    home.json(".amp/config.json", json!({ "auth": { "anthropicApiKey": "of-amp" } }));
    let found = home.find();
    assert_eq!(describe(found.anthropic.as_ref()), some("of-amp", CredentialKind::ApiKey, CredentialOrigin::Amp));
    let expected = pairs(&[("ANTHROPIC_API_KEY", "of-amp"), ("CLAUDE_API_KEY", "of-amp")]);
    assert_eq!(found.environment(AgentId::Claude), expected);
}

#[test]
fn every_field_of_amp_is_searched_but_its_own_token_is_ignored() {
    let nested = ["anthropicApiKey", "apiKey", "token"].map(|key| json!({ "auth": { key: KEY } }));
    let own = ["apiKey", "token"].map(|key| json!({ "anthropic": { key: KEY } }));
    let flat = ["anthropicApiKey", "anthropic_api_key", "apiKey", "api_key", "accessToken", "access_token", "token"]
        .map(|key| json!({ key: KEY }));
    for config in nested.into_iter().chain(own).chain(flat) {
        let home = TestHome::new();
        home.json(".amp/config.json", config.clone());
        assert_eq!(
            describe(home.find().anthropic.as_ref()),
            some(KEY, CredentialKind::ApiKey, CredentialOrigin::Amp),
            "{config}"
        );
    }
    let home = TestHome::new();
    home.json(".amp/config.json", json!({ "accessToken": "sgamp_user_1", "token": "sgamp_user_2" }));
    assert_eq!(home.find().anthropic, None);
}

#[test]
fn codex_uses_a_key_or_a_login_of_its_file() {
    let mut home = TestHome::new();
    let both = json!({ "OPENAI_API_KEY": "key", "tokens": { "access_token": "login" } });
    home.json(".codex/auth.json", both);
    assert_eq!(describe(home.find().openai.as_ref()), some("key", CredentialKind::ApiKey, CredentialOrigin::Codex));
    home.json(".codex/auth.json", json!({ "OPENAI_API_KEY": null, "tokens": { "access_token": "login" } }));
    let found = home.find();
    assert_eq!(describe(found.openai.as_ref()), some("login", CredentialKind::Oauth, CredentialOrigin::Codex));
    assert!(found.available(AgentId::Codex));
    assert_eq!(found.environment(AgentId::Codex), []);
    home.oauth = false;
    assert_eq!(home.find().openai, None);
}

//= agents.credentials.claude-code-anthropic-api
//= agents.credentials.codex-openai-api-key
//= agents.credentials.keys-reach-agents-environment
#[test]
fn opencode_is_searched_last_and_has_other_providers() {
    let home = TestHome::new();
    home.json(
        ".local/share/opencode/auth.json",
        json!({
            "anthropic": { "type": "oauth", "access": "login", "expires": 32_472_144_000_000_u64 },
            "openai": { "type": "api", "key": "key" },
            "old": { "type": "oauth", "access": "over", "expires": 1_700_000_000_000_u64 },
            "groq": { "type": "api", "key": "another" },
            "broken": 7,
        }),
    );
    let found = home.find();
    let expected = pairs(&[("CLAUDE_CODE_OAUTH_TOKEN", "login"), ("ANTHROPIC_AUTH_TOKEN", "login")]);
    assert_eq!(found.environment(AgentId::Claude), expected);
    let expected = pairs(&[("OPENAI_API_KEY", "key"), ("CODEX_API_KEY", "key")]);
    assert_eq!(found.environment(AgentId::Codex), expected);
    assert_eq!(found.other.keys().collect::<Vec<_>>(), ["groq"]);
    home.json(".codex/auth.json", json!({ "OPENAI_API_KEY": "first" }));
    assert_eq!(home.find().openai.unwrap().secret.expose(), "first");
}

#[test]
fn codex_cannot_use_an_openai_login_of_another_tool() {
    let home = TestHome::new();
    home.json(".local/share/opencode/auth.json", json!({ "openai": { "type": "oauth", "access": "login" } }));
    let found = home.find();
    assert!(found.openai.is_some());
    assert!(!found.available(AgentId::Codex));
    assert_eq!(found.environment(AgentId::Codex), []);
}

#[test]
fn agent_directories_are_configurable() {
    let mut home = TestHome::new();
    let elsewhere = home.path().join("elsewhere");
    home.json("elsewhere/.claude.json", json!({ "primaryApiKey": KEY }));
    home.json("elsewhere/auth.json", json!({ "OPENAI_API_KEY": "moved" }));
    home.json(".codex/auth.json", json!({ "OPENAI_API_KEY": "not asked" }));
    let elsewhere = elsewhere.to_str().unwrap().to_owned();
    home.set("CLAUDE_CONFIG_DIR", &elsewhere).set("CODEX_HOME", &elsewhere);
    let found = home.find();
    assert_eq!(found.anthropic.unwrap().secret.expose(), KEY);
    assert_eq!(found.openai.unwrap().secret.expose(), "moved");
}

#[test]
fn a_bad_file_is_skipped() {
    let deep = "[".repeat(100_000);
    for content in [deep.as_bytes(), b"", b"\xff\xfe", b"[]", b"{\"primaryApiKey\":7}", b"{\"apiKey\":\"\"}"] {
        let home = TestHome::new();
        home.write(".claude.json.api", content).write(".amp/config.json", content).write(".codex/auth.json", content);
        home.write(".local/share/opencode/auth.json", content).write(".claude/.credentials.json", content);
        home.json(".claude.json.nathan", json!({ "primaryApiKey": KEY }));
        assert_eq!(home.find().anthropic.unwrap().secret.expose(), KEY);
    }
}

#[test]
fn a_file_over_the_size_limit_is_ignored() {
    let home = TestHome::new();
    let mut content = format!("{{\"primaryApiKey\":\"{KEY}\"}}");
    content += &" ".repeat(32 * 1024 * 1024 - content.len());
    home.write(".claude.json", &content);
    assert_eq!(home.find().anthropic.unwrap().secret.expose(), KEY);
    home.write(".claude.json", content + " ");
    assert_eq!(home.find().anthropic, None);
}

#[test]
fn special_files_are_skipped_and_symlinks_followed() {
    let home = TestHome::new();
    let at = |name: &str| home.path().join(name);
    fs::create_dir(at(".claude.json.api")).unwrap();
    let pipe = at(".claude.json");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    fs::create_dir(at(".amp")).unwrap();
    symlink(at(".amp/config.json"), at(".amp/config.json")).unwrap();
    home.json("kept/elsewhere.json", json!({ "primaryApiKey": KEY }));
    symlink("kept/elsewhere.json", at(".claude.json.nathan")).unwrap();
    assert_eq!(home.find().anthropic.unwrap().secret.expose(), KEY);
}
