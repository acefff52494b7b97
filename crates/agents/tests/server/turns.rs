//! Turns: streamed and aborted.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{TestServer, kinds, of_kind, texts};

//= agents.architecture-components.clients-create-sessions-send
//= agents.lifecycle.post-messages-stream-posts
//= promises.agents-server.stream-turn
#[tokio::test]
async fn the_stream_of_a_turn_contains_only_that_turn() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "before").await;
    let turn = server.say("s", "hello").await;
    assert_eq!((texts(&turn, "user"), texts(&turn, "assistant")), (vec!["hello".into()], vec!["hello".into()]));
    assert_eq!(turn, server.events("s", "").await[3..]);
    let full = server.turn("s", "again", "?view=full").await.rest().await;
    let expected = ["turnStarted", "message", "itemStarted", "itemDelta", "message", "itemCompleted", "turnEnded"];
    assert_eq!(kinds(&full), expected);
    assert_eq!(full[0]["data"]["turnStarted"], json!({"turnId": "turn-3"}));
    assert_eq!(full[6]["data"]["turnEnded"]["turnId"], "turn-3");
    assert_eq!(full[6]["data"]["turnEnded"]["outcome"], "completed");
    let raw = server.turn("s", "unknown", "?includeRaw=true").await.rest().await;
    assert_eq!(raw.iter().filter(|event| event.get("raw").is_some()).count(), 1);
}

//= promises.agents-server.stream-turn
#[tokio::test]
async fn by_default_the_stream_of_a_turn_waits_two_seconds_for_an_answer() {
    let server = TestServer::start().await;
    server.create("s").await;
    let started = Instant::now();
    let turn = server.turn("s", "question", "").await.rest().await;
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(kinds(&turn), ["message", "questionAsked", "questionAsked"]);
}

//= promises.agents-server.stream-turn
#[tokio::test]
async fn the_stream_of_a_turn_closes_without_an_answer_and_the_turn_continues() {
    let server = TestServer::start().await;
    server.create("s").await;
    let turn = server.turn("s", "question", "?wait=0.01").await.rest().await;
    assert_eq!(kinds(&turn), ["message", "questionAsked", "questionAsked"]);
    assert_eq!(server.info("s").await["status"], "waiting");
    let mut all = server.follow("s").await;
    for question in of_kind(&turn, "questionAsked") {
        let path = format!("/v1/sessions/s/questions/{}/reply", question["id"].as_str().unwrap());
        server.post(&path, json!({"answers": [["Yes"]]})).await.is(204);
    }
    let events = all.until_kind("turnEnded").await;
    assert_eq!(of_kind(&events, "turnEnded")[0]["outcome"], "completed");
    assert_eq!(server.info("s").await["status"], "idle");
}

#[tokio::test]
async fn the_stream_of_a_turn_continues_after_an_answer() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut stream = server.turn("s", "plan", "?wait=60&view=full").await;
    let requested = stream.until_kind("questionAsked").await;
    let id = of_kind(&requested, "questionAsked")[0]["id"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/sessions/s/questions/{id}/reply"), json!({"answers": [["approve"]]})).await.is(204);
    let end = stream.rest().await;
    assert_eq!(texts(&end, "assistant"), [format!("{id}: answered approve")]);
    assert_eq!(kinds(&end).last(), Some(&"turnEnded"));
}

#[tokio::test]
async fn a_very_long_wait_is_accepted() {
    let server = TestServer::start().await;
    server.create("s").await;
    for wait in ["0", "1e9", "1e19", "1.8e19"] {
        let mut stream = server.turn("s", "question", &format!("?wait={wait}")).await;
        assert_eq!(stream.until_kind("questionAsked").await.len(), 2);
        server.order("/v1/sessions/s/abort").await.is(204);
        stream.rest().await;
        assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    }
    for wait in ["-1", "NaN", "inf", "1e300", "soon"] {
        let path = format!("/v1/sessions/s/messages/stream?wait={wait}");
        server.post(&path, json!({"message": "never"})).await.refuses(400, "invalid_request");
    }
    assert!(!texts(&server.events("s", "").await, "user").contains(&"never".to_owned()));
}

//= promises.agents-server.abort
#[tokio::test]
async fn an_aborted_turn_ends_and_the_session_continues() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut turn = server.turn("s", "slow", "?view=full").await;
    turn.until_kind("message").await;
    assert_eq!(server.info("s").await["status"], "running");
    server.order("/v1/sessions/s/abort").await.is(204);
    let end = turn.rest().await;
    assert_eq!(end.len(), 1);
    assert_eq!(end[0]["data"]["turnEnded"], json!({"turnId": "turn-1", "outcome": "interrupted"}));
    let info = server.info("s").await;
    assert_eq!((&info["status"], &info["ended"]), (&json!("idle"), &json!(false)));
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
}

//= promises.agents-server.abort
#[tokio::test]
async fn an_abort_drops_the_queue() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut running = server.turn("s", "slow", "").await;
    running.next().await.unwrap();
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(server.turn("s", &format!("never {number}"), "").await);
    }
    assert_eq!(server.info("s").await["queued"], 3);
    server.order("/v1/sessions/s/abort").await.is(204);
    running.rest().await;
    for stream in &mut waiting {
        assert_eq!(stream.rest().await, [] as [Value; 0]);
    }
    assert_eq!(server.info("s").await["queued"], 0);
    server.say("s", "hello").await;
    assert_eq!(texts(&server.events("s", "").await, "user"), ["slow", "hello"]);
}

//= agents.besides-document.turn-aborted-without-session
#[tokio::test]
async fn an_abort_without_a_turn_changes_nothing() {
    let server = TestServer::start().await;
    server.create("s").await;
    let before = server.events("s", "?view=full").await;
    server.order("/v1/sessions/s/abort").await.is(204);
    assert_eq!(server.events("s", "?view=full").await, before);
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    server.order("/v1/sessions/s/terminate").await.is(204);
    server.order("/v1/sessions/s/abort").await.is(204);
    server.order("/v1/sessions/nothing/abort").await.refuses(404, "session_not_found");
}

#[tokio::test]
async fn a_burst_can_be_aborted() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut turn = server.turn("s", "burst 10000000", "").await;
    turn.until(|event| event["id"] == 1000).await;
    server.order("/v1/sessions/s/abort").await.is(204);
    let rest = turn.rest().await;
    assert!(rest.len() < 9_000_000);
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
}

#[tokio::test]
async fn a_message_of_the_agent_about_itself_ends_no_turn() {
    let server = TestServer::start().await;
    server.create("s").await;
    for word in ["error", "unparsed", "status", "usage", "image", "file", "reasoning", "tool", "help", "markdown"] {
        let turn = server.turn("s", word, "?view=full").await.rest().await;
        assert_eq!(of_kind(&turn, "turnEnded")[0]["outcome"], "completed", "{word}");
        assert_eq!(kinds(&turn).iter().filter(|kind| **kind == "turnEnded").count(), 1, "{word}");
    }
    assert_eq!(server.info("s").await["status"], "idle");
}
