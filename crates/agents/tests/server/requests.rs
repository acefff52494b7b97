//! Requests of the agent, and their answers.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    sse_reader::SseReader,
    support::{TestServer, kinds, of_kind, texts},
};

/// A session whose agent has two pending requests of this kind.
async fn asking(server: &TestServer, word: &str, kind: &str) -> (SseReader, [String; 2]) {
    server.create("s").await;
    let mut stream = server.turn("s", word, "?view=full&wait=60").await;
    let mut events = stream.until_kind(kind).await;
    events.extend(stream.until_kind(kind).await);
    let ids: Vec<_> =
        of_kind(&events, kind).iter().map(|requested| requested["id"].as_str().unwrap().to_owned()).collect();
    (stream, ids.try_into().unwrap())
}

async fn question(server: &TestServer, id: &str, answers: Value) -> crate::support::TestResponse {
    server.post(&format!("/v1/sessions/s/questions/{id}/reply"), json!({"answers": answers})).await
}

async fn permission(server: &TestServer, id: &str, reply: Value) -> crate::support::TestResponse {
    server.post(&format!("/v1/sessions/s/permissions/{id}/reply"), reply).await
}

//= agents.lifecycle.post-questions-id-reply
//= agents.human-loop.questions-surface-questionasked-options
#[tokio::test]
async fn questions_are_answered_in_any_order_and_with_more_than_one_choice() {
    let server = TestServer::start().await;
    let (mut stream, [color, experiment]) = asking(&server, "questions", "questionAsked").await;
    let events = server.events("s", "").await;
    let requested = of_kind(&events, "questionAsked")[0];
    let whole = json!({"id": color, "sessionId": "s", "questions": [{
        "question": "Which colors do you like?", "header": "color", "multiSelect": true, "custom": true,
        "options": [{"label": "Red"}, {"label": "Green"}, {"label": "Blue"}],
    }]});
    assert_eq!(*requested, whole);
    assert_eq!(server.info("s").await["status"], "waiting");
    question(&server, &experiment, json!([["No"]])).await.is(204);
    assert_eq!(server.info("s").await["status"], "waiting");
    question(&server, &color, json!([["Red", "Blue", "and gold"]])).await.is(204);
    let end = stream.rest().await;
    let received = [format!("{experiment}: answered No"), format!("{color}: answered Red, Blue, and gold")];
    assert_eq!(texts(&end, "assistant"), received);
    let resolved = json!({"id": color, "outcome": "answered", "answers": [["Red", "Blue", "and gold"]]});
    assert_eq!(of_kind(&end, "questionResolved")[1], &resolved);
    assert_eq!(of_kind(&end, "turnEnded")[0]["outcome"], "completed");
    assert_eq!(server.info("s").await["status"], "idle");
}

//= agents.lifecycle.post-questions-id-reply
#[tokio::test]
async fn questions_can_be_rejected() {
    let server = TestServer::start().await;
    let (mut stream, [one, other]) = asking(&server, "question", "questionAsked").await;
    server.order(&format!("/v1/sessions/s/questions/{one}/reject")).await.is(204);
    question(&server, &other, json!([["Yes"]])).await.is(204);
    let end = stream.rest().await;
    assert_eq!(texts(&end, "assistant"), [format!("{one}: not answered"), format!("{other}: answered Yes")]);
    assert_eq!(of_kind(&end, "questionResolved")[0], &json!({"id": one, "outcome": "rejected"}));
}

//= agents.lifecycle.post-permissions-id-reply
//= promises.agents-server.answers-question-permission
#[tokio::test]
async fn a_permission_is_granted_once_always_or_rejected() {
    for (reply, outcome, received) in [
        (json!({"reply": "once"}), "once", "allowed once"),
        (json!({"reply": "always"}), "always", "always allowed"),
        (json!({"reply": "reject"}), "reject", "rejected"),
        (json!({"reply": "reject", "message": "not today"}), "reject", "rejected, not today"),
    ] {
        let server = TestServer::start().await;
        let (mut stream, [one, other]) = asking(&server, "permission", "permissionAsked").await;
        let events = server.events("s", "").await;
        let requested = of_kind(&events, "permissionAsked")[0];
        assert_eq!((&requested["sessionId"], &requested["permission"]), (&json!("s"), &json!("commandExecution")));
        assert_eq!(
            (&requested["patterns"], &requested["always"]),
            (&json!(["rm -rf build"]), &json!(["rm -rf build"]))
        );
        assert_eq!(requested["metadata"], json!({"command": "rm -rf build"}));
        permission(&server, &one, reply).await.is(204);
        permission(&server, &other, json!({"reply": "once"})).await.is(204);
        let end = stream.rest().await;
        assert_eq!(texts(&end, "assistant")[0], format!("{one}: {received}"));
        assert_eq!(of_kind(&end, "permissionResolved")[0], &json!({"id": one, "outcome": outcome}));
    }
}

//= promises.agents-server.answers-question-permission
#[tokio::test]
async fn a_second_answer_is_rejected_even_concurrently() {
    let server = TestServer::start().await;
    let (stream, [one, other]) = asking(&server, "permission", "permissionAsked").await;
    let answers = join_all((0..10).map(|_| permission(&server, &one, json!({"reply": "once"})))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 204).count(), 1);
    for answer in answers.iter().filter(|answer| answer.status != 204) {
        let problem = answer.refuses(400, "invalid_request");
        assert_eq!(problem["detail"], format!("invalid request: unknown permission id: {one}"));
    }
    permission(&server, &other, json!({"reply": "once"})).await.is(204);
    permission(&server, &other, json!({"reply": "reject"})).await.refuses(400, "invalid_request");
    drop(stream);
    // Nor after its turn.
    let mut all = server.follow("s").await;
    all.until_kind("turnEnded").await;
    permission(&server, &one, json!({"reply": "once"})).await.refuses(400, "invalid_request");
}

//= agents.session-management.session-id-agent-modes
//= promises.agents-server.answers-question-permission
#[tokio::test]
async fn an_answer_to_an_unknown_request_is_rejected() {
    let server = TestServer::start().await;
    let (_stream, [one, _]) = asking(&server, "question", "questionAsked").await;
    let problem = question(&server, "unknown", json!([["Yes"]])).await.refuses(400, "invalid_request");
    assert_eq!(problem["detail"], "invalid request: unknown question id: unknown");
    server.order("/v1/sessions/s/questions/unknown/reject").await.refuses(400, "invalid_request");
    // A question is not a permission request, and stays pending.
    permission(&server, &one, json!({"reply": "once"})).await.refuses(400, "invalid_request");
    permission(&server, &one, json!({"reply": "perhaps"})).await.refuses(400, "invalid_request");
    question(&server, &one, json!("Yes")).await.refuses(400, "invalid_request");
    question(&server, &one, json!([["Yes"]])).await.is(204);
    server.post("/v1/sessions/t/questions/q/reply", json!({"answers": []})).await.refuses(404, "session_not_found");
}

#[tokio::test]
async fn requests_of_a_turn_are_withdrawn_at_its_end() {
    let server = TestServer::start().await;
    let (mut stream, [one, other]) = asking(&server, "question", "questionAsked").await;
    question(&server, &one, json!([["Yes"]])).await.is(204);
    server.order("/v1/sessions/s/abort").await.is(204);
    let end = stream.rest().await;
    assert_eq!(of_kind(&end, "questionResolved").last().unwrap(), &&json!({"id": other, "outcome": "withdrawn"}));
    assert_eq!(kinds(&end).last(), Some(&"turnEnded"));
    question(&server, &other, json!([["Yes"]])).await.refuses(400, "invalid_request");
    assert_eq!(server.info("s").await["status"], "idle");
}
