//! Agents that are not installed.

use serde_json::{Value, json};

use crate::support::TestServer;

//= agents.modes-capabilities.claude-code-codex-fixed
#[tokio::test]
async fn all_agents_are_listed_whether_installed_or_not() {
    let server = TestServer::start().await;
    let list = server.get("/v1/agents").await.is(200);
    let agents = list["agents"].as_array().unwrap();
    assert_eq!(agents.iter().map(|agent| &agent["id"]).collect::<Vec<_>>(), ["claude", "codex", "mock"]);
    assert_eq!(agents.iter().map(|agent| &agent["installed"]).collect::<Vec<_>>(), [false, false, true]);
    assert!(agents.iter().all(|agent| agent["capabilities"]["permissions"] == true));
    for agent in ["claude", "codex", "mock"] {
        let modes = server.get(&format!("/v1/agents/{agent}/modes")).await.is(200);
        let ids: Vec<_> = modes["modes"].as_array().unwrap().iter().map(|mode| &mode["id"]).collect();
        assert_eq!(ids, ["build", "plan"]);
    }
}

#[tokio::test]
async fn the_models_of_an_agent_are_listed() {
    let server = TestServer::start().await;
    let models = server.get("/v1/agents/mock/models").await.is(200);
    assert_eq!(models["defaultModel"], "mock");
    assert_eq!(models["models"][0]["variants"], json!(["fast", "slow"]));
    assert_eq!((models["models"][1]["id"].as_str(), models["models"][1].get("variants")), (Some("mock-plain"), None));
}

#[tokio::test]
async fn unsupported_modes_are_rejected_before_the_agent_is_installed() {
    let server = TestServer::start().await;
    let create = async |wanted: Value| server.post("/v1/sessions/s", wanted).await;
    for agent in ["claude", "codex", "mock"] {
        let wanted = json!({"agent": agent, "agentMode": "fly"});
        assert_eq!(create(wanted).await.refuses(400, "mode_not_supported")["agent"], agent);
        create(json!({"agent": agent, "permissionMode": "yolo"})).await.refuses(400, "invalid_request");
    }
    // Plan is a permission mode of Claude Code, so another one conflicts with it.
    for mode in ["default", "bypass"] {
        let wanted = json!({"agent": "claude", "agentMode": "plan", "permissionMode": mode});
        create(wanted).await.refuses(400, "invalid_request");
    }
    server.get("/v1/sessions/s").await.refuses(404, "session_not_found");
}
