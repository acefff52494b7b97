//! Files: inline below generation 8, bulk with credit from then on.

use carrel_agent_client::protocol::bulk::{DEFAULT_WINDOW, SendFlow};
use carrel_agent_client::protocol::payload::{
    BulkAccepted, BulkCancel, BulkCancelReason, BulkCredit, BulkFinish, BulkFlow, BulkKind, FsData, FsHandle, FsOp,
    FsOpenOptions, FsRequest, FsResponse, FsResult,
};
use carrel_agent_client::{AgentClient, AgentClientError, File, MessageType};

use crate::peer::{ScriptedPeer, accept, connected, data};

pub fn ok(data: Option<FsResult>) -> FsResponse {
    FsResponse { ok: true, data, ..FsResponse::default() }
}

pub fn failed(error: &str, errno_name: &str) -> FsResponse {
    FsResponse { error: Some(error.into()), errno_name: Some(errno_name.into()), ..FsResponse::default() }
}

/// An open file with handle 77.
pub async fn opened(client: &AgentClient, peer: &mut ScriptedPeer) -> File {
    let files = client.files();
    let open = files.open("/f", FsOpenOptions { read: true, write: true, ..FsOpenOptions::default() });
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        assert_eq!(request.op.tag(), "OpenFile");
        peer.send(id, &ok(Some(FsResult::Handle(77)))).await;
    };
    tokio::join!(open, agent).0.unwrap()
}

async fn expect_close(peer: &mut ScriptedPeer) -> u32 {
    let (id, request) = peer.expect::<FsRequest>().await;
    assert_eq!(request.op, FsOp::CloseHandle(FsHandle { handle: 77 }));
    id
}

#[tokio::test]
async fn a_failure_names_the_operation_and_the_error_number() {
    let (client, mut peer) = connected(10).await;
    let agent = async {
        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &failed("No such file or directory", "ENOENT")).await;
    };
    let files = client.files();
    let error = tokio::join!(files.read_link("/nowhere"), agent).0.unwrap_err();
    assert_eq!(error.to_string(), "ReadLink: No such file or directory");
    assert_eq!(error.errno_name(), Some("ENOENT"));
}

#[tokio::test]
async fn a_response_of_the_wrong_type_is_rejected() {
    let (client, mut peer) = connected(10).await;
    let agent = async {
        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &ok(Some(FsResult::Handle(1)))).await;
        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &ok(None)).await;
    };
    let files = client.files();
    let calls = async {
        assert!(matches!(files.stat("/").await, Err(AgentClientError::Protocol(_))));
        assert!(matches!(files.list("/").await, Err(AgentClientError::Protocol(_))));
    };
    tokio::join!(calls, agent);
}

//= versioning.rules-never-broken.6-newer-side-speaks
//= versioning.number-agreed-upon-once.old-runtime-never-understand
//= carrel.files-trees-connections.inline-below-generation-8
#[tokio::test]
async fn below_generation_eight_a_file_is_read_and_written_inline() {
    let (client, mut peer) = connected(7).await;
    let file = opened(&client, &mut peer).await;
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        assert!(matches!(request, FsRequest { op: FsOp::Read(_), bulk: None, .. }));
        peer.send(id, &FsData { data: data(b"abc") }).await;
        peer.send(id, &FsData { data: data(b"") }).await;
        peer.send(id, &FsData { data: data(b"def") }).await;
        peer.send(id, &ok(None)).await;

        let (id, request) = peer.expect::<FsRequest>().await;
        assert!(matches!(request, FsRequest { op: FsOp::Write(_), bulk: None, .. }));
        let mut written = 0;
        loop {
            let (_, chunk) = peer.expect_data(MessageType::FsData).await;
            if chunk.is_empty() {
                break;
            }
            written += chunk.len();
        }
        assert_eq!(written, 700_000);
        peer.send(id, &ok(None)).await;
        let id = expect_close(&mut peer).await;
        peer.send(id, &ok(None)).await;
    };
    let calls = async {
        let mut stream = file.read(0, None).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "abc");
        assert_eq!(stream.next().await.unwrap().unwrap(), "def");
        assert_eq!(stream.next().await.unwrap(), None);
        drop(stream);
        let mut stream = file.write(0).await.unwrap();
        stream.write(vec![1; 700_000]).await.unwrap();
        stream.finish().await.unwrap();
        file.close().await.unwrap();
    };
    tokio::join!(agent, calls);
    client.close();
    peer.expect_end().await;
}

//= carrel.files-trees-connections.inline-below-generation-8
#[tokio::test]
async fn a_bulk_read_grants_credit_as_it_is_consumed() {
    let (client, mut peer) = connected(8).await;
    let file = opened(&client, &mut peer).await;
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        let offer = request.bulk.unwrap();
        assert_eq!(offer.guest_to_host_credit_limit, DEFAULT_WINDOW);
        let limit = offer.check().unwrap();
        peer.send(id, &accept(&offer, BulkKind::File, 2, 0)).await;
        let mut flow = SendFlow::new(BulkKind::File, BulkFlow::GuestToHost, limit, DEFAULT_WINDOW);
        let record = vec![5; limit.get() as usize];
        for _ in 0..100 {
            while flow.available() < record.len() {
                flow.grant(&peer.expect::<BulkCredit>().await.1).unwrap();
            }
            let header = flow.advance(record.len()).unwrap();
            peer.send_record(id, BulkKind::File, header.offset, &record).await;
        }
        peer.send(id, &flow.finish()).await;
        peer.send(id, &ok(None)).await;
        record.len() * 100
    };
    let read = async {
        let mut stream = file.read(0, None).await.unwrap();
        let mut len = 0;
        while let Some(data) = stream.next().await.unwrap() {
            assert!(data.iter().all(|byte| *byte == 5));
            len += data.len();
        }
        len
    };
    let (sent, received) = tokio::join!(agent, read);
    assert_eq!(sent, received);
}

//= carrel.files-trees-connections.inline-below-generation-8
#[tokio::test]
async fn a_bulk_write_respects_credit_and_finishes_with_its_length() {
    let (client, mut peer) = connected(10).await;
    let file = opened(&client, &mut peer).await;
    let content: Vec<u8> = (0..100_000u32).map(|i| i.to_le_bytes()[1]).collect();
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        let offer = request.bulk.unwrap();
        assert_eq!(offer.guest_to_host_credit_limit, 0);
        peer.send(id, &accept(&offer, BulkKind::File, 1, 30_000)).await;
        let (mut written, mut credit) = (Vec::new(), 30_000);
        while written.len() < 100_000 {
            let (_, header, payload) = peer.expect_record().await;
            assert_eq!((header.kind, header.flow), (BulkKind::File, BulkFlow::HostToGuest));
            assert_eq!(header.offset, written.len() as u64);
            written.extend(payload);
            assert!(written.len() as u64 <= credit);
            if written.len() as u64 == credit {
                credit += 30_000;
                let consumed_offset = written.len() as u64;
                let (kind, flow) = (BulkKind::File, BulkFlow::HostToGuest);
                peer.send(id, &BulkCredit { kind, flow, consumed_offset, credit_limit: credit }).await;
            }
        }
        let finish = BulkFinish { kind: BulkKind::File, flow: BulkFlow::HostToGuest, final_offset: 100_000 };
        assert_eq!(peer.expect().await, (id, finish));
        peer.send(id, &ok(None)).await;
        written
    };
    let write = async {
        let mut stream = file.write(0).await.unwrap();
        stream.write(content.clone()).await.unwrap();
        stream.finish().await.unwrap();
    };
    assert_eq!(tokio::join!(agent, write).0, content);
}

#[tokio::test]
async fn a_write_that_fails_midway_reports_it_immediately_and_permanently() {
    let (client, mut peer) = connected(10).await;
    let file = opened(&client, &mut peer).await;
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        peer.send(id, &accept(&request.bulk.unwrap(), BulkKind::File, 1, 16_384)).await;
        peer.expect_record().await;
        let (kind, reason) = (BulkKind::File, BulkCancelReason::DestinationIo);
        peer.send(id, &BulkCancel { kind, reason, message: "full".into() }).await;
        peer.send(id, &failed("No space left on device", "ENOSPC")).await;
    };
    let write = async {
        let mut stream = file.write(0).await.unwrap();
        let error = stream.write(vec![0; 1 << 20]).await.unwrap_err();
        assert_eq!(error.errno_name(), Some("ENOSPC"));
        assert!(matches!(stream.write("x").await, Err(AgentClientError::InputClosed)));
        assert!(matches!(stream.finish().await, Err(AgentClientError::InputClosed)));
    };
    tokio::join!(agent, write);
}

//= carrel.client.arrives-treated-written-attacker
#[tokio::test]
async fn an_acceptance_that_does_not_match_the_offer_is_rejected_and_cancelled() {
    type Corruption = fn(&mut BulkAccepted);
    let wrong: [Corruption; 8] = [
        |a| a.kind = BulkKind::Tcp,
        |a| a.flows = 1,
        |a| a.flows = 3,
        |a| a.format = 2,
        |a| a.max_record_payload += 1,
        |a| a.max_record_payload = 1,
        |a| a.guest_to_host_credit_limit -= 1,
        |a| a.host_to_guest_credit_limit = 1,
    ];
    for (number, spoil) in wrong.into_iter().enumerate() {
        let (client, mut peer) = connected(10).await;
        let file = opened(&client, &mut peer).await;
        let agent = async {
            let (id, request) = peer.expect::<FsRequest>().await;
            let mut accepted = accept(&request.bulk.unwrap(), BulkKind::File, 2, 0);
            spoil(&mut accepted);
            peer.send(id, &accepted).await;
            let (from, cancel) = peer.expect::<BulkCancel>().await;
            assert_eq!((from, cancel.reason), (id, BulkCancelReason::ProtocolState), "case {number}");
        };
        let read = async {
            let mut stream = file.read(0, None).await.unwrap();
            assert!(matches!(stream.next().await, Err(AgentClientError::Protocol(_))), "case {number}");
        };
        tokio::join!(agent, read);
    }
}

#[tokio::test]
async fn data_before_the_acceptance_or_out_of_order_is_rejected() {
    for case in 0..5 {
        let (client, mut peer) = connected(10).await;
        let file = opened(&client, &mut peer).await;
        let agent = async {
            let (id, request) = peer.expect::<FsRequest>().await;
            let accepted = accept(&request.bulk.unwrap(), BulkKind::File, 2, 0);
            match case {
                0 => peer.send_record(id, BulkKind::File, 0, b"early").await,
                1 => peer.send(id, &FsData { data: data(b"inline") }).await,
                2 => peer.send(id, &ok(None)).await,
                3 => {
                    peer.send(id, &accepted).await;
                    peer.send_record(id, BulkKind::File, 1, b"a hole").await;
                }
                _ => {
                    peer.send(id, &accepted).await;
                    peer.send(id, &ok(None)).await;
                }
            }
        };
        let read = async {
            let mut stream = file.read(0, None).await.unwrap();
            assert!(matches!(stream.next().await, Err(AgentClientError::Protocol(_))), "case {case}");
        };
        tokio::join!(agent, read);
    }
}

#[tokio::test]
async fn whole_files_are_copied_in_and_out() {
    let (client, mut peer) = connected(7).await;
    let agent = async {
        let (id, request) = peer.expect::<FsRequest>().await;
        let FsOp::OpenFile(open) = request.op else { panic!("{request:?}") };
        assert!(open.options.write && open.options.create && open.options.truncate && !open.options.read);
        assert_eq!(open.options.user.as_deref(), Some("agbox"));
        peer.send(id, &ok(Some(FsResult::Handle(77)))).await;
        let (id, _) = peer.expect::<FsRequest>().await;
        assert_eq!(peer.expect_data(MessageType::FsData).await.1, b"hello");
        assert_eq!(peer.expect_data(MessageType::FsData).await.1, b"");
        peer.send(id, &ok(None)).await;
        let id = expect_close(&mut peer).await;
        peer.send(id, &ok(None)).await;

        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &ok(Some(FsResult::Handle(77)))).await;
        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &FsData { data: data(b"hello") }).await;
        peer.send(id, &ok(None)).await;
        expect_close(&mut peer).await;
    };
    let calls = async {
        let files = client.files().on_behalf_of("agbox");
        assert_eq!(files.upload("/f", &b"hello"[..]).await.unwrap(), 5);
        let mut content = Vec::new();
        assert_eq!(files.download("/f", &mut content).await.unwrap(), 5);
        assert_eq!(content, b"hello");
    };
    tokio::join!(agent, calls);
}

#[tokio::test]
async fn files_of_the_host_are_copied_in_and_out() {
    let (client, mut peer) = connected(7).await;
    let path = std::env::temp_dir().join(format!("carrel-local-{}", std::process::id()));
    let content: Vec<u8> = (0..600_000u32).map(|i| i.to_le_bytes()[1]).collect();
    let agent = async {
        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &ok(Some(FsResult::Handle(77)))).await;
        let (id, _) = peer.expect::<FsRequest>().await;
        let mut written = Vec::new();
        loop {
            let (_, chunk) = peer.expect_data(MessageType::FsData).await;
            if chunk.is_empty() {
                break;
            }
            written.extend(chunk);
        }
        peer.send(id, &ok(None)).await;
        let id = expect_close(&mut peer).await;
        peer.send(id, &ok(None)).await;

        let (id, _) = peer.expect::<FsRequest>().await;
        peer.send(id, &ok(Some(FsResult::Handle(77)))).await;
        let (id, _) = peer.expect::<FsRequest>().await;
        for chunk in written.chunks(100_000) {
            peer.send(id, &FsData { data: data(chunk) }).await;
        }
        peer.send(id, &ok(None)).await;
        expect_close(&mut peer).await;
    };
    let calls = async {
        std::fs::write(&path, &content).unwrap();
        let source = std::fs::File::open(&path).unwrap();
        assert_eq!(client.files().upload_file("/f", source).await.unwrap(), 600_000);
        std::fs::remove_file(&path).unwrap();
        let target = std::fs::File::create(&path).unwrap();
        assert_eq!(client.files().download_file("/f", target).await.unwrap(), 600_000);
        assert!(std::fs::read(&path).unwrap() == content);
        std::fs::remove_file(&path).unwrap();
    };
    tokio::join!(agent, calls);
}
