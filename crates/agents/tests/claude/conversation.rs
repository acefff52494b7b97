//! Conversations, with a program that does as the prompts say.

use std::{future::Future, path::Path, time::Duration};

use carrel_agents::{
    agent::{Agent, AgentError, AgentMode, Answer, Conversation, Fact, Opening, PermissionMode, Place, Prompt},
    child,
    claude::Claude,
    schema::PermissionReply,
};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use serde_json::{Value, json};

use crate::support::rendered;

/// Whoever waits longer hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

fn run(test: impl Future<Output = ()>) {
    child::set_guard_program(env!("CARGO_BIN_EXE_sandbox-agent"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, test).await.expect("the test hangs") });
}

fn opening() -> Opening {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/claude/fake.py");
    Opening { place: Place { program, directory: "/".into(), ..Place::default() }, ..Opening::default() }
}

/// A conversation, and what was told in it.
struct Talk {
    conversation: Box<dyn Conversation>,
    told: Vec<Value>,
}

impl Talk {
    async fn open(opening: Opening) -> Self {
        Self { conversation: Claude::default().open(opening).await.unwrap(), told: Vec::new() }
    }

    async fn prompt(&mut self, text: &str) {
        self.conversation.prompt(&Prompt { id: "p".into(), text: text.into() }).await.unwrap();
    }

    /// Waits until something of this name is told.
    async fn until(&mut self, name: &str) -> Value {
        loop {
            if let Some(at) = self.told.iter().position(|fact| fact.get(name).is_some()) {
                let found = self.told.remove(at);
                return found[name].clone();
            }
            let mut facts = Vec::new();
            self.conversation.next(&mut facts).await;
            self.told.extend(facts.iter().map(rendered));
            let gone = facts.iter().any(|fact| matches!(fact, Fact::Gone(_)));
            assert!(!gone || name == "exited", "gone before {name}: {:#?}", self.told);
        }
    }

    /// Waits until the program tells back what it was told.
    async fn heard(&mut self) -> Value {
        self.until("raw").await["message"].clone()
    }

    async fn answer(&mut self, answer: Answer) {
        self.conversation.answer("asked", answer).await.unwrap();
    }

    async fn ended(&mut self) -> Value {
        self.until("turnEnded").await["outcome"].clone()
    }
}

//= agents.communication-patterns.subprocess-flags-lines-json
#[test]
fn a_turn_is_told_from_its_beginning_to_its_end() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        let id = talk.conversation.native_id().unwrap();
        talk.prompt("hello").await;
        assert_eq!(talk.until("nativeId").await, id);
        assert_eq!(talk.until("started").await["message"], "system.init");
        assert_eq!(talk.until("message").await["parts"], json!([{"type": "text", "text": "hello"}]));
        assert_eq!(talk.ended().await, "completed");
        assert!(!talk.told.contains(&json!("turnStarted")), "the session tells of turns that it prompted");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_permission_is_answered_each_way() {
    run(async {
        let mut talk = Talk::open(opening()).await;
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
            talk.prompt("permission").await;
            let asked = talk.until("permissionAsked").await;
            assert_eq!(asked["permission"], "Bash");
            assert_eq!(asked["patterns"], json!(["touch a"]));
            assert_eq!(asked["always"], json!(["Bash(touch *)"]));
            assert_eq!(asked["tool"], json!({"messageId": "m", "callId": "t"}));
            talk.answer(Answer::Permission(reply, words)).await;
            assert_eq!(
                talk.heard().await["response"],
                json!({"subtype": "success", "request_id": "asked", "response": response})
            );
            assert_eq!(talk.ended().await, "completed");
        }
        let again = talk.conversation.answer("asked", Answer::Permission(PermissionReply::Once, None)).await;
        assert!(matches!(again, Err(AgentError::Unsupported(_))), "{again:?}");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_question_is_answered_or_not() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("question").await;
        let asked = talk.until("questionAsked").await;
        assert_eq!(asked["questions"][0]["question"], "Which?");
        assert_eq!(asked["questions"][0]["multiSelect"], true);
        assert_eq!(asked["questions"][0]["custom"], true);
        talk.answer(Answer::Question(vec![vec!["red".into(), "green".into()]])).await;
        let response = talk.heard().await["response"]["response"].clone();
        assert_eq!(response["updatedInput"]["answers"], json!({"Which?": "red, green"}));
        talk.ended().await;
        talk.prompt("question").await;
        talk.until("questionAsked").await;
        talk.answer(Answer::QuestionRejected).await;
        assert_eq!(talk.heard().await["response"]["response"]["behavior"], "deny");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_plan_is_read_from_its_file_and_approved_or_not() {
    run(async {
        let settings = tempfile::tempdir().unwrap();
        let plan = settings.path().join("plans/plan.md");
        std::fs::create_dir(settings.path().join("plans")).unwrap();
        std::fs::write(&plan, "1. Do it.").unwrap();
        let mut opening = opening();
        let environment = [("FAKE_PLAN", plan.as_path()), ("CLAUDE_CONFIG_DIR", settings.path())];
        let environment = environment.map(|(name, path)| (name.to_owned(), path.to_str().unwrap().to_owned()));
        opening.place.environment.extend(environment);
        opening.agent_mode = AgentMode::Plan;
        let mut talk = Talk::open(opening).await;
        talk.prompt("plan").await;
        let asked = talk.until("questionAsked").await;
        assert_eq!(asked["questions"][0]["question"], "Approve plan execution?\n\n1. Do it.");
        talk.answer(Answer::Question(vec![vec!["use tabs".into()]])).await;
        let response = talk.heard().await["response"]["response"].clone();
        assert_eq!(response, json!({"behavior": "deny", "message": "use tabs"}));
        talk.ended().await;
        talk.prompt("plan").await;
        talk.until("questionAsked").await;
        talk.answer(Answer::Question(vec![vec!["approve".into()]])).await;
        let response = talk.heard().await["response"]["response"].clone();
        let mode = json!([{"type": "setMode", "mode": "default", "destination": "session"}]);
        assert_eq!(response["updatedPermissions"], mode);
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn an_interrupt_withdraws_what_was_asked_and_the_conversation_goes_on() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("wait").await;
        talk.until("permissionAsked").await;
        talk.conversation.interrupt().await.unwrap();
        assert_eq!(talk.until("withdrawn").await, "asked");
        assert_eq!(talk.ended().await, "interrupted");
        talk.prompt("hello").await;
        assert_eq!(talk.ended().await, "completed");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_turn_that_nobody_prompted_is_told() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("background").await;
        talk.ended().await;
        talk.ended().await;
        assert_eq!(talk.told.iter().filter(|fact| **fact == json!("turnStarted")).count(), 1);
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_turn_that_nobody_has_heard_of_becomes_part_of_the_next_prompts() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("busy").await;
        talk.ended().await;
        talk.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Plan).await.unwrap();
        talk.told.clear();
        talk.prompt("hello").await;
        talk.ended().await;
        assert!(!talk.told.contains(&json!("turnStarted")));
        let said: Vec<_> = talk.told.iter().filter_map(|fact| fact.get("message")).collect();
        let said: Vec<_> = said.iter().map(|message| &message["parts"][0]["text"]).collect();
        assert_eq!(said, ["by myself", "hello"]);
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn modes_and_models_change_while_it_runs_and_nothing_told_meanwhile_is_lost() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.conversation.set_permission_mode(AgentMode::Build, PermissionMode::AcceptEdits).await.unwrap();
        assert_eq!(talk.heard().await, json!({"subtype": "set_permission_mode", "mode": "acceptEdits"}));
        talk.conversation.set_permission_mode(AgentMode::Plan, PermissionMode::Default).await.unwrap();
        assert_eq!(talk.heard().await["mode"], "plan");
        talk.conversation.set_model(Some("small"), Some("high")).await.unwrap();
        assert_eq!(talk.heard().await["model"], "small");
        assert_eq!(talk.heard().await["settings"], json!({"effortLevel": "high"}));
        let about = |fact: &Value| fact["notice"]["details"]["about"].clone();
        let told: Vec<_> = talk.told.iter().map(about).filter(|about| !about.is_null()).collect();
        let all = ["initialize", "set_permission_mode", "set_permission_mode", "set_model", "apply_flag_settings"];
        assert_eq!(told, all);
        // Of the two only what changes is told.
        talk.told.clear();
        talk.conversation.set_model(Some("small"), None).await.unwrap();
        assert_eq!(talk.heard().await["settings"], json!({"effortLevel": null}));
        talk.conversation.set_model(Some("large"), None).await.unwrap();
        assert_eq!(talk.heard().await["model"], "large");
        assert!(!talk.told.iter().any(|fact| fact.get("raw").is_some()), "{:#?}", talk.told);
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn what_the_agent_refuses_is_an_error_with_its_words() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        let refused = talk.conversation.set_model(Some("no-such-model"), None).await.unwrap_err();
        assert_eq!(refused.to_string(), "the agent refused set_model: there is no such model");
        let bypass = talk.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Bypass).await;
        assert!(matches!(bypass, Err(AgentError::Unsupported(_))), "{bypass:?}");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;

        let permission_mode = PermissionMode::Bypass;
        let mut talk = Talk::open(Opening { permission_mode, ..opening() }).await;
        talk.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Default).await.unwrap();
        talk.conversation.set_permission_mode(AgentMode::Build, PermissionMode::Bypass).await.unwrap();
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn whoever_floods_instead_of_answering_is_not_listened_to_for_ever() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        let refused = talk.conversation.set_model(Some("flood"), Some("high")).await.unwrap_err();
        assert!(refused.to_string().contains("it said more than 16777216 bytes"), "{refused}");
        talk.conversation.close(Duration::ZERO, &mut Vec::new()).await;
    });
}

#[test]
fn a_permission_is_asked_for_although_half_a_character_is_in_it() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("half").await;
        assert_eq!(talk.until("permissionAsked").await["patterns"], json!(["echo \u{fffd}"]));
        talk.answer(Answer::Permission(PermissionReply::Once, None)).await;
        assert_eq!(talk.ended().await, "completed");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_program_that_says_nothing_more_and_does_not_end_is_ended() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("silence").await;
        assert_eq!(talk.until("exited").await[1], 9);
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn what_is_under_way_at_the_end_is_told_to_be_over() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("permission").await;
        talk.until("permissionAsked").await;
        let mut last = Vec::new();
        talk.conversation.close(Duration::from_secs(2), &mut last).await;
        let last: Vec<_> = last.iter().map(rendered).collect();
        assert_eq!(last.last().unwrap()["itemCompleted"]["status"], "interrupted", "{last:#?}");
    });
}

#[test]
fn a_death_within_a_line_is_told_with_its_reason_and_closes_what_was_open() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("die").await;
        let exit = talk.until("exited").await;
        assert_eq!(exit, json!([3, null, "out of credits\n"]));
        let item = talk.until("itemCompleted").await;
        assert_eq!(item["status"], "interrupted");
        let torn = talk.told.iter().any(|fact| fact["message"]["raw"] == "{\"type\":\"assis");
        assert!(torn, "{:#?}", talk.told);
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn a_conversation_that_is_not_there_to_be_resumed_says_so() {
    run(async {
        let native_id = Some("unknown".to_owned());
        let mut talk = Talk::open(Opening { native_id, begun: true, ..opening() }).await;
        let exit = talk.until("exited").await;
        assert_eq!(exit, json!([1, null, "No conversation found with session ID: unknown"]));
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

#[test]
fn what_nobody_can_answer_is_declined() {
    run(async {
        let mut talk = Talk::open(opening()).await;
        talk.prompt("elicit").await;
        assert_eq!(talk.heard().await["response"]["response"], json!({"action": "decline"}));
        assert_eq!(talk.ended().await, "completed");
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}

//= agents.communication-patterns.terminated-turn-complete-session
#[test]
fn nothing_is_left_of_a_conversation_that_is_closed() {
    run(async {
        let native_id = Some("0000".to_owned());
        let mut talk = Talk::open(Opening { native_id, begun: true, ..opening() }).await;
        talk.prompt("self").await;
        let program = talk.heard().await;
        assert!(program["arguments"].as_array().unwrap().contains(&json!("--resume=0000")), "{program}");
        let process = format!("/proc/{}", program["pid"]);
        assert!(Path::new(&process).exists());
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert!(!Path::new(&process).exists());
    });
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    run(async {
        let place = Place { program: "/no/such/program".into(), directory: "/".into(), ..Place::default() };
        let error = Claude::default().open(Opening { place, ..Opening::default() }).await.err().unwrap();
        assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
    });
}

#[test]
fn models_are_asked_for_once_until_the_program_changes() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let (program, starts) = (directory.path().join("claude"), directory.path().join("starts"));
        // Not written by this process: whoever forks meanwhile would have it open, and then it cannot be run.
        let copied = std::process::Command::new("cp").arg(opening().place.program).arg(&program).status().unwrap();
        assert!(copied.success());
        let environment = vec![("FAKE_STARTS".to_owned(), starts.to_str().unwrap().to_owned())];
        let place = Place { program: program.clone(), environment, directory: directory.path().into() };
        let started = || std::fs::read_to_string(&starts).unwrap().lines().count();
        let claude = Claude::default();
        let (models, same) = tokio::join!(claude.models(&place), claude.models(&place));
        assert_eq!(models.as_ref().unwrap().default_model.as_deref(), Some("default"));
        assert_eq!(models.unwrap(), same.unwrap());
        assert_eq!(started(), 1);
        let epoch = Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = Timestamps { last_access: epoch, last_modification: epoch };
        utimensat(CWD, &program, &times, AtFlags::empty()).unwrap();
        assert_eq!(claude.models(&place).await.unwrap().models.len(), 2);
        assert_eq!(started(), 2);
    });
}
