//! Invalid requests: each is rejected with problem details.

use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::json;

use crate::support::{TestResponse, TestServer};

const BODIES: [(Method, &str); 6] = [
    (Method::POST, "/v1/sessions/new"),
    (Method::PATCH, "/v1/sessions/s"),
    (Method::POST, "/v1/sessions/s/messages"),
    (Method::POST, "/v1/sessions/s/messages/stream"),
    (Method::POST, "/v1/sessions/s/questions/q/reply"),
    (Method::POST, "/v1/sessions/s/permissions/p/reply"),
];

async fn server() -> TestServer {
    let server = TestServer::start().await;
    server.create("s").await;
    server
}

//= promises.agents-server.refusals-problem-details
#[tokio::test]
async fn a_body_that_is_not_json_is_rejected() {
    let server = server().await;
    for (method, path) in BODIES {
        for body in ["", "{", "{\"message\": \"x\"", "not json", "\u{0}", "{} {}", "[]", "null", "\"x\""] {
            let request = server.request(method.clone(), path).header(CONTENT_TYPE, "application/json");
            TestResponse::to(request.body(body)).await.refuses(400, "invalid_request");
        }
        let request = server.request(method.clone(), path).header(CONTENT_TYPE, "application/json");
        TestResponse::to(request.body(b"{\"message\": \"\xff\"}".to_vec())).await.refuses(400, "invalid_request");
    }
    let install = server.request(Method::POST, "/v1/agents/mock/install");
    TestResponse::to(install.header(CONTENT_TYPE, "application/json").body("{")).await.refuses(400, "invalid_request");
    assert_eq!(server.events("s", "?view=full").await.len(), 1);
}

//= agents.besides-document.refusal-problem-extractors-too
#[tokio::test]
async fn a_body_with_missing_or_wrong_fields_is_rejected() {
    let server = server().await;
    for (path, bodies) in [
        (
            "/v1/sessions/new",
            vec![json!({}), json!({"agent": 1}), json!({"agent": null}), json!({"agent": "mock", "title": 1})],
        ),
        (
            "/v1/sessions/s/messages",
            vec![json!({}), json!({"message": 1}), json!({"message": null}), json!({"message": "x", "messageId": 1})],
        ),
        ("/v1/sessions/s/messages/stream", vec![json!({}), json!({"message": ["x"]})]),
        ("/v1/sessions/s/questions/q/reply", vec![json!({}), json!({"answers": "x"}), json!({"answers": ["x"]})]),
        ("/v1/sessions/s/permissions/p/reply", vec![json!({}), json!({"reply": 1}), json!({"reply": "Once"})]),
    ] {
        for body in bodies {
            server.post(path, body).await.refuses(400, "invalid_request");
        }
    }
    server.patch("/v1/sessions/s", json!({"title": 1})).await.refuses(400, "invalid_request");
    server.get("/v1/sessions/new").await.refuses(404, "session_not_found");
}

//= agents.besides-document.refusal-problem-extractors-too
#[tokio::test]
async fn a_body_of_another_content_type_is_rejected() {
    let server = server().await;
    for (method, path) in BODIES {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json", ""] {
            let request = server.request(method.clone(), path).header(CONTENT_TYPE, kind).body("{}");
            TestResponse::to(request).await.refuses(415, "unsupported_media_type");
        }
        TestResponse::to(server.request(method, path).body("{}")).await.refuses(415, "unsupported_media_type");
    }
    for kind in ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.example+json"] {
        let request = server.request(Method::POST, "/v1/sessions/s/messages").header(CONTENT_TYPE, kind);
        TestResponse::to(request.body("{\"message\": \"x\"}")).await.is(204);
    }
}

//= promises.agents-server.refusals-problem-details
#[tokio::test]
async fn an_invalid_query_is_rejected() {
    let server = server().await;
    for query in [
        "offset=x",
        "offset=-1",
        "offset=",
        "limit=1.5",
        "view=other",
        "view=FULL",
        "includeRaw=perhaps",
        "offset=1&offset=2",
    ] {
        server.get(&format!("/v1/sessions/s/events?{query}")).await.refuses(400, "invalid_request");
        server.get(&format!("/v1/sessions/s/events/sse?{query}")).await.refuses(400, "invalid_request");
        let path = format!("/v1/sessions/s/messages/stream?{query}");
        server.post(&path, json!({"message": "never"})).await.refuses(400, "invalid_request");
    }
    assert_eq!(server.get("/v1/sessions/s/events?new=1").await.is(200)["hasMore"], false);
    assert_eq!(server.events("s", "").await.len(), 1);
}

//= promises.agents-server.refusals-problem-details
#[tokio::test]
async fn a_path_that_is_not_utf_8_is_rejected() {
    let server = server().await;
    for path in ["/v1/sessions/%FF", "/v1/sessions/%FF/events", "/v1/agents/%C3/modes"] {
        server.get(path).await.refuses(400, "invalid_request");
    }
    server.post("/v1/sessions/s/questions/%FF/reply", json!({"answers": []})).await.refuses(400, "invalid_request");
}

//= promises.agents-server.refusals-problem-details
#[tokio::test]
async fn an_unknown_path_or_method_is_reported() {
    let server = server().await;
    for path in
        ["/v1", "/v1/", "/v2/health", "/v1/sessions/", "/v1/sessions/s/", "/v1/sessions/s/nothing", "/v1/agents/mock"]
    {
        server.get(path).await.refuses(404, "not_found");
    }
    assert!(server.get("/").await.text().starts_with("sandbox-agent "));
    for (method, path) in [
        (Method::POST, "/v1/health"),
        (Method::DELETE, "/v1/sessions"),
        (Method::PUT, "/v1/sessions/s"),
        (Method::GET, "/v1/sessions/s/messages"),
        (Method::POST, "/v1/sessions/s/events"),
        (Method::GET, "/v1/sessions/s/abort"),
        (Method::POST, "/openapi.json"),
        (Method::from_bytes(b"BREW").unwrap(), "/v1/sessions/s"),
    ] {
        let answer = TestResponse::to(server.request(method, path)).await;
        answer.refuses(405, "method_not_allowed");
        assert!(answer.header("allow").is_some_and(|allowed| !allowed.is_empty()), "{answer:?}");
    }
}

//= promises.agents-server.body-request
#[tokio::test]
async fn a_body_that_is_too_large_is_rejected() {
    const MOST: usize = 32 * 1024 * 1024;
    let server = server().await;
    let prompt = |size: usize| {
        let request = server.request(Method::POST, "/v1/sessions/s/messages").header(CONTENT_TYPE, "application/json");
        let hello = r#"{"message": "hello"}"#;
        TestResponse::to(request.body(format!("{hello}{}", " ".repeat(size - hello.len()))))
    };
    prompt(MOST + 1).await.refuses(413, "payload_too_large");
    server.get("/v1/health").await.is(200);
    assert_eq!(server.events("s", "").await.len(), 1);
    prompt(MOST).await.is(204);
}
