//! Events: one log, two views, and pages of each.

use serde_json::{Value, json};

use crate::support::{TestServer, kinds};

fn ids(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["id"].as_u64().unwrap()).collect()
}

async fn demo() -> TestServer {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "demo").await;
    server
}

//= agents.universal-schema.universalevent-id-timestamp-session
//= agents.session-management.agent-id-surfaced-events
//= agents.compatibility.session-ids-session-id
#[tokio::test]
async fn the_first_event_is_that_the_session_was_created() {
    let server = TestServer::start().await;
    server.create("s").await;
    for query in ["", "?view=full"] {
        let events = server.events("s", query).await;
        assert_eq!(events.len(), 1);
        let timestamp = events[0]["timestamp"].as_str().unwrap();
        assert!(timestamp.starts_with("20") && timestamp.ends_with('Z') && timestamp.len() == 24, "{timestamp}");
        let whole = json!({
            "id": 1, "timestamp": timestamp, "sessionId": "s", "agent": "mock", "agentSessionId": "mock-s",
            "data": {"started": {"message": "session.created"}},
        });
        assert_eq!(events[0], whole);
        assert_eq!(events[0].as_object().unwrap().keys().next().unwrap(), "id");
    }
}

//= agents.universal-schema.data-message-started-error
//= agents.event-streaming.events-monotonically-increasing-id
//= promises.agents-server.events-session
#[tokio::test]
async fn both_views_number_events_from_one_without_gaps() {
    let server = demo().await;
    let (default, full) = (server.events("s", "?view=default").await, server.events("s", "?view=full").await);
    assert_eq!(default, server.events("s", "").await);
    for events in [&default, &full] {
        assert_eq!(ids(events), (1..=events.len() as u64).collect::<Vec<_>>());
    }
    assert_eq!(server.info("s").await["eventCount"], default.len());
    // The default view is the full one without details.
    let six = ["message", "started", "error", "questionAsked", "permissionAsked", "raw"];
    let without_id = |event: &Value| {
        let mut event = event.clone();
        event.as_object_mut().unwrap().remove("id");
        event
    };
    let of_six = full.iter().filter(|event| six.contains(&kinds(std::slice::from_ref(event))[0]));
    assert_eq!(default.iter().map(without_id).collect::<Vec<_>>(), of_six.map(without_id).collect::<Vec<_>>());
    for kind in ["turnStarted", "itemStarted", "itemDelta", "itemCompleted", "notice", "usage", "turnEnded"] {
        assert!(kinds(&full).contains(&kind), "{kind}");
    }
    assert!(default.len() < full.len());
}

//= agents.lifecycle.get-events-polls-offset
//= agents.event-streaming.events-slice-offset-limit
//= promises.agents-server.client-cut
#[tokio::test]
async fn an_offset_is_the_last_id_that_was_seen() {
    let server = demo().await;
    for view in ["default", "full"] {
        let all = server.events("s", &format!("?view={view}")).await;
        for offset in [0, 1, all.len() - 1, all.len(), all.len() + 7] {
            let behind = server.events("s", &format!("?view={view}&offset={offset}")).await;
            assert_eq!(behind, all[offset.min(all.len())..], "{view} {offset}");
        }
        assert!(server.events("s", &format!("?offset={}", u64::MAX)).await.is_empty());
    }
}

//= agents.lifecycle.get-events-polls-offset
//= agents.event-streaming.events-slice-offset-limit
#[tokio::test]
async fn a_limited_list_reports_whether_there_are_more_events() {
    let server = demo().await;
    let all = server.events("s", "").await;
    let slice = async |query: String| server.get(&format!("/v1/sessions/s/events{query}")).await.is(200);
    assert_eq!(slice(String::new()).await["hasMore"], false);
    for limit in 0..all.len() + 2 {
        let given = slice(format!("?limit={limit}")).await;
        assert_eq!(given["events"].as_array().unwrap()[..], all[..limit.min(all.len())]);
        assert_eq!(given["hasMore"], limit < all.len(), "{limit}");
    }
    let (mut collected, mut more) = (Vec::new(), true);
    while more {
        let given = slice(format!("?limit=3&offset={}", collected.len())).await;
        collected.extend(given["events"].as_array().unwrap().clone());
        more = given["hasMore"].as_bool().unwrap();
    }
    assert_eq!(collected, all);
}

#[tokio::test]
async fn raw_messages_are_included_on_request() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "unknown").await;
    let native = json!({"type": "mock.unknown", "value": 1});
    for query in ["includeRaw=true", "include_raw=true", "includeRaw=1", "view=full&includeRaw=true"] {
        let events = server.events("s", &format!("?{query}")).await;
        let raw: Vec<_> = events.iter().filter_map(|event| event.get("raw")).collect();
        assert_eq!(raw, [&native], "{query}");
        let mut stream = server.stream("s", &format!("?{query}")).await;
        let streamed = stream.until(|event| event["id"] == events.len()).await;
        assert_eq!(streamed, events, "{query}");
    }
    for query in ["", "?includeRaw=false", "?include_raw=0"] {
        assert!(server.events("s", query).await.iter().all(|event| event.get("raw").is_none()), "{query}");
    }
}

//= agents.universal-schema.message-parsed-role-parts
//= agents.universal-schema.parts-text-tool-call
//= agents.compatibility.mock-bundled-daemon-makes
//= agents.modes-capabilities.files-images-parts
#[tokio::test]
async fn texts_tools_attachments_and_unknown_parts_are_emitted() {
    let server = demo().await;
    let events = server.events("s", "").await;
    let parts: Vec<_> = events
        .iter()
        .filter_map(|event| event["data"]["message"]["parts"].as_array())
        .flatten()
        .map(|part| part["type"].as_str().unwrap())
        .collect();
    for kind in ["text", "tool_call", "tool_result", "image", "file", "unknown"] {
        assert!(parts.contains(&kind), "{kind}: {parts:?}");
    }
    let unparsed = events.iter().find_map(|event| event["data"]["message"].get("raw"));
    assert_eq!(unparsed, Some(&json!("{not json")));
    let roles: Vec<_> = events.iter().filter_map(|event| event["data"]["message"]["role"].as_str()).collect();
    let call = parts.iter().position(|part| *part == "tool_call").unwrap();
    assert_eq!(parts[call + 1], "tool_result");
    assert!(roles.contains(&"tool") && roles[0] == "user");
}
