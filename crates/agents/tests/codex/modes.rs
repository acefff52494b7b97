//! Modes and models, as the app-server receives them.

use std::{fs, os::unix::fs::symlink, time::Duration};

use carrel_agents::{
    agent::{AgentDriver, AgentEvent, AgentMode, ConversationOptions, PermissionMode, UserAnswer},
    schema::{EventData, PermissionReply},
};
use serde_json::{Value, json};

use crate::support::{CodexFixture, TestConversation, on_one_thread};

async fn params(conversation: &mut TestConversation) -> Value {
    serde_json::from_str(&conversation.turn("params").await[0]).unwrap()
}

//= agents.execution-models.thread-start-session-turn
#[test]
fn a_turn_starts_with_the_sessions_mode_and_model() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        let reported = params(&mut conversation).await;
        let thread = conversation.conversation.native_id();
        assert_eq!(reported["threadId"].as_str(), thread.as_deref());
        assert_eq!(reported["approvalPolicy"], "untrusted");
        assert_eq!(reported["sandboxPolicy"], json!({"type": "dangerFullAccess"}));
        assert_eq!((&reported["model"], &reported["effort"]), (&json!("two"), &json!("low")));
        assert!(reported.get("collaborationMode").is_none());

        conversation.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Bypass).await.unwrap();
        conversation.conversation.set_model(Some("one"), Some("high")).await.unwrap();
        let reported = params(&mut conversation).await;
        assert_eq!(reported["approvalPolicy"], "never");
        assert_eq!((&reported["model"], &reported["effort"]), (&json!("one"), &json!("high")));

        conversation.conversation.set_permission_mode(AgentMode::Plan, PermissionMode::Default).await.unwrap();
        let reported = params(&mut conversation).await;
        assert_eq!(reported["approvalPolicy"], "untrusted");
        assert_eq!(reported["collaborationMode"]["mode"], "plan");
        assert_eq!(reported["collaborationMode"]["settings"]["model"], "one");
        assert_eq!(reported["collaborationMode"]["settings"]["reasoning_effort"], "high");

        conversation.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Default).await.unwrap();
        conversation.conversation.set_model(None, None).await.unwrap();
        let reported = params(&mut conversation).await;
        assert_eq!(reported["collaborationMode"]["mode"], "default");
        assert_eq!((&reported["model"], &reported["effort"]), (&json!("two"), &json!("low")));
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn without_a_plan_mode_the_prompt_asks_for_a_plan() {
    on_one_thread(async {
        let mut fixture = CodexFixture::new();
        fixture.environment.push(("NO_PLANS".to_owned(), String::new()));
        let mut conversation =
            fixture.open_with(ConversationOptions { agent_mode: AgentMode::Plan, ..fixture.options() }).await;
        let output = conversation.turn("params").await;
        // The prompt was extended, but it is still recognized, so it is not logged again.
        assert_eq!(output.len(), 1);
        assert!(output[0].ends_with("params"), "{output:?}");
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.credentials.keys-reach-agents-environment
#[test]
fn the_first_session_provides_the_environment() {
    on_one_thread(async {
        let mut fixture = CodexFixture::new();
        fixture.environment.push(("A_KEY".to_owned(), "the value".to_owned()));
        let mut conversation = fixture.open().await;
        assert_eq!(conversation.turn("variable A_KEY").await, ["the value"]);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

/// What happens to a patch: decided by the mode, or reported as a request.
async fn patch(conversation: &mut TestConversation, path: &str) -> String {
    conversation.prompt(&format!("patch {path}")).await;
    let decided = |event| match event {
        AgentEvent::PermissionAsked(request, _) => Some(Err(request)),
        AgentEvent::Event(EventData::Notice(notice), _) if notice.label == "item/fileChange/requestApproval" => {
            Some(Ok(()))
        }
        _ => None,
    };
    let requested = conversation.find(decided).await;
    if let Err(request) = &requested {
        assert_eq!((request.permission.as_str(), &request.patterns), ("fileChange", &vec![path.to_owned()]));
        assert_eq!(request.metadata["changes"][0]["diff"], "x\n");
        let answer = UserAnswer::Permission(PermissionReply::Once, None);
        conversation.conversation.answer(&request.id, answer).await.unwrap();
    }
    let output: Value = serde_json::from_str(&conversation.messages().await[0]).unwrap();
    let decision = output["result"]["decision"].as_str().unwrap().to_owned();
    if requested.is_err() { "asked".to_owned() } else { decision }
}

//= agents.modes-capabilities.permission-modes-default-plan
#[test]
fn edits_are_accepted_only_in_the_directory_and_never_in_plan_mode() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (inside, outside) = (fixture.directory().join("project"), fixture.directory().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink(outside.join("missing"), inside.join("dangling")).unwrap();
        let mut options = fixture.options();
        options.program.directory.clone_from(&inside);
        let mut conversation = fixture.open_with(options).await;
        let path = |name: &str| inside.join(name).display().to_string();
        assert_eq!(patch(&mut conversation, &path("new/file")).await, "asked");

        conversation.conversation.set_permission_mode(AgentMode::Build, PermissionMode::AcceptEdits).await.unwrap();
        assert_eq!(patch(&mut conversation, &path("new/file")).await, "accept");
        assert_eq!(patch(&mut conversation, "file").await, "accept");
        let names = ["link/file", "../file", "new/../../file", "dangling", "dangling/file"];
        for leads_out in names.map(path).into_iter().chain([outside.display().to_string()]) {
            assert_eq!(patch(&mut conversation, &leads_out).await, "asked", "{leads_out}");
        }

        conversation.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Plan).await.unwrap();
        assert_eq!(patch(&mut conversation, &path("new/file")).await, "decline");
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}
