//! Sessions across restarts of the server.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{TestServer, kinds, of_kind, program, refused, texts};

async fn on(directory: &Path) -> TestServer {
    TestServer::with(&["--no-token", "--data-dir", directory.to_str().unwrap()]).await
}

/// Everything that can be read of a session, byte for byte.
async fn all(server: &TestServer, id: &str) -> [Vec<u8>; 2] {
    let read = async |view| server.get(&format!("/v1/sessions/{id}/events?view={view}&includeRaw=true")).await.body;
    [read("default").await, read("full").await]
}

/// Stops the server and starts another one.
async fn again(mut server: TestServer, directory: &Path, signal: Signal) -> TestServer {
    server.signal(signal);
    let status = server.end().await;
    assert_eq!(status.code(), (signal == Signal::TERM).then_some(0));
    on(directory).await
}

fn log(directory: &TempDir) -> PathBuf {
    let mut sessions = std::fs::read_dir(directory.path().join("sessions")).unwrap();
    sessions.next().unwrap().unwrap().path().join("events.jsonl")
}

//= promises.agents-server.data-dir-events-after
//= agents.session-management.agent-id-surfaced-events
#[tokio::test]
async fn a_log_is_restored_byte_for_byte_and_continues() {
    for signal in [Signal::KILL, Signal::TERM] {
        let directory = tempfile::tempdir().unwrap();
        let server = on(directory.path()).await;
        for id in ["first", "a%2Fb%20%E2%82%AC"] {
            server.create(id).await;
            server.say(id, "demo").await;
            server.say(id, "echo \u{0}\"\\\n\u{2028}\u{1f600}").await;
        }
        let before = [all(&server, "first").await, all(&server, "a%2Fb%20%E2%82%AC").await];
        let list = server.get("/v1/sessions").await.is(200);
        let server = again(server, directory.path(), signal).await;
        assert_eq!(server.get("/v1/sessions").await.is(200), list);
        assert_eq!([all(&server, "first").await, all(&server, "a%2Fb%20%E2%82%AC").await], before);
        let last = server.events("first", "").await.len();
        let turn = server.say("first", "on").await;
        assert_eq!((turn[0]["id"].as_u64(), texts(&turn, "assistant")), (Some(last as u64 + 1), vec!["on".into()]));
        assert_eq!(turn[0]["agentSessionId"], "mock-first");
        let full = server.events("first", "?view=full").await;
        assert_eq!(
            full.iter().map(|event| event["id"].as_u64().unwrap()).collect::<Vec<_>>(),
            (1..=full.len() as u64).collect::<Vec<_>>()
        );
        let turns: Vec<_> = of_kind(&full, "turnStarted").iter().map(|turn| turn["turnId"].clone()).collect();
        assert_eq!(turns, ["turn-1", "turn-2", "turn-3"]);
        // Once more, with the new events.
        let before = all(&server, "first").await;
        let server = again(server, directory.path(), signal).await;
        assert_eq!(all(&server, "first").await, before);
    }
}

//= promises.agents-server.turn-server-did-survive
#[tokio::test]
async fn a_turn_that_the_server_did_not_survive_has_failed() {
    let directory = tempfile::tempdir().unwrap();
    let server = on(directory.path()).await;
    server.create("s").await;
    server.turn("s", "question", "?wait=0").await.rest().await;
    let server = again(server, directory.path(), Signal::KILL).await;
    let events = server.events("s", "").await;
    assert_eq!(kinds(&events), ["started", "message", "questionAsked", "questionAsked", "error"]);
    assert_eq!(events[4]["data"]["error"]["kind"], "server_restart");
    let full = server.events("s", "?view=full").await;
    let ended = of_kind(&full, "turnEnded");
    assert_eq!((&ended[0]["turnId"], &ended[0]["outcome"]), (&json!("turn-1"), &json!("failed")));
    // Its requests were withdrawn.
    let id = events[2]["data"]["questionAsked"]["id"].as_str().unwrap();
    server.order(&format!("/v1/sessions/s/questions/{id}/reject")).await.refuses(400, "invalid_request");
    assert_eq!(of_kind(&full, "questionResolved").len(), 2);
    assert_eq!(server.info("s").await["status"], "idle");
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    // It is logged once.
    let server = again(server, directory.path(), Signal::KILL).await;
    assert_eq!(of_kind(&server.events("s", "").await, "error").len(), 1);
}

//= promises.agents-server.turn-server-did-survive
#[tokio::test]
async fn a_turn_that_a_shutdown_ended_was_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let server = on(directory.path()).await;
    server.create("s").await;
    server.turn("s", "slow", "").await.next().await.unwrap();
    let server = again(server, directory.path(), Signal::TERM).await;
    let full = server.events("s", "?view=full").await;
    assert_eq!(of_kind(&full, "turnEnded")[0]["outcome"], "interrupted");
    assert!(of_kind(&full, "error").is_empty());
}

//= promises.agents-server.turn-server-did-survive
#[tokio::test]
async fn queued_prompts_run_in_order_after_a_restart() {
    for signal in [Signal::KILL, Signal::TERM] {
        let directory = tempfile::tempdir().unwrap();
        let server = on(directory.path()).await;
        server.create("s").await;
        server.turn("s", "slow", "").await.next().await.unwrap();
        for (id, text) in [("m1", "one"), ("m2", "two")] {
            server.post("/v1/sessions/s/messages", json!({"message": text, "messageId": id})).await.is(204);
        }
        server.prompt("s", "three").await;
        let server = again(server, directory.path(), signal).await;
        // A retry meanwhile does not run twice.
        server.post("/v1/sessions/s/messages", json!({"message": "two", "messageId": "m2"})).await.is(204);
        server.say("s", "last").await;
        let events = server.events("s", "").await;
        assert_eq!(texts(&events, "user"), ["slow", "one", "two", "three", "last"]);
        assert_eq!(texts(&events, "assistant"), ["one", "two", "three", "last"]);
    }
}

//= promises.agents-server.times-prompt-id-runs
#[tokio::test]
async fn a_retried_prompt_runs_once_across_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = on(directory.path()).await;
    server.create("s").await;
    let prompt = json!({"message": "hello", "messageId": "m1"});
    server.post("/v1/sessions/s/messages", prompt.clone()).await.is(204);
    server.say("s", "behind").await;
    let before = all(&server, "s").await;
    let server = again(server, directory.path(), Signal::KILL).await;
    for path in ["messages", "messages/stream"] {
        assert!(server.post(&format!("/v1/sessions/s/{path}"), prompt.clone()).await.status < 300);
    }
    let other = json!({"message": "other", "messageId": "m1"});
    server.post("/v1/sessions/s/messages", other).await.refuses(409, "conflict");
    assert_eq!(all(&server, "s").await, before);
}

//= agents.besides-document.sessions-survive-restart-asked
#[tokio::test]
async fn the_state_of_a_session_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = on(directory.path()).await;
    let wanted =
        json!({"agent": "mock", "agentMode": "plan", "permissionMode": "bypass", "title": "Old", "directory": "/"});
    server.post("/v1/sessions/s", wanted).await.is(200);
    server.patch("/v1/sessions/s", json!({"title": "New", "model": "mock", "variant": "fast"})).await.is(200);
    for (id, prompt) in [("crashed", "crash 9"), ("done", "end")] {
        server.create(id).await;
        let mut events = server.follow(id).await;
        server.prompt(id, prompt).await;
        events.until_kind("sessionEnded").await;
    }
    server.create("terminated").await;
    server.order("/v1/sessions/terminated/terminate").await.is(204);
    let list = server.get("/v1/sessions").await.is(200);
    let server = again(server, directory.path(), Signal::KILL).await;
    assert_eq!(server.get("/v1/sessions").await.is(200), list);
    let message = json!({"message": "x"});
    let problem = server.post("/v1/sessions/crashed/messages", message.clone()).await;
    assert_eq!(problem.refuses(500, "agent_process_exited")["details"]["exitCode"], 9);
    server.post("/v1/sessions/terminated/messages", message).await.refuses(400, "invalid_request");
    server.order("/v1/sessions/crashed/resume").await.is(204);
    assert_eq!(texts(&server.say("crashed", "again").await, "assistant"), ["again"]);
}

#[tokio::test]
async fn a_deleted_session_is_not_restored() {
    let directory = tempfile::tempdir().unwrap();
    let server = on(directory.path()).await;
    server.create("s").await;
    server.say("s", "hello").await;
    server.delete("/v1/sessions/s").await.is(204);
    assert_eq!(std::fs::read_dir(directory.path().join("sessions")).unwrap().count(), 0);
    let server = again(server, directory.path(), Signal::KILL).await;
    assert_eq!(server.get("/v1/sessions").await.is(200), json!({"sessions": []}));
}

//= promises.agents-server.servers-keep-sessions-directory
#[tokio::test]
async fn a_directory_belongs_to_one_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let server = on(directory.path()).await;
    let output = refused(program(&["--port", "0", "--no-token", "--data-dir", path])).await;
    assert!(output.contains("another server keeps its sessions in"), "{output}");
    server.create("s").await;
    // It is unlocked when the first server is gone.
    let server = again(server, directory.path(), Signal::KILL).await;
    server.info("s").await;
    let output = refused(program(&["--port", "0", "--no-token", "--data-dir", "/dev/null/x"])).await;
    assert!(output.contains("cannot use /dev/null/x"), "{output}");
}

//= promises.agents-server.data-dir-events-after
#[tokio::test]
async fn a_log_with_an_incomplete_event_continues_after_the_last_complete_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = on(directory.path()).await;
    server.create("s").await;
    server.say("s", "demo").await;
    server.signal(Signal::KILL);
    server.end().await;
    let path = log(&directory);
    let whole = std::fs::read(&path).unwrap();
    let lines = whole.iter().filter(|byte| **byte == b'\n').count();
    for (torn, left) in [
        (whole[..whole.len() - 1].to_vec(), lines - 1),
        (whole[..whole.len() - 20].to_vec(), lines - 1),
        ([&whole[..], b"{\"id\":"].concat(), lines),
        ([&whole[..], &[0; 4096]].concat(), lines),
    ] {
        std::fs::write(&path, torn).unwrap();
        let mut server = on(directory.path()).await;
        let events = server.events("s", "?view=full").await;
        assert_eq!(events.len(), left);
        let turn = server.turn("s", "hello", "?view=full").await.rest().await;
        assert_eq!(turn[0]["id"], left + 1);
        let before = all(&server, "s").await;
        server.signal(Signal::KILL);
        server.end().await;
        let mut server = on(directory.path()).await;
        assert_eq!(all(&server, "s").await, before);
        server.signal(Signal::KILL);
        server.end().await;
    }
}

#[tokio::test]
async fn an_unreadable_session_does_not_affect_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = on(directory.path()).await;
    server.create("broken").await;
    let broken = log(&directory).with_file_name("session.json");
    server.create("whole").await;
    server.signal(Signal::KILL);
    server.end().await;
    std::fs::write(broken, "{").unwrap();
    std::fs::write(directory.path().join("sessions/stray"), "").unwrap();
    let server = on(directory.path()).await;
    let list = server.get("/v1/sessions").await.is(200);
    let ids: Vec<&Value> = list["sessions"].as_array().unwrap().iter().map(|session| &session["sessionId"]).collect();
    assert_eq!(ids, ["whole"]);
    server.say("whole", "hello").await;
    // An unreadable session is kept when a new one has its id.
    server.create("broken").await;
    let kept = std::fs::read_dir(directory.path().join("sessions")).unwrap();
    let aside = kept.map(|place| place.unwrap().path()).find(|place| place.extension().is_some()).unwrap();
    assert!(std::fs::read_to_string(aside.join("events.jsonl")).unwrap().contains("session.created"));
}

//= agents.session-management.state-memory-lost-server
#[tokio::test]
async fn without_a_data_directory_nothing_is_stored() {
    let mut server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "hello").await;
    server.signal(Signal::TERM);
    server.end().await;
    assert_eq!(std::fs::read_dir(server.home.path()).unwrap().count(), 0);
    // Nor is it stored elsewhere: another server of the same user knows nothing of it.
    let another = TestServer::run_in(server.home, program(&["--no-token"])).await;
    assert_eq!(another.get("/v1/sessions").await.is(200), json!({"sessions": []}));
    another.create("s").await;
    assert_eq!(kinds(&another.events("s", "").await), ["started"]);
}
