//! Many events, many sessions, and misbehaving clients.

use futures_util::future::join_all;
use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    sse_reader::SseReader,
    support::{TestServer, kinds, soon, texts},
};

/// One event of the session itself, one prompt, and then the numbers.
const BURST: u64 = 100_000;
const LAST: u64 = BURST + 2;

/// Checks that each number arrives once and in order.
struct EventCounter(u64);

impl EventCounter {
    /// Checks the next event; returns whether it was the last. Parsing them all would take longer than the burst.
    async fn take(&mut self, stream: &mut SseReader) -> bool {
        let block = stream.block().await.unwrap();
        self.0 += 1;
        let head = format!("id: {id}\ndata: {{\"id\":{id},", id = self.0);
        let tail = match self.0 {
            1 => "session.created\"}}}".to_owned(),
            2 => format!("\"text\":\"burst {BURST}\"}}]}}}}}}"),
            id => format!("\"text\":\"burst {}\"}}]}}}}}}", id - 2),
        };
        assert!(block.starts_with(&head) && block.ends_with(&tail), "{block} is not {head} {tail}");
        self.0 == LAST
    }
}

/// A pseudorandom sequence: the same interruptions in every run.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

//= agents.session-management.broadcaster-channel-streams-streams
//= promises.agents-server.100-000-events-burst
#[tokio::test]
async fn each_of_a_hundred_thousand_events_reaches_every_reader_once() {
    let server = TestServer::start().await;
    server.create("s").await;
    let stalled = server.stream("s", "").await;
    let fast = async {
        let (mut stream, mut tally) = (server.stream("s", "").await, EventCounter(0));
        while !tally.take(&mut stream).await {}
        // The turn has ended: only now the blocked reader starts to read.
        let (mut stream, mut tally) = (stalled, EventCounter(0));
        while !tally.take(&mut stream).await {}
    };
    let cut = async {
        let (mut tally, mut random, mut cuts) = (EventCounter(0), 0x2545_f491_4f6c_dd1d, 0);
        'again: loop {
            let request = server.request(Method::GET, "/v1/sessions/s/events/sse");
            let mut stream = SseReader::of(request.header("last-event-id", tally.0.to_string())).await;
            for _ in 0..=next(&mut random) % 2000 {
                if tally.take(&mut stream).await {
                    break 'again;
                }
            }
            cuts += 1;
        }
        assert!(cuts > 20, "only {cuts} cuts");
    };
    let words = format!("burst {BURST}");
    tokio::join!(fast, cut, server.prompt("s", &words));
    let memory = server.memory();
    assert!(memory < 200 * 1024, "the server holds {memory} KiB");
    assert_eq!(server.info("s").await["eventCount"], LAST);
    assert_eq!(server.events("s", &format!("?offset={}", LAST - 1)).await[0]["id"], LAST);
}

//= promises.agents-server.50-readers-stand-still
#[tokio::test]
async fn blocked_readers_cost_no_memory() {
    let server = TestServer::start().await;
    server.create("s").await;
    let before = {
        server.say("s", "burst 20000").await;
        server.memory()
    };
    // Each requests everything, some 6 MiB, and reads nothing.
    let mut stalled = Vec::new();
    for _ in 0..50 {
        stalled.push(server.stream("s", "").await);
    }
    server.say("s", "hello").await;
    let more = server.memory().saturating_sub(before);
    assert!(more < 50 * 1024, "fifty readers cost {more} KiB");
}

//= promises.agents-server.sessions-once
#[tokio::test]
async fn fifty_concurrent_sessions_do_not_interfere() {
    let server = TestServer::start().await;
    join_all((0..50).map(async |number| {
        let id = format!("s{number}");
        server.create(&id).await;
        let mut all = server.follow(&id).await;
        for turn in 0..5 {
            assert_eq!(texts(&server.say(&id, &format!("{id} {turn}")).await, "assistant"), [format!("{id} {turn}")]);
        }
        let burst = server.say(&id, "burst 200").await;
        assert_eq!(burst.len(), 201);
        server.order(&format!("/v1/sessions/{id}/terminate")).await.is(204);
        let events = all.until_kind("sessionEnded").await;
        assert!(events.iter().all(|event| event["sessionId"] == id));
        assert_eq!(texts(&events, "assistant").len(), 205);
    }))
    .await;
    assert_eq!(server.get("/v1/sessions").await.is(200)["sessions"].as_array().unwrap().len(), 50);
}

//= promises.agents-server.written-session-log
#[tokio::test]
async fn a_full_log_ends_its_session() {
    let server = TestServer::with(&["--no-token", "--log-limit", "1"]).await;
    server.create("s").await;
    let mut all = server.follow("s").await;
    let turn = server.say("s", "burst 10000000").await;
    assert!(turn.len() < 20_000, "{} events are more than a MiB", turn.len());
    let last = turn.last().unwrap();
    assert_eq!(last["data"]["error"]["kind"], "log_full");
    let events = all.until_kind("sessionEnded").await;
    assert_eq!(kinds(&events)[events.len() - 2..], ["turnEnded", "sessionEnded"]);
    assert_eq!(events.last().unwrap()["data"]["sessionEnded"]["reason"], "failed");
    let problem = server.post("/v1/sessions/s/messages", serde_json::json!({"message": "x"})).await;
    problem.refuses(500, "agent_process_exited");
    // Other sessions have their own log.
    server.create("t").await;
    assert_eq!(texts(&server.say("t", "hello").await, "assistant"), ["hello"]);
}

#[tokio::test]
async fn idle_and_malformed_clients_do_not_disturb_others() {
    let server = TestServer::start().await;
    let mut connections = Vec::new();
    for number in 0..200 {
        let mut connection = server.connect().await;
        let half: &[u8] = match number % 4 {
            0 => b"",
            1 => b"G",
            2 => b"POST /v1/sessions/s HTTP/1.1\r\nhost: localhost\r\ncontent-",
            _ => {
                b"POST /v1/sessions/s HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{\"agent"
            }
        };
        connection.write_all(half).await.unwrap();
        connections.push(connection);
    }
    for nonsense in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        &[0; 5000],
        &[b'A'; 1_000_000],
    ] {
        let mut connection = server.connect().await;
        let _cut_already = connection.write_all(nonsense).await;
        let mut answer = Vec::new();
        let _cut = soon(connection.read_to_end(&mut answer)).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    }
    server.create("s").await;
    assert_eq!(texts(&server.say("s", "hello").await, "assistant"), ["hello"]);
    // A request that was interrupted is ignored.
    drop(connections);
    assert_eq!(server.get("/v1/sessions").await.is(200)["sessions"].as_array().unwrap().len(), 1);
}
