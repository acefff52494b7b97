//! Raw frames: the flags and the body belong to the caller, and pass unchanged in both directions.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use bytes::Bytes;
use carrel_agent_client::protocol::Flags;
use carrel_agent_client::protocol::payload::{ExecRequest, ExecStarted};
use carrel_agent_client::{AgentClient, AgentClientError, ConnectionLost, RawFrame, RawStream};
use tokio::io::AsyncWriteExt;

use crate::cancel::ping;
use crate::peer::{ScriptedPeer, connected};

/// A `core.ping` as no encoder of ours writes it: a map of indefinite length, its keys in another order, a number that
/// is longer than necessary, and an unknown key.
const UNUSUAL: &[u8] = b"\xbf\x61p\x41\xa0\x61x\xf6\x61t\x69core.ping\x61v\x18\x0a\xff";
/// Not even CBOR.
const GARBAGE: &[u8] = b"\xff\x00 not an envelope \xfe";

/// Flags of no message type, without the one that ends an id.
fn unusual_flags() -> [Flags; 3] {
    [0b1011_0010, 0b0110_0110, 0b1000_0000].map(Flags::from_bits)
}

/// A raw stream, and the frame that opened it.
async fn opened(client: &AgentClient, peer: &mut ScriptedPeer) -> (RawStream, RawFrame) {
    let stream = client.stream_raw(Flags::SESSION_START, UNUSUAL).await.unwrap();
    (stream, peer.frame().await.unwrap())
}

fn frame(id: u32, flags: Flags, body: &'static [u8]) -> RawFrame {
    RawFrame { id, flags, body: Bytes::from_static(body) }
}

/// Whether a call has nothing to return yet.
fn is_pending(call: impl Future) -> bool {
    pin!(call).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Ends the connection, and waits until the client has noticed it.
async fn lose(client: &AgentClient, peer: &mut ScriptedPeer) {
    peer.stream.shutdown().await.unwrap();
    assert!(matches!(client.ping().await, Err(AgentClientError::Lost(ConnectionLost::Ended))));
}

//= client.constants-functions.flagsessionstart-0x02-opening-frame
#[tokio::test]
async fn every_session_is_opened_with_the_flag_0x02_and_its_further_frames_are_without() {
    let (client, mut peer) = connected(10).await;
    let opened = |frame: RawFrame| (frame.flags.bits(), frame.id);
    let call = client.exec(ExecRequest { cmd: "cat".into(), ..ExecRequest::default() });
    let agent = async {
        let (flags, id) = opened(peer.frame().await.unwrap());
        peer.send(id, &ExecStarted { pid: 1 }).await;
        (flags, id)
    };
    let (command, (flags, id)) = tokio::join!(call, agent);
    assert_eq!(flags, 0x02, "core.exec.request");
    drop(command.unwrap());
    assert_eq!(opened(peer.frame().await.unwrap()), (0, id), "core.exec.signal");
    let files = client.files();
    let calls: [Pin<Box<dyn Future<Output = ()>>>; 2] =
        [Box::pin(async { drop(files.stat("/").await) }), Box::pin(async { drop(client.tcp("localhost", 80).await) })];
    for mut call in calls {
        assert!(is_pending(call.as_mut()));
        assert_eq!(peer.frame().await.unwrap().flags.bits(), 0x02);
    }
}

//= client.constants-functions.bodies-raw-cbor-whole
//= client.methods-client.request-frame-response
//= client.streams-types.rawframe-id-flags-body
#[tokio::test]
async fn a_request_sends_the_flags_and_body_of_the_caller_and_returns_the_frame_of_the_response() {
    let (client, mut peer) = connected(10).await;
    let answers = [(0b1110_0101, GARBAGE), (0b0100_0000, UNUSUAL), (0b0000_0001, &b""[..])];
    let requests = unusual_flags().into_iter().zip([UNUSUAL, GARBAGE, b""]);
    for ((flags, body), (answer_flags, answer)) in requests.zip(answers) {
        let answer_flags = Flags::from_bits(answer_flags);
        let agent = async {
            let request = peer.frame().await.unwrap();
            assert_eq!((request.flags, &request.body[..]), (flags, body));
            // The frame of another id is not the response.
            peer.send_raw(request.id + 1, Flags::TERMINAL, b"of another").await;
            peer.send_raw(request.id, answer_flags, answer).await;
            request.id
        };
        let (response, id) = tokio::join!(client.request_raw(flags, body), agent);
        assert_eq!(response.unwrap(), frame(id, answer_flags, answer));
    }
    // Nothing else was sent.
    client.close();
    peer.expect_end().await;
}

//= client.constants-functions.bodies-raw-cbor-whole
//= client.constants-functions.client-handles-framing-correlation
//= client.methods-client.stream-session-many-frames
//= client.streams-types.id-correlation-id
//= client.streams-types.next-next-frame-nothing
//= client.streams-types.rawframe-id-flags-body
#[tokio::test]
async fn a_stream_yields_its_frames_one_at_a_time_in_order_and_then_ends() {
    let (client, mut peer) = connected(10).await;
    for (flags, body) in unusual_flags().into_iter().zip([UNUSUAL, GARBAGE, b""]) {
        let mut stream = client.stream_raw(flags, body).await.unwrap();
        let opening = peer.frame().await.unwrap();
        assert_eq!(opening, frame(stream.id(), flags, body));
        let (mut other, _) = opened(&client, &mut peer).await;
        assert_ne!(other.id(), stream.id());

        // Each as soon as it arrives, and none before.
        for body in [GARBAGE, b"", UNUSUAL] {
            assert!(is_pending(stream.next()));
            peer.send_raw(stream.id(), flags, body).await;
            assert_eq!(stream.next().await.unwrap(), Some(frame(stream.id(), flags, body)));
        }
        // Several at once, between those of another stream.
        let last = Flags::from_bits(0b1000_0001);
        for (flags, body) in [(Flags::NONE, &b"first"[..]), (Flags::BULK, b"second"), (last, b"last")] {
            peer.send_raw(stream.id(), flags, body).await;
            peer.send_raw(other.id(), Flags::NONE, b"of another").await;
        }
        for (flags, body) in [(Flags::NONE, &b"first"[..]), (Flags::BULK, b"second"), (last, b"last")] {
            assert_eq!(stream.next().await.unwrap(), Some(frame(stream.id(), flags, body)));
            assert_eq!(other.next().await.unwrap(), Some(frame(other.id(), Flags::NONE, b"of another")));
        }
        assert_eq!(stream.next().await.unwrap(), None);
        assert!(is_pending(other.next()), "the end of a stream is not that of another");
    }
}

//= client.methods-client.send-follow-frame-id
#[tokio::test]
async fn a_follow_up_frame_has_the_id_of_its_stream_and_the_flags_and_body_of_the_caller() {
    let (client, mut peer) = connected(10).await;
    let (stream, RawFrame { id, .. }) = opened(&client, &mut peer).await;
    for (flags, body) in unusual_flags().into_iter().zip([UNUSUAL, GARBAGE, b""]) {
        client.send_raw(id, flags, body).await.unwrap();
        assert_eq!(peer.frame().await.unwrap(), frame(id, flags, body));
        stream.send(flags, body).await.unwrap();
        assert_eq!(peer.frame().await.unwrap(), frame(id, flags, body));
    }
}

//= client.constants-functions.further-frame-arrives-id
//= client.streams-types.next-next-frame-nothing
#[tokio::test]
async fn a_stream_that_ended_yields_nothing_whatever_the_peer_sends() {
    let (client, mut peer) = connected(10).await;
    for read_before_late_frames in [true, false] {
        let (mut stream, RawFrame { id, .. }) = opened(&client, &mut peer).await;
        peer.send_raw(id, Flags::TERMINAL, b"last").await;
        if read_before_late_frames {
            assert_eq!(stream.next().await.unwrap(), Some(frame(id, Flags::TERMINAL, b"last")));
            assert_eq!(stream.next().await.unwrap(), None);
        }
        for flags in [Flags::NONE, Flags::TERMINAL, Flags::BULK] {
            peer.send_raw(id, flags, b"late").await;
        }
        // After this, the client has received the late frames.
        ping(&client, &mut peer).await;
        if !read_before_late_frames {
            assert_eq!(stream.next().await.unwrap(), Some(frame(id, Flags::TERMINAL, b"last")));
        }
        for _ in 0..3 {
            assert_eq!(stream.next().await.unwrap(), None);
        }
    }
    // Nor does a lost connection change what ended before.
    let (mut read, RawFrame { id: first, .. }) = opened(&client, &mut peer).await;
    let (mut unread, RawFrame { id: second, .. }) = opened(&client, &mut peer).await;
    for id in [first, second] {
        peer.send_raw(id, Flags::TERMINAL, b"last").await;
    }
    assert_eq!(read.next().await.unwrap(), Some(frame(first, Flags::TERMINAL, b"last")));
    lose(&client, &mut peer).await;
    assert_eq!(unread.next().await.unwrap(), Some(frame(second, Flags::TERMINAL, b"last")));
    for stream in [&mut read, &mut unread] {
        assert_eq!(stream.next().await.unwrap(), None);
    }
}

//= client.streams-types.frames-arrived-before-loss
//= client.methods-client.lost-connection-ends-call
#[tokio::test]
async fn a_stream_whose_connection_is_lost_yields_its_frames_and_then_an_error_instead_of_an_end() {
    let (client, mut peer) = connected(10).await;
    let (mut stream, RawFrame { id, .. }) = opened(&client, &mut peer).await;
    let (mut empty, _) = opened(&client, &mut peer).await;
    for body in [&b"one"[..], b"two"] {
        peer.send_raw(id, Flags::NONE, body).await;
    }
    lose(&client, &mut peer).await;
    for body in [&b"one"[..], b"two"] {
        assert_eq!(stream.next().await.unwrap(), Some(frame(id, Flags::NONE, body)));
    }
    for stream in [&mut stream, &mut empty] {
        for _ in 0..2 {
            let next = stream.next().await;
            assert!(matches!(next, Err(AgentClientError::Lost(ConnectionLost::Ended))), "{next:?}");
        }
    }
}

//= client.methods-client.lost-connection-ends-call
#[tokio::test]
async fn a_stream_of_a_closed_client_fails_instead_of_ending() {
    let (client, mut peer) = connected(10).await;
    let (mut stream, _) = opened(&client, &mut peer).await;
    client.close();
    let next = stream.next().await;
    assert!(matches!(next, Err(AgentClientError::Lost(ConnectionLost::Closed))), "{next:?}");
}
