//! The OpenAPI document, and whether the server conforms to it.

use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    schema::{check, resolve},
    support::{TestServer, of_kind},
};

fn references<'value>(value: &'value Value, found: &mut Vec<&'value Value>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref"));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

//= promises.agents-server.description
#[test]
fn the_openapi_document_is_the_reviewed_one() {
    let mut document = carrel_agents::http::document();
    // A release changes only the version.
    document.info.version = "0.0.0".into();
    let served = serde_json::to_string_pretty(&document).unwrap() + "\n";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/openapi.json");
    if std::env::var_os("UPDATE_OPENAPI_SNAPSHOT").is_some() {
        std::fs::write(&path, &served).unwrap();
    }
    let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
    let first = served.lines().zip(reviewed.lines()).find(|(now, then)| now != then);
    assert!(
        served == reviewed,
        "the description differs from {}, first at {first:#?}\nhint: review the change, then run the test with \
         UPDATE_OPENAPI_SNAPSHOT=1",
        path.display()
    );
}

//= promises.agents-server.description
#[tokio::test]
async fn the_openapi_document_is_complete() {
    let server = TestServer::start().await;
    let document = server.get("/openapi.json").await.is(200);
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        resolve(&document, reference).unwrap();
    }
    let mut names = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let operations = operations.as_object().unwrap();
        assert!(!operations.is_empty(), "{path}");
        for (method, operation) in operations {
            assert!(operation["summary"].as_str().is_some_and(|words| !words.is_empty()), "{method} {path}");
            let answers = operation["responses"].as_object().unwrap();
            assert!(answers.keys().any(|status| status.starts_with('2')), "{method} {path}");
            names.push(operation["operationId"].as_str().unwrap());
            // Path parameters are documented, and no others.
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
            let described: Vec<_> = in_path.map(|parameter| parameter["name"].as_str().unwrap()).collect();
            let braces: Vec<_> = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
            assert_eq!(described, braces, "{method} {path}");
        }
    }
    assert_eq!(names.len(), 20);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 20, "two operations have one name");
}

/// Checks what the schema of an event does not say.
fn check_envelopes(events: &[Value]) {
    let mut before = OffsetDateTime::UNIX_EPOCH;
    for (event, id) in events.iter().zip(1..) {
        assert_eq!(event["id"], id);
        let names = ["sessionId", "agent", "agentSessionId"].map(|key| event[key].as_str());
        assert_eq!(names, [Some("s"), Some("mock"), Some("mock-s")], "{event}");
        let timestamp = event["timestamp"].as_str().unwrap();
        let time = OffsetDateTime::parse(timestamp, &Rfc3339).unwrap();
        assert!(timestamp.len() == 24 && timestamp.ends_with('Z') && time >= before, "{before} {event}");
        before = time;
        assert_eq!(event["data"].as_object().unwrap().len(), 1, "{event}");
    }
}

//= agents.architecture-components.shared-input-output-types
//= agents.universal-schema.universalevent-id-timestamp-session
//= agents.universal-schema.parts-text-tool-call
//= promises.agents-server.description
#[tokio::test]
async fn every_event_matches_its_schema() {
    let server = TestServer::start().await;
    let document = server.get("/openapi.json").await.is(200);
    let list = &document["components"]["schemas"]["EventList"];
    let event = &document["components"]["schemas"]["UniversalEvent"];
    server.create("s").await;
    server.say("s", "demo").await;
    for word in ["question", "permission"] {
        let requested = server.turn("s", word, "?wait=0").await.rest().await;
        assert!(requested.len() > 1);
        server.order("/v1/sessions/s/abort").await.is(204);
    }
    server.say("s", "crash").await;
    server.order("/v1/sessions/s/resume").await.is(204);
    for view in ["default", "full"] {
        let answer = server.get(&format!("/v1/sessions/s/events?view={view}&includeRaw=true")).await.is(200);
        check(&document, list, &answer).unwrap();
        let events = answer["events"].as_array().unwrap();
        assert!(events.len() > 15);
        check_envelopes(events);
    }
    let full = server.events("s", "?view=full").await;
    for (word, minimum) in
        [("questionResolved", 2), ("permissionResolved", 2), ("sessionEnded", 1), ("sessionResumed", 1)]
    {
        assert!(of_kind(&full, word).len() >= minimum, "{word}");
    }
    // An event that does not match is rejected.
    let mut wrong = full[0].clone();
    wrong["data"] = json!({"startled": {}});
    check(&document, event, &wrong).unwrap_err();
}

//= agents.architecture-components.shared-input-output-types
//= promises.agents-server.description
#[tokio::test]
async fn every_response_matches_its_schema() {
    let server = TestServer::start().await;
    let document = server.get("/openapi.json").await.is(200);
    let schema = |path: &str, method: &str, status: &str| {
        let content = &document["paths"][path][method]["responses"][status]["content"];
        content.as_object().unwrap().values().next().unwrap()["schema"].clone()
    };
    let created = server.post("/v1/sessions/s", json!({"agent": "mock"})).await.is(200);
    check(&document, &schema("/v1/sessions/{sessionId}", "post", "200"), &created).unwrap();
    let info = schema("/v1/sessions/{sessionId}", "get", "200");
    check(&document, &info, &server.info("s").await).unwrap();
    server.say("s", "crash 3").await;
    check(&document, &info, &server.info("s").await).unwrap();
    check(&document, &schema("/v1/sessions", "get", "200"), &server.get("/v1/sessions").await.is(200)).unwrap();
    for path in ["/v1/health", "/v1/agents"] {
        check(&document, &schema(path, "get", "200"), &server.get(path).await.is(200)).unwrap();
    }
    for what in ["modes", "models"] {
        let answer = server.get(&format!("/v1/agents/mock/{what}")).await.is(200);
        check(&document, &schema(&format!("/v1/agents/{{agent}}/{what}"), "get", "200"), &answer).unwrap();
    }
    let problem = server.post("/v1/sessions/s/messages", json!({"message": "x"})).await.is(500);
    check(&document, &schema("/v1/sessions/{sessionId}/messages", "post", "default"), &problem).unwrap();
}
