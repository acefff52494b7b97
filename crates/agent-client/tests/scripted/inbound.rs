//! Untrusted input: no panic, no hang, no unbounded memory.

use bytes::Bytes;
use carrel_agent_client::protocol::codec::encode_body;
use carrel_agent_client::protocol::payload::{ExecLimits, ExecStarted, ExecStdout, Ping, Pong, Ready, Shutdown};
use carrel_agent_client::protocol::{Flags, Generation, PrologueFormat};
use carrel_agent_client::{AgentClient, AgentClientError, ConnectOptions, ConnectionLost, ExecEvent, ExecRequest};
use tokio::io::AsyncWriteExt;

use crate::exec::started;
use crate::peer::{connected, data, flow_ready, greeting, plain_ready};

/// No test waits for time to pass; this only turns a hang into a failure.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(60);

//= client.constants-functions.client-handles-framing-correlation
//= client.constants-functions.further-frame-arrives-id
//= carrel.client.arrives-treated-written-attacker
#[tokio::test]
async fn frames_for_unknown_ids_are_ignored() {
    let (client, mut peer) = connected(10).await;
    let agent = async {
        let (id, _) = peer.expect::<Ping>().await;
        for unknown in [0, id + 1, id + 1000, u32::MAX] {
            peer.send(unknown, &Pong {}).await;
            peer.send_raw(unknown, Flags::BULK, b"garbage").await;
            peer.send_raw(unknown, Flags::from_bits(0xff), b"").await;
        }
        peer.send(id, &Pong {}).await;
        peer.send(id, &Pong {}).await;
        let (id, _) = peer.expect::<Ping>().await;
        peer.send(id, &Pong {}).await;
    };
    let pings = async {
        client.ping().await.unwrap();
        client.ping().await.unwrap();
    };
    tokio::join!(agent, pings);
}

//= carrel.client.arrives-treated-written-attacker
#[tokio::test]
async fn garbage_for_an_operation_fails_only_that_operation() {
    let (client, mut peer) = connected(10).await;
    for garbage in [&b""[..], b"\xff", b"\xa0", b"\xa3\x61v\x0a\x61t\x69core.pong\x61p\x41\xff"] {
        let agent = async {
            let (id, _) = peer.expect::<Ping>().await;
            peer.send_raw(id, Flags::TERMINAL, garbage).await;
        };
        let answer = tokio::join!(client.ping(), agent).0;
        assert!(matches!(answer, Err(AgentClientError::Protocol(_))), "{answer:?}");
    }
    let agent = async {
        let (id, _) = peer.expect::<Ping>().await;
        peer.send(id, &Pong {}).await;
    };
    tokio::join!(client.ping(), agent).0.unwrap();
}

#[tokio::test]
async fn a_first_frame_with_the_terminal_flag_leaves_no_call_pending() {
    let (client, mut peer) = connected(10).await;
    let agent = async {
        let (id, _) = peer.expect::<ExecRequest>().await;
        let started = encode_body(Generation::PUBLISHED, &ExecStarted { pid: 1 }).unwrap();
        peer.send_raw(id, Flags::TERMINAL, &started).await;
    };
    let command = ExecRequest { cmd: "x".into(), ..ExecRequest::default() };
    let mut exec = tokio::join!(client.exec(command), agent).0.unwrap();
    assert!(matches!(exec.next().await, Err(AgentClientError::Protocol(_))));
}

//= client.methods-client.lost-connection-ends-call
#[tokio::test]
async fn an_invalid_length_fails_every_call_with_a_typed_error() {
    let (client, mut peer) = connected(10).await;
    let (mut exec, _) = started(&client, &mut peer).await;
    let agent = async {
        peer.expect::<Ping>().await;
        peer.stream.write_all(&[0, 0, 0, 1, 0, 0, 0, 0, 0]).await.unwrap();
    };
    let (pinged, event, ()) = tokio::join!(client.ping(), exec.next(), agent);
    assert!(matches!(pinged, Err(AgentClientError::Lost(ConnectionLost::Broken(_)))), "{pinged:?}");
    assert!(matches!(event, Err(AgentClientError::Lost(ConnectionLost::Broken(_)))), "{event:?}");
    assert!(matches!(exec.write_stdin("x").await, Err(AgentClientError::Lost(_))));
    assert!(matches!(client.ping().await, Err(AgentClientError::Lost(ConnectionLost::Broken(_)))));
}

//= client.methods-client.lost-connection-ends-call
#[tokio::test]
async fn a_lost_connection_fails_every_pending_call() {
    let (client, mut peer) = connected(10).await;
    let (mut exec, _) = started(&client, &mut peer).await;
    let mut raw = client.stream_raw(Flags::NONE, &b"raw"[..]).await.unwrap();
    let agent = async {
        peer.frame().await.unwrap();
        peer.expect::<Ping>().await;
        drop(peer);
    };
    let (pinged, event, frame, ()) = tokio::join!(client.ping(), exec.next(), raw.next(), agent);
    assert!(matches!(pinged, Err(AgentClientError::Lost(ConnectionLost::Ended))), "{pinged:?}");
    assert!(matches!(event, Err(AgentClientError::Lost(ConnectionLost::Ended))), "{event:?}");
    assert!(matches!(frame, Err(AgentClientError::Lost(ConnectionLost::Ended))), "{frame:?}");
}

#[tokio::test]
async fn a_blocked_sender_fails_when_its_peer_dies() {
    let (client, mut peer) = connected(10).await;
    let (exec, _) = started(&client, &mut peer).await;
    let input = exec.input();
    let writing = tokio::spawn(async move { input.write(vec![0; 16 << 20]).await });
    // The first bytes of the input have arrived, so the writer is blocked; the rest is never read.
    peer.frame().await.unwrap();
    drop(peer);
    assert!(matches!(writing.await.unwrap(), Err(AgentClientError::Lost(_))));
}

//= carrel.client.arrives-treated-written-attacker
//= promises.client.bytes-after-stream-without
#[tokio::test]
async fn an_unread_stream_without_credit_blocks_its_sender() {
    let (client, mut peer) = connected(9).await;
    let (mut exec, id) = started(&client, &mut peer).await;
    let chunk = vec![3; 64 * 1024];
    let mut sent = 0;
    // The client's memory is bounded: at some point a write blocks.
    let send = async {
        loop {
            peer.send(id, &ExecStdout { data: data(&chunk) }).await;
            sent += 1;
        }
    };
    // The clock is paused and advances only when all tasks wait, so no real time passes.
    tokio::time::pause();
    assert!(tokio::time::timeout(std::time::Duration::from_secs(60), send).await.is_err());
    assert!((16..64).contains(&sent), "{sent} chunks of 64 KiB are buffered for an idle reader");
    for _ in 0..sent {
        assert_eq!(exec.next().await.unwrap(), Some(ExecEvent::Stdout(chunk.clone().into())));
    }
}

//= client.constants-functions.flagshutdown-0x04-requests-shutdown
#[tokio::test]
async fn shutdown_is_uncorrelated_and_sent_before_the_close() {
    let (client, mut peer) = connected(7).await;
    client.shutdown().await.unwrap();
    client.close();
    assert_eq!(peer.expect().await, (0, Shutdown));
    peer.expect_end().await;
}

//= carrel.protocol.property-fuzz-target-decoder
//= carrel.client.arrives-treated-written-attacker
#[test]
fn fuzz_any_bytes_after_a_handshake_fail_every_call_without_a_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    bolero::check!().with_type::<(bool, bool, Vec<(u8, u8, Vec<u8>)>, Vec<u8>)>().for_each(
        |(legacy, limits, frames, tail)| {
            runtime.block_on(async {
                let (mut stream, ours) = tokio::io::duplex(1 << 16);
                let ready: Ready = if *limits { flow_ready(ExecLimits::DEFAULT) } else { plain_ready() };
                let mut bytes = greeting(10, &ready);
                if *legacy {
                    bytes.splice(..8, PrologueFormat::LegacyV1.prologue(PrologueFormat::LegacyV1.range(0).unwrap()));
                }
                for (id, flags, body) in frames {
                    let body = mutated(body);
                    let flags = Flags::from_bits(*flags);
                    carrel_agent_client::protocol::codec::encode_raw(&mut bytes, u32::from(id % 4), flags, &body)
                        .unwrap();
                }
                bytes.extend(tail);
                let client = AgentClient::connect_stream(ours, ConnectOptions::default());
                let feed = async {
                    // The client may disconnect first.
                    let _ = stream.write_all(&bytes).await;
                    let _ = stream.shutdown().await;
                    let mut sink = tokio::io::sink();
                    let _ = tokio::io::copy(&mut stream, &mut sink).await;
                };
                let calls = async {
                    let client = client.await.unwrap();
                    let files = client.files();
                    let command = ExecRequest { cmd: "x".into(), ..ExecRequest::default() };
                    let (_, _, _) =
                        tokio::join!(client.run(command, "in"), files.read_to_end("/f"), client.tcp("h", 1));
                };
                let both = async { tokio::join!(feed, calls) };
                tokio::time::timeout(WATCHDOG, both).await.expect("a call that never ends");
            });
        },
    );
}

/// Mostly garbage; sometimes the start of an almost valid message.
fn mutated(body: &[u8]) -> Bytes {
    const STARTS: [&[u8]; 4] = [
        b"\xa3\x61v\x0a\x61t\x71core.exec.started\x61p\x46\xa1\x63pid\x07",
        b"\xa3\x61v\x0a\x61t\x70core.exec.stdout\x61p\x48\xa1\x64data\x41x",
        b"\xa3\x61v\x0a\x61t\x70core.fs.response\x61p\x45\xa1\x62ok\xf5",
        b"\xa3\x61v\x0a\x61t\x72core.tcp.connected\x61p\x41\xa0",
    ];
    match body {
        [choice, rest @ ..] if *choice < 128 => {
            let start = STARTS[usize::from(choice % 4)];
            [start, rest].concat().into()
        }
        _ => Bytes::copy_from_slice(body),
    }
}

#[test]
fn the_runtime_of_a_client_may_shut_down_before_its_callers() {
    let first = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, peer) = first.block_on(connected(10));
    drop(first);
    let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pinged = second.block_on(client.ping());
    assert!(matches!(pinged, Err(AgentClientError::Lost(_))), "{pinged:?}");
    assert_eq!(peer.generation, Generation::PUBLISHED);
}
