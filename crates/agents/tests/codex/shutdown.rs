//! Exit of an app-server, and what its sessions report.

use std::time::Duration;

use carrel_agents::{
    agent::{AgentDriver, AgentError, AgentEvent, AgentExit, ConversationOptions},
    child::ChildExit,
    codex::{Codex, CodexLimits},
    schema::{EventData, ItemStatus},
};

use crate::support::{CodexFixture, TestConversation, on_one_thread};

async fn exit(conversation: &mut TestConversation) -> ChildExit {
    conversation
        .find(|event| if let AgentEvent::Exited(AgentExit::ServerExited(exit)) = event { Some(exit) } else { None })
        .await
}

//= agents.execution-models.process-lives-long-daemon
#[test]
fn a_crash_is_reported_to_all_sessions_and_threads_are_resumed() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        let native_id = two.conversation.native_id();
        one.prompt("crash").await;
        for conversation in [&mut one, &mut two] {
            let exit = exit(conversation).await;
            assert_eq!((exit.code, exit.signal, exit.stderr.trim()), (Some(3), None, "out of luck"));
        }
        let mut again = fixture
            .open_with(ConversationOptions { native_id: native_id.clone(), resumable: true, ..fixture.options() })
            .await;
        assert_eq!(again.conversation.native_id(), native_id);
        assert_eq!(again.turn("say back").await, ["back"]);
        assert_eq!(fixture.starts(), 2);
        // A conversation of the crashed app-server is closed without affecting the new ones.
        one.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        two.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert_eq!(again.turn("say still").await, ["still"]);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_thread_without_a_prompt_is_started_anew() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let native_id = Some("never begun".to_owned());
        let conversation =
            fixture.open_with(ConversationOptions { native_id: native_id.clone(), ..fixture.options() }).await;
        assert_ne!(conversation.conversation.native_id(), native_id);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_lost_thread_is_an_error_with_the_message_of_codex() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let options = ConversationOptions { native_id: Some("lost".to_owned()), resumable: true, ..fixture.options() };
        let Err(AgentError::Refused { message, .. }) = fixture.codex.open(options).await.map(drop) else { panic!() };
        assert_eq!(message, "no rollout found");
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn an_app_server_that_fails_reports_why_and_restarts_are_delayed() {
    on_one_thread(async {
        let restart_delay = Duration::from_millis(300);
        let mut fixture = CodexFixture::with(CodexLimits { restart_delay, ..CodexLimits::default() });
        fixture.environment.push(("DIES".to_owned(), "yes".to_owned()));
        let started = tokio::time::Instant::now();
        for _ in 0..2 {
            let Err(error) = fixture.codex.open(fixture.options()).await.map(drop) else { panic!() };
            assert!(error.to_string().contains("cannot run here"), "{error}");
        }
        assert!(started.elapsed() >= restart_delay);
        assert_eq!(fixture.starts(), 2);
    });
}

#[test]
fn a_missing_program_is_named() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut options = fixture.options();
        options.program.path = "/nowhere/codex".into();
        let Err(error) = fixture.codex.open(options).await.map(drop) else { panic!() };
        assert!(error.to_string().contains("/nowhere/codex"), "{error}");
    });
}

//= agents.execution-models.process-lives-long-daemon
#[test]
fn an_idle_app_server_is_stopped_and_started_again_on_demand() {
    on_one_thread(async {
        let limits = CodexLimits {
            idle_timeout: Duration::from_millis(200),
            restart_delay: Duration::ZERO,
            ..CodexLimits::default()
        };
        let mut fixture = CodexFixture::with(limits);
        let mut watch = fixture.watch_server();
        let conversation = fixture.open().await;
        watch.there().await;
        conversation.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        watch.gone().await;
        assert_eq!(fixture.open().await.turn("say hello").await, ["hello"]);
        assert_eq!(fixture.starts(), 2);
        fixture.expect_one_handshake_each(2);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

/// Status of the items that these events complete.
fn items(events: &[AgentEvent]) -> Vec<ItemStatus> {
    let items = events.iter().filter_map(|event| match event {
        AgentEvent::Event(EventData::ItemCompleted(item), _) => Some(item.status),
        _ => None,
    });
    items.collect()
}

/// Starts a turn with a command that does not exit.
async fn work(conversation: &mut TestConversation) {
    conversation.prompt("work hard").await;
    conversation.find(|event| matches!(event, AgentEvent::Event(EventData::ItemStarted(_), _)).then_some(())).await;
}

#[test]
fn open_items_are_interrupted_before_the_end() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        work(&mut one).await;
        let mut last = Vec::new();
        one.conversation.close(Duration::from_secs(10), &mut last).await;
        assert_eq!(items(&last), [ItemStatus::Interrupted]);

        let mut one = fixture.open().await;
        work(&mut one).await;
        two.prompt("crash").await;
        let mut events = Vec::new();
        while !events.iter().any(|event| matches!(event, AgentEvent::Exited(_))) {
            events.push(one.next().await);
        }
        assert_eq!(items(&events), [ItemStatus::Interrupted]);
    });
}

#[test]
fn an_app_server_that_ignores_sigterm_is_killed() {
    on_one_thread(async {
        let mut fixture = CodexFixture::new();
        let mut watch = fixture.watch_server();
        fixture.environment.push(("STUBBORN".to_owned(), String::new()));
        let conversation = fixture.open().await;
        watch.there().await;
        conversation.conversation.close(Duration::from_millis(10), &mut Vec::new()).await;
        fixture.codex.shutdown(Duration::from_millis(10)).await;
        watch.gone().await;
    });
}

#[test]
fn unmarked_background_commands_are_killed_with_the_last_thread() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, two) = tokio::join!(fixture.open(), fixture.open());
        let mut detached = fixture.watch("detached");
        one.turn(&format!("detach {}", detached.path)).await;
        detached.there().await;
        one.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert!(detached.is_there());
        two.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        detached.gone().await;
        assert_eq!(fixture.open().await.turn("say hello").await, ["hello"]);
        assert_eq!(fixture.starts(), 2);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn without_background_commands_the_app_server_outlives_its_last_thread() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        fixture.open().await.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert_eq!(fixture.open().await.turn("say hello").await, ["hello"]);
        assert_eq!(fixture.starts(), 1);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.execution-models.process-lives-long-daemon
#[test]
fn shutdown_leaves_no_process() {
    on_one_thread(async {
        let mut fixture = CodexFixture::new();
        let mut watch = fixture.watch_server();
        let mut conversation = fixture.open().await;
        watch.there().await;
        conversation.prompt("hang").await;
        conversation.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        fixture.codex.shutdown(Duration::from_secs(2)).await;
        watch.gone().await;
        Codex::new().shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn an_app_server_that_does_not_respond_is_killed_after_the_timeout_or_with_the_server() {
    on_one_thread(async {
        let mut fixture =
            CodexFixture::with(CodexLimits { request_timeout: Duration::from_millis(20), ..CodexLimits::default() });
        fixture.environment.push(("MUTE".to_owned(), String::new()));
        let opened = fixture.codex.open(fixture.options()).await.map(drop);
        assert!(matches!(opened, Err(AgentError::Timeout { request: "initialize", .. })), "{opened:?}");

        let mut fixture = CodexFixture::new();
        let mut watch = fixture.watch_server();
        fixture.environment.push(("MUTE".to_owned(), String::new()));
        let opened = fixture.codex.open(fixture.options());
        let shutdown = async {
            watch.started().await;
            fixture.codex.shutdown(Duration::from_secs(2)).await;
        };
        let (opened, ()) = tokio::join!(opened, shutdown);
        assert!(matches!(opened.map(drop), Err(AgentError::Refused { request: "initialize", .. })));
        watch.gone().await;
    });
}

#[test]
fn background_commands_are_killed_with_their_own_thread_only() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        let (mut first, mut second) = (fixture.watch("one"), fixture.watch("two"));
        one.turn(&format!("leave {}", first.path)).await;
        two.turn(&format!("leave {}", second.path)).await;
        tokio::join!(first.there(), second.there());
        one.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        first.gone().await;
        assert!(second.is_there());
        assert_eq!(two.turn("say still").await, ["still"]);
        two.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        second.gone().await;
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_session_whose_app_server_exited_accepts_prompts() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        conversation.prompt("crash").await;
        let exit = exit(&mut conversation).await;
        assert_eq!(exit.code, Some(3));
        conversation.prompt("say anything").await;
        conversation.conversation.interrupt().await.unwrap();
        conversation.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}
