//! Several threads on one app-server: each receives its own messages.

use std::time::{Duration, Instant};

use carrel_agents::{
    agent::{AgentDriver, AgentError, AgentEvent, AgentExit, UserAnswer},
    codex::CodexLimits,
    schema::{EventData, PermissionReply, TurnOutcome, UniversalMessage, UnparsedMessage},
};
use serde_json::{Value, json};

use crate::support::{CodexFixture, TestConversation, on_one_thread, text};

async fn permission(conversation: &mut TestConversation) -> carrel_agents::schema::PermissionRequest {
    conversation
        .find(|event| if let AgentEvent::PermissionAsked(request, _) = event { Some(request) } else { None })
        .await
}

fn result(output: &[String]) -> Value {
    serde_json::from_str::<Value>(&output[0]).unwrap()["result"].clone()
}

//= agents.execution-models.codex-shared-app-server
//= agents.execution-models.thread-start-session-turn
//= agents.execution-models.notifications-routed-thread-id
//= agents.communication-patterns.shared-server-stdio-process
//= promises.agents-server.app-servers-codex
#[test]
fn two_threads_share_one_app_server_and_receive_only_their_own_messages() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        assert_eq!(fixture.starts(), 1);
        assert_ne!(one.conversation.native_id(), two.conversation.native_id());
        one.prompt("say for one").await;
        two.prompt("say for two").await;
        assert_eq!(two.messages().await, ["for two"]);
        assert_eq!(one.messages().await, ["for one"]);
        fixture.expect_one_handshake_each(1);
        let started = |(request, method): &&(bool, String)| *request && method == "thread/start";
        assert_eq!(fixture.received()[0].iter().filter(started).count(), 2);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.execution-models.thread-start-session-turn
#[test]
fn a_thread_starts_with_its_id_and_earlier_messages() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        let early = |event| match event {
            AgentEvent::Event(EventData::Notice(notice), raw) => Some((notice.label, raw.is_some())),
            other => panic!("{other:?}"),
        };
        assert_eq!(conversation.find(early).await, ("thread/status/changed".to_owned(), true));
        let id = conversation.find(|event| if let AgentEvent::NativeId(id) = event { Some(id) } else { None }).await;
        // The app-server of these tests names its threads so.
        assert!(id.starts_with("thread-"), "{id}");
        assert_eq!(Some(id), conversation.conversation.native_id());
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.execution-models.approvals-requests-server
#[test]
fn a_permission_request_accepts_every_reply() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        let ways = [
            (PermissionReply::Once, "accept"),
            (PermissionReply::Always, "acceptForSession"),
            (PermissionReply::Reject, "decline"),
        ];
        for (reply, decision) in ways {
            conversation.prompt("command rm -r x").await;
            let requested = permission(&mut conversation).await;
            assert_eq!(
                (requested.permission.as_str(), &requested.patterns),
                ("commandExecution", &vec!["rm -r x".to_owned()])
            );
            conversation.conversation.answer(&requested.id, UserAnswer::Permission(reply, None)).await.unwrap();
            let again = conversation.conversation.answer(&requested.id, UserAnswer::Permission(reply, None)).await;
            assert!(matches!(again, Err(AgentError::Unsupported(_))));
            assert_eq!(result(&conversation.messages().await), json!({"decision": decision}));
        }
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_message_with_a_rejection_reaches_the_agent() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        conversation.prompt("command rm").await;
        let requested = permission(&mut conversation).await;
        let answer = UserAnswer::Permission(PermissionReply::Reject, Some("not that".to_owned()));
        conversation.conversation.answer(&requested.id, answer).await.unwrap();
        let reported = |event| match event {
            AgentEvent::Event(EventData::Message(message), _) => {
                text(&message).filter(|text| text.starts_with("user: "))
            }
            _ => None,
        };
        assert_eq!(conversation.find(reported).await, "user: not that");
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn questions_are_answered_or_rejected() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        let answers = [
            (UserAnswer::Question(vec![vec!["Blue".to_owned()]]), json!({"answers": {"q": {"answers": ["Blue"]}}})),
            (UserAnswer::QuestionRejected, json!({"answers": {}})),
        ];
        for (answer, reported) in answers {
            conversation.prompt("ask Which?").await;
            let requested = conversation
                .find(|event| if let AgentEvent::QuestionAsked(request, _) = event { Some(request) } else { None })
                .await;
            assert_eq!(requested.questions[0].question, "Which?");
            assert_eq!(requested.questions[0].options[1].label, "Blue");
            assert_eq!(requested.questions[0].custom, Some(true));
            conversation.conversation.answer(&requested.id, answer).await.unwrap();
            assert_eq!(result(&conversation.messages().await), reported);
        }
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn an_unsupported_request_is_rejected_at_once() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        let output = conversation.turn("call something").await;
        assert_eq!(serde_json::from_str::<Value>(&output[0]).unwrap()["error"]["code"], -32_601);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_turn_can_be_interrupted_before_it_has_an_id() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        one.prompt("hang").await;
        one.find(|event| matches!(event, AgentEvent::Event(EventData::Started(_), _)).then_some(())).await;
        one.conversation.interrupt().await.unwrap();
        assert_eq!(one.ended().await, TurnOutcome::Interrupted);
        // No turn is running, so nothing is interrupted, and neither is the next turn.
        one.conversation.interrupt().await.unwrap();
        assert_eq!(one.turn("say still here").await, ["still here"]);
        one.prompt("hold").await;
        one.conversation.interrupt().await.unwrap();
        two.turn("release").await;
        assert_eq!(one.ended().await, TurnOutcome::Interrupted);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_running_command_is_killed_when_its_turn_is_interrupted() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        conversation.prompt("work hard").await;
        conversation.find(|event| matches!(event, AgentEvent::Event(EventData::ItemStarted(_), _)).then_some(())).await;
        conversation.conversation.interrupt().await.unwrap();
        assert_eq!(conversation.ended().await, TurnOutcome::Interrupted);
        let ended = |event| match event {
            AgentEvent::Event(EventData::Notice(notice), _) if notice.label == "warning" => notice.details,
            _ => None,
        };
        assert_eq!(conversation.find(ended).await["message"], "ended 7");
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_rejected_turn_fails_and_the_next_one_runs() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        conversation.prompt("refuse").await;
        let failed = |event| match event {
            AgentEvent::TurnEnded { outcome, message, .. } => Some((outcome, message)),
            _ => None,
        };
        assert_eq!(conversation.find(failed).await, (TurnOutcome::Failed, Some("not this one".to_owned())));
        assert_eq!(conversation.turn("say better").await, ["better"]);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

fn unparsed(event: AgentEvent) -> Option<UnparsedMessage> {
    if let AgentEvent::Event(EventData::Message(UniversalMessage::Unparsed(message)), _) = event {
        Some(message)
    } else {
        None
    }
}

#[test]
fn an_unparsable_line_is_reported_to_the_thread_that_it_names() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        one.prompt("stray 100000").await;
        assert_eq!(one.find(unparsed).await.raw.as_str().map(str::len), Some(64 * 1024));
        assert_eq!(one.ended().await, TurnOutcome::Completed);
        two.prompt("say hello").await;
        let reported = |event| {
            assert!(
                !matches!(event, AgentEvent::Event(EventData::Message(UniversalMessage::Unparsed(_)), _)),
                "{event:?}"
            );
            matches!(event, AgentEvent::TurnEnded { .. }).then_some(())
        };
        two.find(reported).await;
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_request_without_a_thread_is_rejected_once() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        let output = one.turn("nobodys").await;
        assert_eq!(serde_json::from_str::<Value>(&output[0]).unwrap()["error"]["code"], -32_601);
        let reported = |event| match event {
            AgentEvent::Event(EventData::Notice(notice), Some(_)) => {
                (notice.label == "account/something").then_some(())
            }
            _ => None,
        };
        two.find(reported).await;
        for conversation in [&mut one, &mut two] {
            assert_eq!(conversation.turn("say still here").await, ["still here"]);
        }
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_permission_request_with_a_lone_surrogate_is_reported() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        conversation.prompt("half").await;
        let requested = permission(&mut conversation).await;
        assert_eq!(requested.patterns, ["echo \u{fffd}"]);
        conversation
            .conversation
            .answer(&requested.id, UserAnswer::Permission(PermissionReply::Once, None))
            .await
            .unwrap();
        assert_eq!(result(&conversation.messages().await), json!({"decision": "accept"}));
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.universal-schema.cannot-parsed-preserved
//= promises.agents-server.lines-agent-dropped
#[test]
fn an_unparsable_line_without_a_thread_is_reported_to_all() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        one.prompt("garbage").await;
        for conversation in [&mut one, &mut two] {
            for line in ["not json", "\u{fffd}\u{fffd}", "[]"] {
                let message = conversation.find(unparsed).await;
                assert_eq!(message.raw, line);
                assert!(message.error.is_some_and(|error| !error.is_empty()));
            }
        }
        assert_eq!(one.ended().await, TurnOutcome::Completed);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.execution-models.notifications-routed-thread-id
#[test]
fn a_request_of_a_subthread_is_reported_in_the_same_session() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let mut conversation = fixture.open().await;
        conversation.prompt("child").await;
        let requested = permission(&mut conversation).await;
        assert_eq!(requested.patterns, ["of the child"]);
        conversation
            .conversation
            .answer(&requested.id, UserAnswer::Permission(PermissionReply::Once, None))
            .await
            .unwrap();
        assert_eq!(result(&conversation.messages().await), json!({"decision": "accept"}));
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

/// Counts the numbers of a flood, which have to arrive in order.
async fn flooded(conversation: &mut TestConversation) -> u64 {
    let mut count = 0;
    loop {
        match conversation.next().await {
            AgentEvent::Event(EventData::ItemDelta(delta), _) => {
                assert_eq!(delta.delta, count.to_string());
                count += 1;
            }
            AgentEvent::TurnEnded { .. } | AgentEvent::Exited(_) => return count,
            _ => {}
        }
    }
}

//= promises.agents-server.agent-floods-never-reads
#[test]
fn a_flood_in_one_thread_loses_nothing_and_does_not_block_another() {
    on_one_thread(async {
        let fixture = CodexFixture::with(CodexLimits { max_unread_bytes: 16 * 1024, ..CodexLimits::default() });
        let (mut one, mut two) = tokio::join!(fixture.open(), fixture.open());
        one.prompt("flood 20000").await;
        let (count, output) = tokio::join!(flooded(&mut one), two.turn("say meanwhile"));
        assert_eq!(count, 20_000);
        assert_eq!(output, ["meanwhile"]);
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= promises.agents-server.session-read-codex-says
#[test]
fn a_session_that_does_not_read_is_dropped_after_a_timeout() {
    let defaults = CodexLimits::default();
    assert_eq!((defaults.slow_reader_timeout, defaults.max_unread_bytes), (Duration::from_secs(10), 8 << 20));
    on_one_thread(async {
        let slow_reader_timeout = Duration::from_millis(50);
        let fixture = CodexFixture::with(CodexLimits {
            max_unread_bytes: 16 * 1024,
            slow_reader_timeout,
            ..CodexLimits::default()
        });
        let (mut stalled, mut other) = tokio::join!(fixture.open(), fixture.open());
        let started = Instant::now();
        stalled.prompt("flood 20000").await;
        // The flood is larger than all buffers, so it ends only if the session is dropped.
        assert_eq!(other.turn("flooded at last").await, ["at last"]);
        assert!(started.elapsed() >= slow_reader_timeout, "it was dropped after {:?}", started.elapsed());
        assert_eq!(other.turn("say again").await, ["again"]);
        let reported = |event| match event {
            AgentEvent::TurnEnded { .. } => panic!("the flood was read to its end"),
            AgentEvent::Exited(AgentExit::ServerExited(exit)) => Some(exit.stderr),
            _ => None,
        };
        assert_eq!(stalled.find(reported).await, "the session did not read the events of its agent");
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn all_pages_of_models_are_listed() {
    on_one_thread(async {
        let fixture = CodexFixture::new();
        let models = fixture.codex.models(&fixture.program()).await.unwrap();
        assert_eq!(models.default_model.as_deref(), Some("two"));
        let ids: Vec<_> = models.models.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(ids, ["one", "two"]);
        assert_eq!(models.models[0].variants.as_deref(), Some(["low".to_owned(), "high".to_owned()].as_slice()));
        assert_eq!(models.models[0].default_variant.as_deref(), Some("low"));
        fixture.codex.shutdown(Duration::from_secs(2)).await;
    });
}
