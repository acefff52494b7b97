//! Dropping cancels, and late frames are ignored.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use carrel_agent_client::protocol::codec::encode_body;
use carrel_agent_client::protocol::payload::{
    BulkCancel, BulkCancelReason, BulkKind, CarrelFsCancel, CarrelFsRequest, ExecExited, ExecLimits, ExecOutputAck,
    ExecRequest, ExecSignal, ExecStarted, ExecStdout, FsHandle, FsOp, FsRequest, FsResult, Ping, Pong, TcpClose,
    TcpConnect, TreeWatch,
};
use carrel_agent_client::protocol::{Flags, Generation};
use carrel_agent_client::{AgentClient, MessageType};

use crate::peer::{ScriptedPeer, accept, connected, connected_to, connected_to_carrel, data, flow_ready};
use crate::{exec, files, tcp};

/// Polls a call until the agent has received its request, then drops it.
async fn begin_and_drop<T>(call: impl Future<Output = T>, agent: impl Future<Output = u32>) -> u32 {
    let mut call = pin!(call);
    // The first poll sends the request; there is no response yet.
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    agent.await
}

/// A round trip: the connection works, and nothing was sent before.
pub async fn ping(client: &AgentClient, peer: &mut ScriptedPeer) {
    let agent = async {
        let (id, _) = peer.expect::<Ping>().await;
        peer.send(id, &Pong {}).await;
    };
    tokio::join!(client.ping(), agent).0.unwrap();
}

//= client.methods-client.call-cancelled
//= carrel.client.dropping-future-cancels-operation
#[tokio::test]
async fn a_dropped_command_is_killed_whether_or_not_it_had_started() {
    let (client, mut peer) = connected(7).await;
    let request = ExecRequest { cmd: "sleep".into(), ..ExecRequest::default() };
    let id = begin_and_drop(client.exec(request), async { peer.expect::<ExecRequest>().await.0 }).await;
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 9, whole: false }));
    peer.send(id, &ExecStarted { pid: 1 }).await;
    peer.send(id, &ExecExited { code: -1, signal: Some(9) }).await;

    let (command, id) = exec::started(&client, &mut peer).await;
    drop(command);
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 9, whole: false }));
    peer.send(id, &ExecStdout { data: data(b"late") }).await;
    peer.send(id, &ExecExited { code: -1, signal: Some(9) }).await;
    ping(&client, &mut peer).await;
}

#[tokio::test]
async fn late_output_of_a_killed_command_is_acknowledged_so_that_its_exit_is_not_deferred() {
    let (client, mut peer) = connected_to(10, &flow_ready(ExecLimits::DEFAULT)).await;
    let (mut command, id) = exec::started(&client, &mut peer).await;
    peer.send(id, &ExecStdout { data: data(b"taken") }).await;
    command.next().await.unwrap();
    assert_eq!(peer.expect().await, (id, ExecOutputAck { consumed: 261 }));
    peer.send(id, &ExecStdout { data: data(b"left") }).await;
    ping(&client, &mut peer).await;
    drop(command);
    assert_eq!(peer.expect().await, (id, ExecOutputAck { consumed: 521 }));
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 9, whole: false }));
    peer.send(id, &ExecStdout { data: data(b"late") }).await;
    assert_eq!(peer.expect().await, (id, ExecOutputAck { consumed: 781 }));
    peer.send(id, &ExecExited { code: -1, signal: Some(9) }).await;
    peer.send(id, &ExecStdout { data: data(b"after the end") }).await;
    ping(&client, &mut peer).await;
}

//= client.methods-client.call-cancelled
#[tokio::test]
async fn a_dropped_transfer_is_cancelled_before_its_file_is_closed() {
    let caller = |kind| (kind, BulkCancelReason::Caller);
    let (client, mut peer) = connected(10).await;
    for writing in [false, true] {
        let file = files::opened(&client, &mut peer).await;
        let id = if writing {
            let stream = file.write(0).await.unwrap();
            let (id, request) = peer.expect::<FsRequest>().await;
            peer.send(id, &accept(&request.bulk.unwrap(), BulkKind::File, 1, 1 << 20)).await;
            drop((stream, file));
            id
        } else {
            let stream = file.read(0, None).await.unwrap();
            let (id, _) = peer.expect::<FsRequest>().await;
            drop((stream, file));
            id
        };
        let (from, cancel) = peer.expect::<BulkCancel>().await;
        assert_eq!((from, (cancel.kind, cancel.reason)), (id, caller(BulkKind::File)));
        peer.send(id, &files::failed("cancelled", "ECANCELED")).await;
        assert_eq!(peer.expect::<FsRequest>().await.1.op, FsOp::CloseHandle(FsHandle { handle: 77 }));
        ping(&client, &mut peer).await;
    }
}

//= carrel.client.dropping-future-cancels-operation
#[tokio::test]
async fn a_dropped_inline_write_is_ended_early() {
    let (client, mut peer) = connected(7).await;
    let file = files::opened(&client, &mut peer).await;
    let mut stream = file.write(0).await.unwrap();
    stream.write("half").await.unwrap();
    let (id, _) = peer.expect::<FsRequest>().await;
    drop(stream);
    assert_eq!(peer.expect_data(MessageType::FsData).await, (id, b"half".to_vec()));
    assert_eq!(peer.expect_data(MessageType::FsData).await, (id, Vec::new()));
}

//= carrel.client.dropping-future-cancels-operation
#[tokio::test]
async fn a_handle_opened_for_a_dropped_call_is_closed() {
    let (client, mut peer) = connected(10).await;
    let files = client.files();
    let id = begin_and_drop(files.open_dir("/d"), async { peer.expect::<FsRequest>().await.0 }).await;
    peer.send(id, &files::ok(Some(FsResult::Handle(78)))).await;
    let (_, request) = peer.expect::<FsRequest>().await;
    assert_eq!(request.op, FsOp::CloseHandle(FsHandle { handle: 78 }));
}

//= client.methods-client.call-cancelled
#[tokio::test]
async fn a_dropped_connection_is_closed_whether_or_not_it_was_established() {
    let (client, mut peer) = connected(10).await;
    let id = begin_and_drop(client.tcp("h", 1), async { peer.expect::<TcpConnect>().await.0 }).await;
    assert_eq!(peer.expect().await, (id, TcpClose {}));
    let (stream, id) = tcp::opened(&client, &mut peer, 1 << 20).await;
    let (reader, writer) = stream.into_split();
    drop(reader);
    ping(&client, &mut peer).await;
    drop(writer);
    assert_eq!(peer.expect().await, (id, TcpClose {}));
}

//= carrel.client.dropping-future-cancels-operation
#[tokio::test]
async fn a_dropped_watch_is_cancelled() {
    let (client, mut peer) = connected_to_carrel().await;
    let stream = client.tree().watch(TreeWatch { path: "/".into(), recursive: false }).await.unwrap();
    let (id, _) = peer.expect::<CarrelFsRequest>().await;
    drop(stream);
    assert_eq!(peer.expect().await, (id, CarrelFsCancel {}));
}

//= client.methods-client.call-cancelled
#[tokio::test]
async fn a_dropped_raw_request_is_cancelled_according_to_its_message() {
    let (client, mut peer) = connected(10).await;
    let request = ExecRequest { cmd: "sleep".into(), ..ExecRequest::default() };
    let body = encode_body(Generation::PUBLISHED, &request).unwrap();
    let call = client.request_raw(Flags::SESSION_START, body);
    let id = begin_and_drop(call, async { peer.expect::<ExecRequest>().await.0 }).await;
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 9, whole: false }));
    ping(&client, &mut peer).await;
}

//= client.streams-types.close-releases-stream
#[tokio::test]
async fn a_raw_stream_is_cancelled_according_to_its_opening_message() {
    let (client, mut peer) = connected(10).await;
    let body = |request: &ExecRequest| encode_body(Generation::PUBLISHED, request).unwrap();
    let request = ExecRequest { cmd: "sleep".into(), ..ExecRequest::default() };
    let stream = client.stream_raw(Flags::SESSION_START, body(&request)).await.unwrap();
    let (id, _) = peer.expect::<ExecRequest>().await;
    assert_eq!(stream.id(), id);
    stream.close();
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 9, whole: false }));

    // After its first response, a raw request belongs to the caller.
    let agent = async {
        let (id, _) = peer.expect::<ExecRequest>().await;
        peer.send(id, &ExecStarted { pid: 1 }).await;
        id
    };
    let (frame, id) = tokio::join!(client.request_raw(Flags::SESSION_START, body(&request)), agent);
    assert_eq!(frame.unwrap().id, id);
    ping(&client, &mut peer).await;

    // A body that is not an envelope has no cancel message.
    drop(client.stream_raw(Flags::NONE, &b"not an envelope"[..]).await.unwrap());
    assert_eq!(peer.frame().await.unwrap().body, &b"not an envelope"[..]);
    ping(&client, &mut peer).await;
}
