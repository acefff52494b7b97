//! Event streams: frames, offsets and ends.

use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::{
    sse_reader::SseReader,
    support::{TestResponse, TestServer, kinds, soon, texts},
};

//= agents.lifecycle.get-events-sse-subscribes
#[tokio::test]
async fn an_event_is_an_id_a_line_of_data_and_a_blank_line() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "echo one\ntwo\r\nthree\u{2028}four").await;
    let events = server.get("/v1/sessions/s/events").await.is(200);
    let mut stream = BufReader::new(server.connect().await);
    let request = b"GET /v1/sessions/s/events/sse HTTP/1.0\r\nhost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut lines = stream.lines();
    // With HTTP/1.0 the body is the bare stream.
    while !soon(lines.next_line()).await.unwrap().unwrap().is_empty() {}
    for event in events["events"].as_array().unwrap() {
        let mut line = async || soon(lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line().await, format!("id: {}", event["id"]));
        assert_eq!(line().await, format!("data: {event}"));
        assert_eq!(line().await, "");
    }
}

//= agents.architecture-components.daemon-manages-agent-processes
//= agents.lifecycle.get-events-sse-subscribes
//= agents.event-streaming.event-numbered-appended-sent
#[tokio::test]
async fn earlier_events_precede_new_ones() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "one").await;
    let mut stream = server.stream("s", "").await;
    let before = stream.until(|event| texts(std::slice::from_ref(event), "assistant") == ["one"]).await;
    assert_eq!(before, server.events("s", "").await);
    server.prompt("s", "two").await;
    let live = stream.until(|event| texts(std::slice::from_ref(event), "assistant") == ["two"]).await;
    assert_eq!([before, live].concat(), server.events("s", "").await);
}

//= agents.event-streaming.events-slice-offset-limit
//= promises.agents-server.client-cut
#[tokio::test]
async fn the_last_event_id_wins_over_the_offset() {
    let server = TestServer::start().await;
    server.create("s").await;
    server.say("s", "demo").await;
    for (query, view) in [("?offset=1", ""), ("?view=full&offset=1", "?view=full")] {
        let all = server.events("s", view).await;
        let path = format!("/v1/sessions/s/events/sse{query}");
        assert_eq!(server.stream("s", query).await.next().await.as_ref(), Some(&all[1]));
        let mut stream = SseReader::of(server.request(Method::GET, &path).header("last-event-id", "5")).await;
        assert_eq!(stream.until(|event| event["id"] == all.len()).await, all[5..]);
    }
    for bad in ["", "x", "-1", "1.5", "1 2", "99999999999999999999999"] {
        let request = server.request(Method::GET, "/v1/sessions/s/events/sse").header("last-event-id", bad);
        TestResponse::to(request).await.refuses(400, "invalid_request");
    }
}

#[tokio::test]
async fn the_stream_of_an_ended_session_stays_open() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut stream = server.follow("s").await;
    server.order("/v1/sessions/s/terminate").await.is(204);
    stream.until_kind("sessionEnded").await;
    let mut late = server.follow("s").await;
    late.until_kind("sessionEnded").await;
    // Later events still arrive.
    server.order("/v1/sessions/s/resume").await.is(204);
    for stream in [&mut stream, &mut late] {
        assert_eq!(kinds(&[stream.next().await.unwrap()]), ["sessionResumed"]);
    }
}

#[tokio::test]
async fn the_streams_of_a_deleted_session_end() {
    let server = TestServer::start().await;
    server.create("s").await;
    let (mut default, mut full) = (server.stream("s", "").await, server.follow("s").await);
    let mut turn = server.turn("s", "question", "?wait=60").await;
    turn.until_kind("questionAsked").await;
    server.delete("/v1/sessions/s").await.is(204);
    let (default, full) = (default.rest().await, full.rest().await);
    assert_eq!(kinds(&default), ["started", "message", "questionAsked", "questionAsked"]);
    assert_eq!(kinds(&full).last(), Some(&"turnEnded"));
    turn.rest().await;
}

#[tokio::test]
async fn a_stream_with_an_offset_beyond_the_end_starts_there() {
    let server = TestServer::start().await;
    server.create("s").await;
    let mut stream = server.stream("s", "?offset=3").await;
    server.say("s", "one").await;
    server.say("s", "two").await;
    let next: Value = stream.next().await.unwrap();
    assert_eq!(next["id"], 4);
    assert_eq!(texts(&[next], "user"), ["two"]);
}
