//! Shutdown of the server, and idle agents.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{TestServer, kinds, of_kind, texts};

//= promises.agents-server.sigint-sigterm
#[tokio::test]
async fn a_signal_shuts_the_server_down_whatever_is_running() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = TestServer::start().await;
        for id in ["running", "waiting", "idle", "ended", "bursting"] {
            server.create(id).await;
        }
        let mut streams = vec![server.stream("idle", "").await, server.follow("ended").await];
        server.order("/v1/sessions/ended/terminate").await.is(204);
        let mut running = server.turn("running", "slow", "").await;
        running.next().await.unwrap();
        let mut waiting = server.turn("waiting", "question", "?wait=60").await;
        waiting.until_kind("questionAsked").await;
        let mut bursting = server.turn("bursting", "burst 10000000", "").await;
        bursting.next().await.unwrap();
        // This client never reads.
        let _stalled = server.stream("bursting", "").await;
        streams.extend([running, waiting, bursting, server.turn("running", "queued", "").await]);
        server.signal(signal);
        assert_eq!(server.end().await.code(), Some(0));
        for mut stream in streams {
            while stream.block().await.is_some() {}
        }
    }
}

//= promises.agents-server.sigint-sigterm
#[tokio::test]
async fn clients_receive_the_last_events_before_the_shutdown() {
    let mut server = TestServer::start().await;
    server.create("s").await;
    let mut stream = server.follow("s").await;
    stream.next().await.unwrap();
    server.prompt("s", "slow").await;
    stream.until_kind("message").await;
    server.signal(Signal::TERM);
    let end = stream.rest().await;
    assert_eq!(server.end().await.code(), Some(0));
    assert_eq!(kinds(&end), ["turnEnded"]);
    assert_eq!(end[0]["data"]["turnEnded"]["outcome"], "interrupted");
}

//= agents.communication-patterns.terminated-turn-complete-session
//= promises.agents-server.agent-without-work
#[tokio::test]
async fn an_idle_agent_is_stopped_and_started_again_on_demand() {
    let server = TestServer::with(&["--no-token", "--idle-timeout", "1"]).await;
    server.create("s").await;
    let mut stream = server.follow("s").await;
    assert_eq!(kinds(&stream.until_kind("notice").await), ["started", "notice"]);
    // The notice is only in the full view.
    assert_eq!(of_kind(&server.events("s", "?view=full").await, "notice"), [&json!({"label": "agent.idle"})]);
    assert_eq!(server.events("s", "").await.len(), 1);
    assert_eq!(server.info("s").await["status"], "idle");
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    stream.until_kind("turnEnded").await;
    assert_eq!(kinds(&stream.until_kind("notice").await), ["notice"]);
}

//= promises.agents-server.agent-without-work
#[tokio::test]
async fn an_agent_with_a_turn_or_a_pending_request_is_not_idle() {
    let server = TestServer::with(&["--no-token", "--idle-timeout", "1"]).await;
    server.create("s").await;
    server.create("clock").await;
    let requested = server.turn("s", "question", "?wait=0&view=full").await.rest().await;
    // The other session shows that the timeout has passed.
    server.follow("clock").await.until_kind("notice").await;
    let info = server.info("s").await;
    assert_eq!(info["status"], "waiting");
    // It may have been idle before its turn started, but not since.
    let before = requested[0]["id"].as_u64().unwrap();
    let mut all = server.stream("s", &format!("?view=full&offset={before}")).await;
    for question in of_kind(&requested, "questionAsked") {
        let path = format!("/v1/sessions/s/questions/{}/reject", question["id"].as_str().unwrap());
        server.order(&path).await.is(204);
    }
    let events = all.until_kind("turnEnded").await;
    assert!(of_kind(&events, "notice").is_empty());
}

#[tokio::test]
async fn a_very_long_idle_timeout_is_accepted() {
    let most = u64::MAX.to_string();
    for timeout in ["0", &most] {
        let server = TestServer::with(&["--no-token", "--idle-timeout", timeout, "--log-limit", &most]).await;
        server.create("s").await;
        assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
        assert_eq!(texts(&server.say("s", "again").await, "assistant"), ["again"]);
    }
}
