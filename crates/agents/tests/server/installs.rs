//! Sessions of agents that are not installed yet.

use std::path::Path;

use carrel_agents::install::AgentPlatform;
use serde_json::{Value, json};

use crate::{
    package::{TestPackage, archive},
    registry::TestRegistry,
    support::{TestServer, program, texts},
};

const FAKE_CLAUDE: &str = include_str!("../claude/fake_claude.py");

/// A version without a pin, so that the hash of the registry is the one that counts.
const VERSION: &str = "9.9.9";

/// The fake program, which finds its interpreter without `PATH`: there may be a real agent in it.
fn fake_claude() -> Vec<u8> {
    let print = ["-c", "import sys; print(sys.executable)"];
    let python = std::process::Command::new("python3").args(print).output().unwrap();
    let script = FAKE_CLAUDE.strip_prefix("#!/usr/bin/env python3\n").unwrap();
    format!("#!{}\n{script}", String::from_utf8(python.stdout).unwrap().trim()).into_bytes()
}

/// A server whose npm configuration names this registry.
async fn server(registry: &TestRegistry, variables: &[(&str, &str)]) -> TestServer {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join(".npmrc"), format!("@anthropic-ai:registry={}\n", registry.url())).unwrap();
    let mut command = program(&["--no-token"]);
    command.envs(variables.iter().copied());
    TestServer::run_in(home, command).await
}

async fn claude(server: &TestServer) -> Value {
    let list = server.get("/v1/agents").await.is(200);
    list["agents"].as_array().unwrap().iter().find(|agent| agent["id"] == "claude").unwrap().clone()
}

fn wanted() -> Value {
    json!({"agent": "claude", "agentVersion": VERSION})
}

//= agents.lifecycle.post-v1-sessions-id
#[tokio::test]
async fn creating_a_session_installs_its_agent_once() {
    let registry = TestRegistry::start();
    let name = format!("@anthropic-ai/claude-code-{}", AgentPlatform::current().unwrap());
    let package = TestPackage::new(&name, VERSION, archive(&[("package/claude", &fake_claude())]));
    package.publish(&registry);
    let server = server(&registry, &[]).await;
    assert_eq!(claude(&server).await["installed"], false);

    let created = server.post("/v1/sessions/s", wanted()).await.is(200);
    assert_eq!(created["healthy"], true);
    assert_eq!(registry.requests(&package.path()).len(), 1);
    let installed = claude(&server).await;
    assert_eq!((&installed["installed"], installed["version"].as_str()), (&json!(true), Some(VERSION)));
    let program = Path::new(installed["path"].as_str().unwrap());
    assert!(program.starts_with(server.home.path()), "{}", program.display());
    let turn = server.say("s", "hello").await;
    assert_eq!(texts(&turn, "assistant"), ["hello"], "the installed program does not answer: {turn:?}");

    let requests = registry.requests("").len();
    server.post("/v1/sessions/t", wanted()).await.is(200);
    server.post("/v1/sessions/u", json!({"agent": "claude"})).await.is(200);
    assert_eq!(registry.requests("").len(), requests, "an installed agent is not fetched again");
}

//= agents.lifecycle.post-v1-sessions-id
#[tokio::test]
async fn a_session_whose_agent_cannot_be_installed_is_not_created() {
    let registry = TestRegistry::start();
    let server = server(&registry, &[]).await;
    let problem = server.post("/v1/sessions/s", wanted()).await.refuses(500, "install_failed");
    assert_eq!(problem["agent"], "claude");
    assert!(problem["detail"].as_str().unwrap().contains(VERSION), "{problem}");
    assert!(!registry.requests(VERSION).is_empty());
    server.get("/v1/sessions/s").await.refuses(404, "session_not_found");
    server.create("s").await;
}

//= agents.lifecycle.post-v1-sessions-id
#[tokio::test]
async fn an_agent_that_must_be_preinstalled_is_not_fetched() {
    let registry = TestRegistry::start();
    let server = server(&registry, &[("SANDBOX_AGENT_REQUIRE_PREINSTALL", "1")]).await;
    for agent in ["claude", "codex"] {
        let problem = server.post("/v1/sessions/s", json!({"agent": agent})).await.refuses(404, "agent_not_installed");
        assert_eq!(problem["agent"], agent);
        let problem = server.get(&format!("/v1/agents/{agent}/models")).await.refuses(404, "agent_not_installed");
        assert_eq!(problem["agent"], agent);
    }
    assert_eq!(registry.requests("").len(), 0);
    server.get("/v1/sessions/s").await.refuses(404, "session_not_found");
}
