//! Malformed and misplaced messages: the agent answers or closes that connection, and other clients are not affected.

use carrel_protocol::frame::MAX_LENGTH;
use carrel_protocol::payload::{
    CoreError, CoreErrorKind, ExecSignal, ExecStdin, FsData, FsOp, FsRange, FsRequest, Ping,
};
use carrel_protocol::{Flags, Generation, MessageType};
use carrel_tests::{Agentd, Peer, body, command, run};

/// Checks that the agent still answers on this connection.
async fn check_alive(peer: &mut Peer, id: u32) {
    peer.send(10, id, &Ping {}).await;
    assert_eq!(peer.next_of(id).await.message_type(), MessageType::Pong);
}

async fn refused(peer: &mut Peer, id: u32) -> CoreErrorKind {
    let received = peer.next_of(id).await;
    assert_eq!(received.flags, Flags::TERMINAL);
    received.payload(|envelope| envelope.payload::<CoreError>().unwrap().kind)
}

//= versioning.implementation-details.new-flag-bits-append
//= carrel.agent-itself.nothing-peer-sends-ends
//= carrel.protocol.known-flags-bad-combination
//= carrel.agent-itself.id-outside-range-broken
//= promises.agent.messages-end
#[test]
fn every_kind_of_malformed_message_has_its_error() {
    run(async {
        let agentd = Agentd::start();
        let mut peer = Peer::connect(&agentd.socket()).await;
        let first = peer.first_id;
        let unknown = b"\xa3\x61v\x0a\x61t\x64nope\x61p\x41\xa0";
        let no_payload = b"\xa3\x61v\x0a\x61t\x71core.exec.request\x61p\x41\xa0";
        let cases: [(Flags, &[u8], CoreErrorKind); 9] = [
            (Flags::NONE, b"garbage", CoreErrorKind::MalformedMessage),
            (Flags::NONE, b"", CoreErrorKind::MalformedMessage),
            (Flags::NONE, &[0x81; 100_000], CoreErrorKind::MalformedMessage),
            (Flags::BULK, b"short", CoreErrorKind::MalformedMessage),
            (Flags::NONE, unknown, CoreErrorKind::UnsupportedMessageType),
            (Flags::from_bits(3), unknown, CoreErrorKind::InvalidFlags),
            (Flags::TERMINAL, b"\xa3\x61v\x0a\x61t\x69core.ping\x61p\x41\xa0", CoreErrorKind::InvalidFlags),
            (Flags::SESSION_START, no_payload, CoreErrorKind::InvalidPayload),
            (Flags::NONE, b"\xa3\x61v\x0a\x61t\x6acore.ready\x61p\x41\xa0", CoreErrorKind::UnsupportedMessageType),
        ];
        for (offset, (flags, body, kind)) in (10..).zip(cases) {
            peer.send_body(first + offset, flags, body).await;
            assert_eq!(refused(&mut peer, first + offset).await, kind, "{body:02x?}");
            check_alive(&mut peer, first + 1000 + offset).await;
        }
        // Unknown bits are ignored.
        peer.send_body(first + 30, Flags::from_bits(0xf0), &body(10, &Ping {})).await;
        assert_eq!(peer.next_of(first + 30).await.message_type(), MessageType::Pong);
    });
}

//= carrel.agent-itself.nothing-peer-sends-ends
#[test]
fn a_misplaced_message_is_refused_and_its_session_continues() {
    run(async {
        let agentd = Agentd::start();
        let mut peer = Peer::connect(&agentd.socket()).await;
        let id = peer.first_id;
        peer.send(7, id + 1, &ExecSignal { signal: 9, whole: false }).await;
        assert_eq!(refused(&mut peer, id + 1).await, CoreErrorKind::InvalidSession);
        peer.send(7, id, &command("cat", &[])).await;
        assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecStarted);
        peer.send(7, id, &command("cat", &[])).await;
        assert_eq!(refused(&mut peer, id).await, CoreErrorKind::InvalidSession);
        peer.send(7, id, &FsData { data: b"x"[..].into() }).await;
        assert_eq!(refused(&mut peer, id).await, CoreErrorKind::InvalidSession);
        peer.send_body(id, Flags::BULK, b"\x01\x01\0\0\0\0\0\0\0\0\0\0data").await;
        assert_eq!(refused(&mut peer, id).await, CoreErrorKind::InvalidSession);
        peer.send(7, id, &ExecStdin { data: b"through"[..].into() }).await;
        peer.send(7, id, &ExecStdin { data: b""[..].into() }).await;
        assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecStdout);
        assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecExited);
        // Messages that were in flight when their session ended are ignored, not refused.
        let write = FsRange { handle: 77, offset: 0, len: None };
        peer.send(7, id + 3, &FsRequest { op: FsOp::Write(write), bulk: None, no_symlinks: false }).await;
        assert_eq!(peer.next_of(id + 3).await.message_type(), MessageType::FsResponse);
        peer.send(7, id + 3, &FsData { data: b"x"[..].into() }).await;
        peer.send(7, id, &ExecSignal { signal: 9, whole: false }).await;
        peer.send(7, id + 2, &Ping {}).await;
        assert_eq!(peer.next().await.unwrap().id, id + 2);
    });
}

//= versioning.number-agreed-upon-once.settle-lower-two-use
//= versioning.implementation-details.guest-gates-peer-generation
//= versioning.number-agreed-upon-once.during-handshake-side-learns
//= carrel.agent-itself.nothing-answered-peer-below
#[test]
fn a_peer_without_core_error_is_sent_no_core_error() {
    run(async {
        for (agentd, stamp) in [(Agentd::start(), 4), (Agentd::of_generation(Generation::new(4)), 10)] {
            let mut peer = Peer::connect(&agentd.socket()).await;
            let id = peer.first_id;
            let nonsense = [0xa3, 0x61, b'v', stamp, 0x61, b't', 0x61, b'x', 0x61, b'p', 0x41, 0xa0];
            peer.send_body(id, Flags::NONE, &nonsense).await;
            peer.send_body(id, Flags::from_bits(3), &nonsense).await;
            peer.send(stamp, id, &ExecSignal { signal: 9, whole: false }).await;
            peer.send(stamp, id + 1, &command("true", &[])).await;
            assert_eq!(peer.next().await.unwrap().id, id + 1);
        }
    });
}

//= carrel.agent-itself.id-outside-range-broken
//= promises.agent.ways-peer-loses-connection
#[test]
fn only_a_foreign_id_or_an_invalid_length_closes_a_connection_and_no_other() {
    run(async {
        let agentd = Agentd::start();
        let mut bystander = Peer::connect(&agentd.socket()).await;
        let foreign = bystander.first_id;
        for length in [0u32, 4, MAX_LENGTH + 1, u32::MAX] {
            let mut peer = Peer::connect(&agentd.socket()).await;
            peer.send_bytes(&length.to_be_bytes()).await;
            assert!(peer.next().await.is_none(), "{length}");
        }
        for id in [0, foreign, u32::MAX] {
            let mut peer = Peer::connect(&agentd.socket()).await;
            peer.send(10, id, &Ping {}).await;
            assert!(peer.next().await.is_none(), "{id}");
        }
        check_alive(&mut bystander, foreign).await;
    });
}

//= promises.agent.clients-once-listen
#[test]
fn a_client_above_the_limit_is_closed_without_a_prologue() {
    run(async {
        let agentd = Agentd::start();
        let mut clients = Vec::new();
        for _ in 0..128 {
            clients.push(Peer::connect(&agentd.socket()).await);
        }
        let mut stream = tokio::net::UnixStream::connect(agentd.socket()).await.unwrap();
        let mut nothing = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut nothing).await.unwrap();
        assert_eq!(nothing, b"");
        let freed = clients.remove(5).first_id;
        // The slot of a closed connection is reused once the agent has noticed.
        loop {
            let mut stream = tokio::net::UnixStream::connect(agentd.socket()).await.unwrap();
            let mut prologue = [0; 8];
            if tokio::io::AsyncReadExt::read_exact(&mut stream, &mut prologue).await.is_ok() {
                assert_eq!(prologue[..4], freed.to_be_bytes());
                break;
            }
        }
    });
}

/// A pseudo-random generator with a fixed seed.
struct SeededRandom(u64);

impl SeededRandom {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

//= carrel.agent-itself.nothing-peer-sends-ends
//= promises.agent.messages-end
#[test]
fn damaged_frames_of_every_type_leave_the_agent_alive() {
    run(async {
        let agentd = Agentd::start();
        let mut random = SeededRandom(20_261_115);
        let mut bystander = Peer::connect(&agentd.socket()).await;
        let golden = include_str!("../../crates/protocol/tests/data/golden/frames.json");
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let mut frames = Vec::new();
        collect_hex(&golden, &mut frames);
        // A valid shutdown would end the agent, and a valid exec would run a command.
        frames.retain(|frame| !contains(frame, b"core.shutdown") && !contains(frame, b"core.exec.request"));
        assert!(frames.len() > 100, "{} frames", frames.len());
        let rounds = if carrel_tests::full() { 200 } else { 10 };
        for round in 0..rounds {
            let mut peer = Peer::connect(&agentd.socket()).await;
            for frame in &frames {
                let mut body = frame.get(9..).unwrap().to_vec();
                for _ in 0..random.next(4) {
                    match (random.next(3), body.len()) {
                        (_, 0) => body.push(0),
                        (0, len) => body[random.next(len)] ^= 1 << random.next(8),
                        (1, len) => drop(body.remove(random.next(len))),
                        (_, len) => body.insert(random.next(len), u8::try_from(random.next(256)).unwrap()),
                    }
                }
                let flags = if random.next(4) == 0 { u8::try_from(random.next(256)).unwrap() & !4 } else { frame[8] };
                let id = peer.first_id + u32::try_from(random.next(8)).unwrap();
                peer.send_body(id, Flags::from_bits(flags), &body).await;
            }
            let (own, other) = (peer.first_id + 100, bystander.first_id + 1 + round);
            check_alive(&mut peer, own).await;
            check_alive(&mut bystander, other).await;
        }
    });
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

fn collect_hex(value: &serde_json::Value, frames: &mut Vec<Vec<u8>>) {
    match value {
        serde_json::Value::String(text) if text.len() >= 18 && text.bytes().all(|b| b.is_ascii_hexdigit()) => {
            let pairs = text.as_bytes().chunks(2);
            frames
                .push(pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect());
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| collect_hex(value, frames)),
        serde_json::Value::Object(map) => map.values().for_each(|value| collect_hex(value, frames)),
        _ => {}
    }
}
