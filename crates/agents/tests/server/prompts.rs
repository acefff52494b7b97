//! Prompts: accepted once and run in order, even if the client disconnects.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::support::{TestResponse, TestServer, of_kind, texts, with_json};

/// Answers the two requests of the turn.
async fn answer_all(server: &TestServer, id: &str) {
    for question in of_kind(&server.events(id, "").await, "questionAsked") {
        let path = format!("/v1/sessions/{id}/questions/{}/reject", question["id"].as_str().unwrap());
        server.order(&path).await.is(204);
    }
}

//= agents.lifecycle.post-messages-runs-prompt
//= promises.agents-server.prompts-wait
#[tokio::test]
async fn prompts_run_in_the_order_in_which_they_arrived() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut first = server.turn("s", "question", "?wait=60").await;
    first.until_kind("questionAsked").await;
    let words: Vec<_> = (0..5).map(|number| format!("word {number}")).collect();
    for word in &words {
        server.prompt("s", word).await;
    }
    let mut last = server.turn("s", "last", "?view=full").await;
    assert_eq!(server.info("s").await["queued"], 6);
    assert_eq!(texts(&server.events("s", "").await, "user"), ["question"]);
    answer_all(&server, "s").await;
    // The stream of a queued prompt starts with its own turn.
    let last = last.rest().await;
    assert_eq!(last[0]["data"]["turnStarted"]["turnId"], "turn-7");
    assert_eq!(texts(&last, "assistant"), ["last"]);
    let events = server.events("s", "?view=full").await;
    assert_eq!(texts(&events, "user")[1..6], words);
    assert_eq!(texts(&events, "assistant")[2..7], words);
    let turns = events.iter().filter_map(|event| {
        let data = &event["data"];
        data.get("turnStarted").map(|_| true).or(data.get("turnEnded").map(|_| false))
    });
    // No turn starts before the previous one has ended.
    assert_eq!(turns.collect::<Vec<_>>(), [true, false].repeat(7));
}

//= promises.agents-server.prompts-wait
#[tokio::test]
async fn the_queue_is_bounded() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.turn("s", "slow", "").await.next().await.unwrap();
    let prompt = || server.post("/v1/sessions/s/messages", json!({"message": "never"}));
    for _ in 0..10 {
        for answer in join_all((0..100).map(|_| prompt())).await {
            answer.is(204);
        }
    }
    let problem = prompt().await.refuses(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("1000 messages wait"), "{problem}");
    server.order("/v1/sessions/s/abort").await.is(204);
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
}

//= promises.agents-server.times-prompt-id-runs
#[tokio::test]
async fn a_retried_prompt_runs_once() {
    let server = TestServer::start().await;
    server.create("s").await;
    let named = json!({"message": "hello", "messageId": "m1"});
    let answers = join_all((0..100).map(|number| {
        let request = server.request(Method::POST, "/v1/sessions/s/messages");
        // The header and the field are equivalent.
        let request = match number % 2 {
            0 => with_json(request, &named),
            _ => with_json(request.header("idempotency-key", "m1"), &json!({"message": "hello"})),
        };
        TestResponse::to(request)
    }))
    .await;
    for answer in answers {
        answer.is(204);
    }
    // A retry can still follow the turn.
    let again = server.request(Method::POST, "/v1/sessions/s/messages/stream?view=full");
    let again = crate::sse_reader::SseReader::of(with_json(again, &named)).await.rest().await;
    assert_eq!(again[0]["data"]["turnStarted"], json!({"turnId": "turn-1", "messageId": "m1"}));
    assert_eq!((again[1]["data"]["message"]["id"].as_str(), texts(&again, "user")), (Some("m1"), vec!["hello".into()]));
    let events = server.events("s", "?view=full").await;
    assert_eq!((of_kind(&events, "turnStarted").len(), texts(&events, "user").len()), (1, 1));
}

//= promises.agents-server.times-prompt-id-runs
#[tokio::test]
async fn a_message_id_with_another_text_is_a_conflict() {
    let server = TestServer::start().await;
    server.create("s").await;
    let prompt =
        |id: &str, text: &str| server.post("/v1/sessions/s/messages", json!({"message": text, "messageId": id}));
    prompt("m1", "one").await.is(204);
    prompt("m1", "two").await.refuses(409, "conflict");
    let request = server.request(Method::POST, "/v1/sessions/s/messages").header("idempotency-key", "m1");
    TestResponse::to(with_json(request, &json!({"message": "two"}))).await.refuses(409, "conflict");
    prompt("m2", "one").await.is(204);
    prompt(&"x".repeat(257), "one").await.refuses(400, "invalid_request");
    // Ids are unique per session.
    server.create("t").await;
    server.post("/v1/sessions/t/messages", json!({"message": "two", "messageId": "m1"})).await.is(204);
    server.say("s", "last").await;
    assert_eq!(texts(&server.events("s", "").await, "user"), ["one", "one", "last"]);
}

#[tokio::test]
async fn an_unreadable_idempotency_key_is_rejected() {
    let server = TestServer::start().await;
    server.create("s").await;
    let key = reqwest::header::HeaderValue::from_bytes(b"caf\xe9").unwrap();
    let request = server.request(Method::POST, "/v1/sessions/s/messages").header("idempotency-key", key);
    TestResponse::to(with_json(request, &json!({"message": "never"}))).await.refuses(400, "invalid_request");
    assert_eq!(server.events("s", "").await.len(), 1);
}

#[tokio::test]
async fn a_dropped_prompt_can_be_sent_again() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.turn("s", "slow", "").await.next().await.unwrap();
    let prompt = json!({"message": "hello", "messageId": "m1"});
    server.post("/v1/sessions/s/messages", prompt.clone()).await.is(204);
    server.order("/v1/sessions/s/abort").await.is(204);
    server.post("/v1/sessions/s/messages", prompt).await.is(204);
    server.say("s", "last").await;
    assert_eq!(texts(&server.events("s", "").await, "user"), ["slow", "hello", "last"]);
}

//= promises.agents-server.prompt-whose-client-leaves
#[tokio::test]
async fn a_prompt_outlives_the_client_that_sent_it() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut all = server.follow("s").await;
    let mut turn = server.turn("s", "question", "?wait=60").await;
    turn.until_kind("questionAsked").await;
    let waiting = server.turn("s", "behind", "").await;
    drop((turn, waiting));
    // A new connection: interrupted ones are not reused.
    server.get("/v1/health").await.is(200);
    answer_all(&server, "s").await;
    all.until_kind("turnEnded").await;
    let behind = all.until_kind("turnEnded").await;
    assert_eq!(texts(&behind, "assistant"), ["behind"]);
}
