//! Conversations with a fake program that follows the prompts.

use std::{future::Future, path::Path, time::Duration};

use carrel_agents::{
    agent::{
        AgentDriver, AgentError, AgentEvent, AgentMode, AgentProgram, Conversation, ConversationOptions,
        PermissionMode, Prompt, UserAnswer,
    },
    child,
    claude::Claude,
    schema::PermissionReply,
};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use serde_json::{Value, json};

use crate::support::rendered;

/// Watchdog of every test.
const WATCHDOG: Duration = Duration::from_secs(60);

fn run(test: impl Future<Output = ()>) {
    child::set_guard_program(env!("CARGO_BIN_EXE_sandbox-agent"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, test).await.expect("the test hangs") });
}

fn options() -> ConversationOptions {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/claude/fake_claude.py");
    ConversationOptions {
        program: AgentProgram { path, directory: "/".into(), ..AgentProgram::default() },
        ..ConversationOptions::default()
    }
}

/// A conversation with its events.
struct ClaudeSession {
    conversation: Box<dyn Conversation>,
    events: Vec<Value>,
}

impl ClaudeSession {
    async fn open(options: ConversationOptions) -> Self {
        // On a busy machine a change takes long, and the watchdog is what ends a test.
        Self::open_with(Claude::default().with_change_timeout(WATCHDOG), options).await
    }

    async fn open_with(claude: Claude, options: ConversationOptions) -> Self {
        Self { conversation: claude.open(options).await.unwrap(), events: Vec::new() }
    }

    /// With a program that is running: it may take longer to start than to respond.
    async fn ready(options: ConversationOptions) -> Self {
        let mut session = Self::open(options).await;
        while session.events.is_empty() {
            let mut events = Vec::new();
            session.conversation.next(&mut events).await;
            session.events.extend(events.iter().map(rendered));
        }
        session
    }

    async fn prompt(&mut self, text: &str) {
        self.conversation.prompt(&Prompt { id: "p".into(), text: text.into() }).await.unwrap();
    }

    /// Waits for an event of this name.
    async fn until(&mut self, name: &str) -> Value {
        loop {
            if let Some(at) = self.events.iter().position(|event| event.get(name).is_some()) {
                let found = self.events.remove(at);
                return found[name].clone();
            }
            let mut events = Vec::new();
            self.conversation.next(&mut events).await;
            self.events.extend(events.iter().map(rendered));
            let gone = events.iter().any(|event| matches!(event, AgentEvent::Exited(_)));
            assert!(!gone || name == "exited", "gone before {name}: {:#?}", self.events);
        }
    }

    /// Waits until the program reports what it received.
    async fn next_received(&mut self) -> Value {
        self.until("raw").await["message"].clone()
    }

    async fn answer(&mut self, answer: UserAnswer) {
        self.conversation.answer("asked", answer).await.unwrap();
    }

    async fn ended(&mut self) -> Value {
        self.until("turnEnded").await["outcome"].clone()
    }
}

//= agents.communication-patterns.subprocess-flags-lines-json
#[test]
fn a_turn_is_reported_from_start_to_end() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        let id = session.conversation.native_id().unwrap();
        session.prompt("hello").await;
        assert_eq!(session.until("nativeId").await, id);
        assert_eq!(session.until("started").await["message"], "system.init");
        assert_eq!(session.until("message").await["parts"], json!([{"type": "text", "text": "hello"}]));
        assert_eq!(session.ended().await, "completed");
        assert!(!session.events.contains(&json!("turnStarted")), "the session tells of turns that it prompted");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_permission_request_accepts_every_reply() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        let rule = json!([{"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch *"}],
            "behavior": "allow", "destination": "session"}]);
        let input = json!({"command": "touch a"});
        let allowed = json!({"behavior": "allow", "updatedInput": input});
        let allowed_always = json!({"behavior": "allow", "updatedInput": input, "updatedPermissions": rule});
        for (reply, words, response) in [
            (PermissionReply::Once, None, allowed),
            (PermissionReply::Always, None, allowed_always),
            (PermissionReply::Reject, None, json!({"behavior": "deny", "message": "Permission denied."})),
            (PermissionReply::Reject, Some("not now".to_owned()), json!({"behavior": "deny", "message": "not now"})),
        ] {
            session.prompt("permission").await;
            let requested = session.until("permissionAsked").await;
            assert_eq!(requested["permission"], "Bash");
            assert_eq!(requested["patterns"], json!(["touch a"]));
            assert_eq!(requested["always"], json!(["Bash(touch *)"]));
            assert_eq!(requested["tool"], json!({"messageId": "m", "callId": "t"}));
            session.answer(UserAnswer::Permission(reply, words)).await;
            assert_eq!(
                session.next_received().await["response"],
                json!({"subtype": "success", "request_id": "asked", "response": response})
            );
            assert_eq!(session.ended().await, "completed");
        }
        let again = session.conversation.answer("asked", UserAnswer::Permission(PermissionReply::Once, None)).await;
        assert!(matches!(again, Err(AgentError::Unsupported(_))), "{again:?}");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn questions_are_answered_or_rejected() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("question").await;
        let requested = session.until("questionAsked").await;
        assert_eq!(requested["questions"][0]["question"], "Which?");
        assert_eq!(requested["questions"][0]["multiSelect"], true);
        assert_eq!(requested["questions"][0]["custom"], true);
        session.answer(UserAnswer::Question(vec![vec!["red".into(), "green".into()]])).await;
        let response = session.next_received().await["response"]["response"].clone();
        assert_eq!(response["updatedInput"]["answers"], json!({"Which?": "red, green"}));
        session.ended().await;
        session.prompt("question").await;
        session.until("questionAsked").await;
        session.answer(UserAnswer::QuestionRejected).await;
        assert_eq!(session.next_received().await["response"]["response"]["behavior"], "deny");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_plan_is_read_from_its_file_and_approved_or_rejected() {
    run(async {
        let settings = tempfile::tempdir().unwrap();
        let plan = settings.path().join("plans/plan.md");
        std::fs::create_dir(settings.path().join("plans")).unwrap();
        std::fs::write(&plan, "1. Do it.").unwrap();
        let mut options = options();
        let environment = [("FAKE_PLAN", plan.as_path()), ("CLAUDE_CONFIG_DIR", settings.path())];
        let environment = environment.map(|(name, path)| (name.to_owned(), path.to_str().unwrap().to_owned()));
        options.program.environment.extend(environment);
        options.agent_mode = AgentMode::Plan;
        let mut session = ClaudeSession::open(options).await;
        session.prompt("plan").await;
        let requested = session.until("questionAsked").await;
        assert_eq!(requested["questions"][0]["question"], "Approve plan execution?\n\n1. Do it.");
        session.answer(UserAnswer::Question(vec![vec!["use tabs".into()]])).await;
        let response = session.next_received().await["response"]["response"].clone();
        assert_eq!(response, json!({"behavior": "deny", "message": "use tabs"}));
        session.ended().await;
        session.prompt("plan").await;
        session.until("questionAsked").await;
        session.answer(UserAnswer::Question(vec![vec!["approve".into()]])).await;
        let response = session.next_received().await["response"]["response"].clone();
        let mode = json!([{"type": "setMode", "mode": "default", "destination": "session"}]);
        assert_eq!(response["updatedPermissions"], mode);
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn an_interrupt_withdraws_requests_and_the_conversation_continues() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("wait").await;
        session.until("permissionAsked").await;
        session.conversation.interrupt().await.unwrap();
        assert_eq!(session.until("withdrawn").await, "asked");
        assert_eq!(session.ended().await, "interrupted");
        session.prompt("hello").await;
        assert_eq!(session.ended().await, "completed");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_turn_without_a_prompt_is_reported() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("background").await;
        session.ended().await;
        session.ended().await;
        assert_eq!(session.events.iter().filter(|event| **event == json!("turnStarted")).count(), 1);
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn an_unreported_turn_is_merged_into_the_next_prompts() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("busy").await;
        session.ended().await;
        session.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Plan).await.unwrap();
        session.events.clear();
        session.prompt("hello").await;
        session.ended().await;
        assert!(!session.events.contains(&json!("turnStarted")));
        let output: Vec<_> = session.events.iter().filter_map(|event| event.get("message")).collect();
        let output: Vec<_> = output.iter().map(|message| &message["parts"][0]["text"]).collect();
        assert_eq!(output, ["by myself", "hello"]);
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn changing_mode_and_model_during_a_turn_loses_no_events() {
    run(async {
        let mut session = ClaudeSession::ready(options()).await;
        session.conversation.set_permission_mode(AgentMode::Build, PermissionMode::AcceptEdits).await.unwrap();
        assert_eq!(session.next_received().await, json!({"subtype": "set_permission_mode", "mode": "acceptEdits"}));
        session.conversation.set_permission_mode(AgentMode::Plan, PermissionMode::Default).await.unwrap();
        assert_eq!(session.next_received().await["mode"], "plan");
        session.conversation.set_model(Some("small"), Some("high")).await.unwrap();
        assert_eq!(session.next_received().await["model"], "small");
        assert_eq!(session.next_received().await["settings"], json!({"effortLevel": "high"}));
        let about = |event: &Value| event["notice"]["details"]["about"].clone();
        let events: Vec<_> = session.events.iter().map(about).filter(|about| !about.is_null()).collect();
        let all = ["initialize", "set_permission_mode", "set_permission_mode", "set_model", "apply_flag_settings"];
        assert_eq!(events, all);
        // Only the changed setting is sent.
        session.events.clear();
        session.conversation.set_model(Some("small"), None).await.unwrap();
        assert_eq!(session.next_received().await["settings"], json!({"effortLevel": null}));
        session.conversation.set_model(Some("large"), None).await.unwrap();
        assert_eq!(session.next_received().await["model"], "large");
        assert!(!session.events.iter().any(|event| event.get("raw").is_some()), "{:#?}", session.events);
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_rejected_change_is_an_error_with_the_agents_message() {
    run(async {
        let mut session = ClaudeSession::ready(options()).await;
        let refused = session.conversation.set_model(Some("no-such-model"), None).await.unwrap_err();
        assert_eq!(refused.to_string(), "the agent refused set_model: there is no such model");
        let bypass = session.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Bypass).await;
        assert!(matches!(bypass, Err(AgentError::Unsupported(_))), "{bypass:?}");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;

        let permission_mode = PermissionMode::Bypass;
        let mut session = ClaudeSession::ready(ConversationOptions { permission_mode, ..options() }).await;
        session.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Default).await.unwrap();
        session.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Bypass).await.unwrap();
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_flood_instead_of_a_response_is_an_error() {
    run(async {
        let mut session = ClaudeSession::ready(options()).await;
        let refused = session.conversation.set_model(Some("flood"), Some("high")).await.unwrap_err();
        assert!(refused.to_string().contains("more than 16777216 bytes"), "{refused}");
        session.conversation.close(Duration::ZERO, &mut Vec::new()).await;
    });
}

#[test]
fn a_change_without_a_response_is_an_error_when_its_time_is_up() {
    run(async {
        let mut session =
            ClaudeSession::open_with(Claude::default().with_change_timeout(Duration::ZERO), options()).await;
        let refused = session.conversation.set_model(Some("silent"), None).await.unwrap_err();
        assert!(matches!(refused, AgentError::Timeout { request: "set_model", .. }), "{refused:?}");
        session.conversation.close(Duration::ZERO, &mut Vec::new()).await;
    });
}

#[test]
fn a_permission_request_with_a_lone_surrogate_is_reported() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("half").await;
        assert_eq!(session.until("permissionAsked").await["patterns"], json!(["echo \u{fffd}"]));
        session.answer(UserAnswer::Permission(PermissionReply::Once, None)).await;
        assert_eq!(session.ended().await, "completed");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_program_that_closes_its_output_and_keeps_running_is_killed() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("silence").await;
        assert_eq!(session.until("exited").await[1], 9);
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn open_items_are_interrupted_at_the_end() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("permission").await;
        session.until("permissionAsked").await;
        let mut last = Vec::new();
        session.conversation.close(Duration::from_secs(2), &mut last).await;
        let last: Vec<_> = last.iter().map(rendered).collect();
        assert_eq!(last.last().unwrap()["itemCompleted"]["status"], "interrupted", "{last:#?}");
    });
}

#[test]
fn a_crash_in_the_middle_of_a_line_is_reported_and_interrupts_open_items() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("die").await;
        let exit = session.until("exited").await;
        assert_eq!(exit, json!([3, null, "out of credits\n"]));
        let item = session.until("itemCompleted").await;
        assert_eq!(item["status"], "interrupted");
        let torn = session.events.iter().any(|event| event["message"]["raw"] == "{\"type\":\"assis");
        assert!(torn, "{:#?}", session.events);
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn resuming_an_unknown_conversation_reports_the_agents_error() {
    run(async {
        let native_id = Some("unknown".to_owned());
        let mut session = ClaudeSession::open(ConversationOptions { native_id, resumable: true, ..options() }).await;
        let exit = session.until("exited").await;
        assert_eq!(exit, json!([1, null, "No conversation found with session ID: unknown"]));
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn an_unsupported_request_is_declined() {
    run(async {
        let mut session = ClaudeSession::open(options()).await;
        session.prompt("elicit").await;
        assert_eq!(session.next_received().await["response"]["response"], json!({"action": "decline"}));
        assert_eq!(session.ended().await, "completed");
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

//= agents.communication-patterns.terminated-turn-complete-session
#[test]
fn closing_a_conversation_leaves_no_process() {
    run(async {
        let native_id = Some("0000".to_owned());
        let mut session = ClaudeSession::open(ConversationOptions { native_id, resumable: true, ..options() }).await;
        session.prompt("self").await;
        let program = session.next_received().await;
        assert!(program["arguments"].as_array().unwrap().contains(&json!("--resume=0000")), "{program}");
        let process = format!("/proc/{}", program["pid"]);
        assert!(Path::new(&process).exists());
        session.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert!(!Path::new(&process).exists());
    });
}

#[test]
fn a_failed_spawn_is_an_error() {
    run(async {
        let program =
            AgentProgram { path: "/no/such/program".into(), directory: "/".into(), ..AgentProgram::default() };
        let error = Claude::default()
            .open(ConversationOptions { program, ..ConversationOptions::default() })
            .await
            .err()
            .unwrap();
        assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
    });
}

#[test]
fn models_are_cached_until_the_program_changes() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let (path, starts) = (directory.path().join("claude"), directory.path().join("starts"));
        // Not written by this process: a concurrent fork would keep it open for writing, and it could not be executed.
        let copied = std::process::Command::new("cp").arg(options().program.path).arg(&path).status().unwrap();
        assert!(copied.success());
        let environment = vec![("FAKE_STARTS".to_owned(), starts.to_str().unwrap().to_owned())];
        let program = AgentProgram { path: path.clone(), environment, directory: directory.path().into() };
        let started = || std::fs::read_to_string(&starts).unwrap().lines().count();
        let claude = Claude::default();
        let (models, same) = tokio::join!(claude.models(&program), claude.models(&program));
        assert_eq!(models.as_ref().unwrap().default_model.as_deref(), Some("default"));
        assert_eq!(models.unwrap(), same.unwrap());
        assert_eq!(started(), 1);
        let epoch = Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = Timestamps { last_access: epoch, last_modification: epoch };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        assert_eq!(claude.models(&program).await.unwrap().models.len(), 2);
        assert_eq!(started(), 2);
    });
}
