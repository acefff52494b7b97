//! Sessions: created, read, changed, terminated, deleted.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{TestServer, kinds, of_kind, soon, texts};

//= agents.session-management.session-id-agent-modes
#[tokio::test]
async fn a_new_session_has_the_requested_settings() {
    let server = TestServer::start().await;
    let wanted = json!({
        "agent": "mock", "agentMode": "plan", "permissionMode": "bypass", "model": "mock", "variant": "slow",
        "directory": "/", "title": "First", "agentVersion": "1.0", "somethingNew": {"of": "tomorrow"},
    });
    let created = server.post("/v1/sessions/s", wanted).await.is(200);
    assert_eq!(created, json!({"healthy": true, "agentSessionId": "mock-s"}));
    let info = server.info("s").await;
    let (created_at, updated_at) = (info["createdAt"].as_u64().unwrap(), info["updatedAt"].as_u64().unwrap());
    assert!(created_at > 1_700_000_000_000 && updated_at >= created_at);
    let whole = json!({
        "sessionId": "s", "agent": "mock", "agentMode": "plan", "permissionMode": "bypass", "model": "mock",
        "variant": "slow", "agentSessionId": "mock-s", "ended": false, "eventCount": 1, "createdAt": created_at,
        "updatedAt": updated_at, "directory": "/", "title": "First", "status": "idle", "queued": 0,
    });
    assert_eq!(info, whole);
}

//= agents.session-management.session-id-agent-modes
#[tokio::test]
async fn settings_that_were_not_requested_have_defaults() {
    let server = TestServer::start().await;
    server.create("s").await;
    let info = server.info("s").await;
    assert_eq!((&info["agentMode"], &info["permissionMode"]), (&json!("build"), &json!("default")));
    assert_eq!(info["directory"], server.home.path().to_str().unwrap());
    // These fields are null, not absent.
    assert!(["model", "variant", "title"].iter().all(|key| info.get(key) == Some(&Value::Null)), "{info}");
}

#[tokio::test]
async fn sessions_are_listed_the_newest_first() {
    let server = TestServer::start().await;
    for id in ["b", "c", "a"] {
        server.create(id).await;
    }
    let list = server.get("/v1/sessions").await.is(200);
    let ids: Vec<_> = list["sessions"].as_array().unwrap().iter().map(|session| &session["sessionId"]).collect();
    assert_eq!(ids, ["a", "c", "b"]);
    assert_eq!(list["sessions"][0], server.info("a").await);
}

//= agents.session-management.session-id-client-primary
//= promises.agents-server.ids-sessions
#[tokio::test]
async fn an_id_is_used_once_however_many_clients_request_it() {
    let server = TestServer::start().await;
    let create = || server.post("/v1/sessions/s", json!({"agent": "mock"}));
    let answers = join_all((0..20).map(|_| create())).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(answer.refuses(409, "session_already_exists")["sessionId"], "s");
    }
    server.order("/v1/sessions/s/terminate").await.is(204);
    create().await.refuses(409, "session_already_exists");
    assert_eq!(server.events("s", "").await.len(), 1);
}

//= agents.execution-models.opencode-over-http-amp
//= agents.schema-pipeline.claude-code-codex-opencode
//= agents.communication-patterns.http-server-agent-yet
//= agents.compatibility.opencode-amp-yet
#[tokio::test]
async fn an_unknown_agent_is_rejected() {
    let server = TestServer::start().await;
    for agent in ["nobody", "", "Mock", "opencode", "amp"] {
        let problem = server.post("/v1/sessions/s", json!({"agent": agent})).await.refuses(400, "unsupported_agent");
        assert_eq!(
            (&problem["agent"], &problem["detail"]),
            (&json!(agent), &json!(format!("unsupported agent: {agent}")))
        );
    }
    server.get("/v1/sessions/s").await.refuses(404, "session_not_found");
    server.get("/v1/agents/nobody/modes").await.refuses(400, "unsupported_agent");
    server.get("/v1/agents/nobody/models").await.refuses(400, "unsupported_agent");
    server.post("/v1/agents/nobody/install", json!({})).await.refuses(400, "unsupported_agent");
}

//= agents.modes-capabilities.claude-code-codex-fixed
//= agents.modes-capabilities.permission-modes-default-plan
#[tokio::test]
async fn modes_depend_on_the_agent() {
    let server = TestServer::start().await;
    let modes = server.get("/v1/agents/mock/modes").await.is(200);
    let ids: Vec<_> = modes["modes"].as_array().unwrap().iter().map(|mode| &mode["id"]).collect();
    assert_eq!(ids, ["build", "plan"]);
    assert!(modes["modes"][0]["name"].is_string() && modes["modes"][0]["description"].is_string());
    let create = async |id: &str, wanted: Value| server.post(&format!("/v1/sessions/{id}"), wanted).await;
    for mode in ["default", "plan", "bypass", "acceptEdits"] {
        create(mode, json!({"agent": "mock", "permissionMode": mode})).await.is(200);
        assert_eq!(server.info(mode).await["permissionMode"], mode);
    }
    // Only for Claude Code, plan mode is a permission mode.
    create("planner", json!({"agent": "mock", "agentMode": "plan"})).await.is(200);
    assert_eq!(server.info("planner").await["permissionMode"], "default");
    let unknown = create("s", json!({"agent": "mock", "permissionMode": "yolo"})).await;
    unknown.refuses(400, "invalid_request");
    let unsupported = create("s", json!({"agent": "mock", "agentMode": "fly"})).await;
    assert_eq!(unsupported.refuses(400, "mode_not_supported")["details"]["mode"], "fly");
    server.get("/v1/sessions/s").await.refuses(404, "session_not_found");
}

//= agents.session-management.session-id-client-primary
//= promises.agents-server.ids-sessions
#[tokio::test]
async fn a_session_id_may_be_any_text() {
    let server = TestServer::start().await;
    let long = "x".repeat(256);
    for (path, id) in
        [("a%2Fb%20c", "a/b c"), ("%E2%82%AC", "\u{20ac}"), ("..%2F..", "../.."), ("%25", "%"), (&*long, &*long)]
    {
        server.create(path).await;
        server.say(path, "hello").await;
        assert_eq!(server.info(path).await["sessionId"], id);
        assert_eq!(server.events(path, "").await[1]["sessionId"], id);
    }
    for path in [&*"x".repeat(257), "a%0Ab", "%00"] {
        server.post(&format!("/v1/sessions/{path}"), json!({"agent": "mock"})).await.refuses(400, "invalid_request");
    }
}

#[tokio::test]
async fn the_working_directory_has_to_exist() {
    let server = TestServer::start().await;
    std::fs::create_dir(server.home.path().join("below")).unwrap();
    std::fs::write(server.home.path().join("file"), "").unwrap();
    server.post("/v1/sessions/s", json!({"agent": "mock", "directory": "below"})).await.is(200);
    assert_eq!(server.info("s").await["directory"], server.home.path().join("below").to_str().unwrap());
    for directory in ["/does/not/exist", "file"] {
        let answer = server.post("/v1/sessions/t", json!({"agent": "mock", "directory": directory})).await;
        answer.refuses(400, "invalid_request");
    }
}

//= agents.besides-document.session-seen-changed-deleted
#[tokio::test]
async fn the_settings_of_a_session_can_be_changed() {
    let server = TestServer::start().await;
    server.create("s").await;
    let change = |change: Value| server.patch("/v1/sessions/s", change);
    let changed = change(json!({"title": "New", "model": "mock-plain", "variant": "fast", "new": 1})).await.is(200);
    assert_eq!(changed, server.info("s").await);
    assert_eq!(
        (&changed["title"], &changed["model"], &changed["variant"]),
        (&json!("New"), &json!("mock-plain"), &json!("fast"))
    );
    let modes =
        |info: &Value| [&info["agentMode"], &info["permissionMode"]].map(|mode| mode.as_str().unwrap().to_owned());
    assert_eq!(modes(&change(json!({"permissionMode": "bypass"})).await.is(200)), ["build", "bypass"]);
    assert_eq!(modes(&change(json!({"agentMode": "plan"})).await.is(200)), ["plan", "bypass"]);
    assert_eq!(modes(&change(json!({"agentMode": "build"})).await.is(200)), ["build", "bypass"]);
    change(json!({"agentMode": "fly"})).await.refuses(400, "mode_not_supported");
    change(json!({"permissionMode": "yolo", "title": "Never"})).await.refuses(400, "invalid_request");
    // Absent and null fields stay unchanged, and so does everything if a change is rejected.
    let info = change(json!({"title": null})).await.is(200);
    assert_eq!((&info["title"], &info["model"]), (&json!("New"), &json!("mock-plain")));
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    server.patch("/v1/sessions/nothing", json!({})).await.refuses(404, "session_not_found");
}

#[tokio::test]
async fn a_terminated_session_can_be_read_and_resumed() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "hello").await;
    for _ in 0..2 {
        server.order("/v1/sessions/s/terminate").await.is(204);
    }
    let info = server.info("s").await;
    assert_eq!((&info["ended"], &info["status"]), (&json!(true), &json!("ended")));
    assert_eq!(info["exit"], json!({"reason": "terminated"}));
    assert_eq!(texts(&server.events("s", "").await, "assistant"), ["hello"]);
    for path in ["messages", "messages/stream"] {
        let answer = server.post(&format!("/v1/sessions/s/{path}"), json!({"message": "more"})).await;
        assert_eq!(answer.refuses(400, "invalid_request")["detail"], "invalid request: session terminated");
    }
    for _ in 0..2 {
        server.order("/v1/sessions/s/resume").await.is(204);
    }
    let info = server.info("s").await;
    assert_eq!((&info["ended"], &info["status"], info.get("exit")), (&json!(false), &json!("idle"), None));
    assert_eq!(info["agentSessionId"], "mock-s");
    assert_eq!(texts(&server.say("s", "again").await, "assistant"), ["again"]);
    let full = server.events("s", "?view=full").await;
    assert_eq!(of_kind(&full, "sessionEnded"), [&json!({"reason": "terminated"})]);
    assert_eq!(of_kind(&full, "sessionResumed").len(), 1);
}

#[tokio::test]
async fn terminating_a_session_ends_its_turn_and_drops_its_queue() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut running = server.turn("s", "question", "?view=full&wait=60").await;
    running.until_kind("questionAsked").await;
    let mut waiting = server.turn("s", "never", "").await;
    server.order("/v1/sessions/s/terminate").await.is(204);
    let end = running.rest().await;
    assert_eq!(of_kind(&end, "turnEnded")[0]["outcome"], "interrupted");
    assert!(of_kind(&end, "questionResolved").iter().all(|resolved| resolved["outcome"] == "withdrawn"));
    assert_eq!(waiting.rest().await, [] as [Value; 0]);
    assert_eq!(texts(&server.events("s", "").await, "user"), ["question"]);
}

//= agents.besides-document.session-seen-changed-deleted
#[tokio::test]
async fn a_deleted_session_leaves_nothing() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "hello").await;
    server.delete("/v1/sessions/s").await.is(204);
    for answer in [
        server.get("/v1/sessions/s").await,
        server.get("/v1/sessions/s/events").await,
        server.get("/v1/sessions/s/events/sse").await,
        server.post("/v1/sessions/s/messages", json!({"message": "x"})).await,
        server.order("/v1/sessions/s/abort").await,
        server.order("/v1/sessions/s/terminate").await,
        server.order("/v1/sessions/s/resume").await,
        server.delete("/v1/sessions/s").await,
    ] {
        assert_eq!(answer.refuses(404, "session_not_found")["detail"], "session not found: s");
    }
    assert_eq!(server.get("/v1/sessions").await.is(200), json!({"sessions": []}));
    server.create("s").await;
    assert_eq!(kinds(&server.events("s", "").await), ["started"]);
}

//= agents.lifecycle.process-terminates-session-marked
//= promises.agents-server.agent-dies
#[tokio::test]
async fn a_crash_of_the_agent_is_reported_with_its_reason() {
    let server = TestServer::start().await;
    server.create("s").await;
    let turn = server.say("s", "crash 7").await;
    assert_eq!(kinds(&turn), ["message", "error"]);
    let error = of_kind(&turn, "error")[0];
    assert_eq!(error["kind"], "process_exit");
    assert_eq!(error["details"]["exitCode"], 7);
    assert!(error["message"].as_str().unwrap().contains("code 7"), "{error}");
    let stderr = "mock: requested exit code 7";
    assert_eq!(error["details"]["stderr"], stderr);
    let info = server.info("s").await;
    assert_eq!((&info["status"], &info["exit"]["reason"]), (&json!("ended"), &json!("exited")));
    assert_eq!((&info["exit"]["exitCode"], &info["exit"]["stderr"]), (&json!(7), &json!(stderr)));
    let problem = server.post("/v1/sessions/s/messages", json!({"message": "x"})).await;
    let problem = problem.refuses(500, "agent_process_exited");
    assert_eq!((&problem["details"]["exitCode"], &problem["details"]["stderr"]), (&json!(7), &json!(stderr)));
    assert_eq!((&problem["agent"], &problem["sessionId"]), (&json!("mock"), &json!("s")));
    let full = server.events("s", "?view=full").await;
    assert_eq!(of_kind(&full, "turnEnded")[0]["outcome"], "failed");
    assert_eq!(of_kind(&full, "sessionEnded")[0]["exitCode"], 7);
    server.order("/v1/sessions/s/resume").await.is(204);
    assert_eq!(texts(&server.say("s", "again").await, "assistant"), ["again"]);
}

//= agents.lifecycle.process-terminates-session-marked
#[tokio::test]
async fn an_agent_that_finishes_ends_its_session() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut all = server.follow("s").await;
    server.prompt("s", "end").await;
    let events = all.until_kind("sessionEnded").await;
    assert_eq!(of_kind(&events, "turnEnded")[0]["outcome"], "completed");
    assert_eq!(of_kind(&events, "sessionEnded"), [&json!({"reason": "exited", "exitCode": 0})]);
    assert!(of_kind(&events, "error").is_empty());
    assert_eq!(server.info("s").await["exit"], json!({"reason": "exited", "exitCode": 0}));
    let problem = server.post("/v1/sessions/s/messages", json!({"message": "x"})).await;
    assert_eq!(problem.refuses(500, "agent_process_exited")["details"]["exitCode"], 0);
}

//= agents.lifecycle.post-v1-sessions-id
#[tokio::test]
async fn the_first_event_is_logged_before_the_session_is_returned() {
    let server = TestServer::start().await;
    let mut stream = server.connect().await;
    // Concurrently, so that nothing else of the server runs in between.
    let create = "POST /v1/sessions/s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n";
    let list = "GET /v1/sessions/s/events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{create}{{\"agent\":\"mock\"}}{list}").as_bytes()).await.unwrap();
    let mut answers = String::new();
    soon(stream.read_to_string(&mut answers)).await.unwrap();
    assert!(answers.contains("session.created"), "{answers}");
}
