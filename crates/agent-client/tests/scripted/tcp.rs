//! Connections to ports inside the sandbox.

use carrel_agent_client::protocol::payload::{
    BulkCredit, BulkFinish, BulkFlow, BulkKind, TcpClose, TcpClosed, TcpConnect, TcpConnected, TcpData, TcpEof,
    TcpFailed,
};
use carrel_agent_client::{AgentClient, AgentClientError, GuestTcpStream, MessageType};

use crate::peer::{ScriptedPeer, accept, connected, data};

/// A connection through an agent of the given generation, and its id.
pub async fn opened(client: &AgentClient, peer: &mut ScriptedPeer, window: u64) -> (GuestTcpStream, u32) {
    let agent = async {
        let (id, request) = peer.expect::<TcpConnect>().await;
        assert_eq!((request.host.as_str(), request.port), ("localhost", 80));
        peer.send(id, &TcpConnected {}).await;
        if let Some(offer) = request.bulk {
            peer.send(id, &accept(&offer, BulkKind::Tcp, 3, window)).await;
        }
        id
    };
    let (stream, id) = tokio::join!(client.tcp("localhost", 80), agent);
    (stream.unwrap(), id)
}

#[tokio::test]
async fn below_generation_eight_data_is_inline_and_each_direction_closes_separately() {
    let (client, mut peer) = connected(4).await;
    let (mut stream, id) = opened(&client, &mut peer, 0).await;
    stream.write("question").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(peer.expect_data(MessageType::TcpData).await, (id, b"question".to_vec()));
    peer.expect::<TcpEof>().await;
    assert!(matches!(stream.write("more").await, Err(AgentClientError::InputClosed)));
    peer.send(id, &TcpData { data: data(b"") }).await;
    peer.send(id, &TcpData { data: data(b"answer") }).await;
    peer.send(id, &TcpEof {}).await;
    peer.send(id, &TcpClosed {}).await;
    assert_eq!(stream.read().await.unwrap().unwrap(), "answer");
    assert_eq!(stream.read().await.unwrap(), None);
    stream.close().await.unwrap();
    client.close();
    peer.expect_end().await;
}

//= carrel.files-trees-connections.connections-bulk-generation-8
#[tokio::test]
async fn from_generation_eight_on_both_directions_are_bulk_with_credit() {
    let (client, mut peer) = connected(8).await;
    let (stream, id) = opened(&client, &mut peer, 20_000).await;
    let (mut reader, mut writer) = stream.into_split();
    let agent = async {
        let (kind, flow) = (BulkKind::Tcp, BulkFlow::HostToGuest);
        let mut received = 0;
        while received < 50_000 {
            let (_, header, payload) = peer.expect_record().await;
            assert_eq!((header.kind, header.flow, header.offset), (kind, flow, received));
            received += payload.len() as u64;
            let credit_limit = received + 20_000;
            peer.send(id, &BulkCredit { kind, flow, consumed_offset: received, credit_limit }).await;
        }
        assert_eq!(peer.expect().await, (id, BulkFinish { kind, flow, final_offset: 50_000 }));
        peer.send_record(id, kind, 0, b"answer").await;
        let flow = BulkFlow::GuestToHost;
        peer.send(id, &BulkFinish { kind, flow, final_offset: 6 }).await;
    };
    let calls = async {
        writer.write(vec![1; 50_000]).await.unwrap();
        writer.shutdown().await.unwrap();
        assert_eq!(reader.read().await.unwrap().unwrap(), "answer");
        assert_eq!(reader.read().await.unwrap(), None);
    };
    tokio::join!(agent, calls);
    drop(writer);
    drop(reader);
    assert_eq!(peer.expect().await, (id, TcpClose {}));
}

#[tokio::test]
async fn a_refused_connection_reports_the_reason() {
    let (client, mut peer) = connected(10).await;
    let agent = async {
        let (id, _) = peer.expect::<TcpConnect>().await;
        peer.send(id, &TcpFailed { error: "refused".into(), errno_name: Some("ECONNREFUSED".into()) }).await;
    };
    let error = tokio::join!(client.tcp("localhost", 81), agent).0.unwrap_err();
    assert_eq!((error.to_string().as_str(), error.errno_name()), ("connection: refused", Some("ECONNREFUSED")));
}

#[tokio::test]
async fn a_writer_waiting_for_credit_fails_when_the_connection_ends() {
    let (client, mut peer) = connected(10).await;
    let (stream, id) = opened(&client, &mut peer, 16_384).await;
    let (mut reader, mut writer) = stream.into_split();
    let agent = async {
        peer.expect_record().await;
        peer.send(id, &TcpFailed { error: "reset".into(), errno_name: None }).await;
    };
    let (written, ()) = tokio::join!(writer.write(vec![0; 100_000]), agent);
    assert!(matches!(written, Err(AgentClientError::InputClosed)), "{written:?}");
    assert!(matches!(reader.read().await, Err(AgentClientError::Tcp(_))));
    assert_eq!(reader.read().await.unwrap(), None);
}
