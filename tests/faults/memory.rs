//! The agent with a memory limit of 16 MiB, while far more data passes through it.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use carrel_agent_client::Generation;
use carrel_protocol::bulk::{BulkHeader, RecordLimit};
use carrel_protocol::codec::FramePrefix;
use carrel_protocol::payload::{
    BulkAccepted, BulkFlow, BulkKind, BulkOffer, ExecExited, ExecStdin, ExecStdout, FsOp, FsOpenFile, FsOpenOptions,
    FsRange, FsRequest, FsResponse, FsResult, TcpConnect,
};
use carrel_protocol::{MessageType, Payload};
use carrel_tests::{Agentd, MemoryCgroup, Peer, agentd_path, command, full, run_within};

const LIMIT: u64 = 16 * 1024 * 1024;
const LONG: Duration = Duration::from_secs(300);

fn gibibytes() -> u64 {
    (if full() { 4 } else { 1 }) * 1024 * 1024 * 1024
}

//= carrel.commands.below-backpressure-reading
//= promises.agent.memory-1-gib-4
#[test]
fn a_client_that_stops_reading_and_resumes_loses_no_output() {
    run_within(LONG, async {
        let cgroup = MemoryCgroup::new("output", LIMIT);
        let agentd = Agentd::launch(cgroup.command(&agentd_path()));
        let mut reader = Peer::connect(&agentd.socket()).await;
        let id = reader.first_id;
        // Below generation 10 nothing is acknowledged: the command blocks only because the client does not read.
        reader.send(7, id, &command("head", &["-c", &gibibytes().to_string(), "/dev/zero"])).await;
        let other = agentd.client().await;
        for _ in 0..200 {
            other.ping().await.unwrap();
            assert_eq!(other.run(command("true", &[]), "").await.unwrap().code, 0);
        }
        let mut received = 0;
        loop {
            let frame = reader.next_of(id).await;
            match frame.message_type() {
                MessageType::ExecStdout => {
                    let envelope = frame.envelope();
                    let data = ExecStdout::from_bytes(&envelope.payload).unwrap().data;
                    assert!(data.iter().all(|byte| *byte == 0));
                    received += data.len() as u64;
                }
                MessageType::ExecExited => {
                    let exited: ExecExited = frame.payload(|envelope| envelope.payload().unwrap());
                    assert_eq!(exited, ExecExited { code: 0, signal: None });
                    break;
                }
                MessageType::ExecStarted => {}
                other => panic!("{other}"),
            }
        }
        assert_eq!(received, gibibytes());
        assert_eq!(cgroup.out_of_memory_kills(), 0);
        drop(agentd);
    });
}

//= promises.agent.memory-file-256-mib
#[test]
fn large_files_are_transferred_in_both_directions() {
    run_within(LONG, async {
        let size = gibibytes() / 4;
        for generation in [Generation::new(7), Generation::PUBLISHED] {
            let cgroup = MemoryCgroup::new(&format!("files-{generation}"), LIMIT);
            let agentd = Agentd::launch(cgroup.command(&agentd_path()));
            let client = agentd.client_of(generation).await;
            let files = client.files();
            let path = agentd.path("large");
            // Every block differs, so that a lost, repeated or misplaced one is detected.
            let block = |number: u64| number.to_le_bytes().repeat(64 * 1024 / 8);
            let (mut writer, reader) = tokio::io::duplex(1024 * 1024);
            let produce = tokio::spawn(async move {
                use tokio::io::AsyncWriteExt;
                for number in 0..size / (64 * 1024) {
                    writer.write_all(&block(number)).await.unwrap();
                }
            });
            assert_eq!(files.upload(&path, reader).await.unwrap(), size);
            produce.await.unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().size(), size);

            let (writer, mut reader) = tokio::io::duplex(1024 * 1024);
            let check = tokio::spawn(async move {
                use tokio::io::AsyncReadExt;
                let mut got = vec![0; 64 * 1024];
                for number in 0..size / (64 * 1024) {
                    reader.read_exact(&mut got).await.unwrap();
                    assert!(got == block(number), "block {number}");
                }
            });
            assert_eq!(files.download(&path, writer).await.unwrap(), size);
            check.await.unwrap();
            assert_eq!(cgroup.out_of_memory_kills(), 0);
            drop((client, agentd));
        }
    });
}

//= promises.agent.memory-800-000-pieces
//= promises.agent.sessions-client-under-way
#[test]
fn many_small_frames_and_sessions_need_no_more_memory_than_a_few_large_ones() {
    run_within(LONG, async {
        let cgroup = MemoryCgroup::new("small", LIMIT);
        let agentd = Agentd::launch(cgroup.command(&agentd_path()));
        let mut peer = Peer::connect(&agentd.socket()).await;
        let id = peer.first_id;
        peer.send(7, id, &command("sleep", &["1000"])).await;
        assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecStarted);
        let mut frames = Vec::new();
        let stdin = carrel_tests::body(7, &ExecStdin { data: b"x"[..].into() });
        for _ in 0..1000 {
            carrel_protocol::codec::encode_raw(&mut frames, id, carrel_protocol::Flags::NONE, &stdin).unwrap();
        }
        for _ in 0..800 {
            peer.send_bytes(&frames).await;
        }
        // More sessions than one client may have: the rest is refused, whatever memory each would take.
        let other = agentd.client().await;
        let mut reader = Peer::connect(&agentd.socket()).await;
        let first = reader.first_id;
        let file = agentd.path("file");
        std::fs::write(&file, "content").unwrap();
        let options = FsOpenOptions { read: true, ..FsOpenOptions::default() };
        reader
            .send(
                10,
                first,
                &FsRequest { op: FsOp::OpenFile(FsOpenFile { path: file, options }), bulk: None, no_symlinks: false },
            )
            .await;
        let opened: FsResponse = reader.next_of(first).await.payload(|envelope| envelope.payload().unwrap());
        let Some(FsResult::Handle(handle)) = opened.data else { panic!("{opened:?}") };
        let range = FsRange { handle, offset: 0, len: None };
        let read =
            FsRequest { op: FsOp::Read(range), bulk: Some(BulkOffer::new(RecordLimit::MAX, 0)), no_symlinks: false };
        for number in 1..=600 {
            reader.send(10, first + number, &read).await;
        }
        let mut answers = (0, 0);
        for _ in 1..=600 {
            match reader.next().await.unwrap().message_type() {
                MessageType::BulkAccepted => answers.0 += 1,
                MessageType::CoreError => answers.1 += 1,
                other => panic!("{other}"),
            }
        }
        assert_eq!(answers, (512, 88));
        other.ping().await.unwrap();
        assert_eq!(cgroup.out_of_memory_kills(), 0);
        drop((other, agentd));
    });
}

#[test]
fn tcp_connections_whose_destinations_do_not_read_share_one_buffer_limit() {
    run_within(LONG, async {
        let cgroup = MemoryCgroup::new("connections", LIMIT);
        let agentd = Agentd::launch(cgroup.command(&agentd_path()));
        // Clients in the listen queue are connected, and are never accepted or read.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 256).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut peer = Peer::connect(&agentd.socket()).await;
        let mut granted = 0;
        for number in 0..256 {
            let id = peer.first_id + number;
            let bulk = Some(BulkOffer::new(RecordLimit::new(64 * 1024).unwrap(), 64 * 1024));
            peer.send(10, id, &TcpConnect { host: "127.0.0.1".to_owned(), port, bulk }).await;
            assert_eq!(peer.next_of(id).await.message_type(), MessageType::TcpConnected);
            let accepted: BulkAccepted = peer.next_of(id).await.payload(|envelope| envelope.payload().unwrap());
            let window = accepted.host_to_guest_credit_limit;
            granted += window;
            let mut offset = 0;
            while offset < window {
                let piece = vec![7; (window - offset).min(64 * 1024) as usize];
                let header = BulkHeader { kind: BulkKind::Tcp, flow: BulkFlow::HostToGuest, offset };
                peer.send_bytes(FramePrefix::of_record(header, id, piece.len()).unwrap().as_slice()).await;
                peer.send_bytes(&piece).await;
                offset += piece.len() as u64;
            }
        }
        assert!(granted < 8 << 20, "{granted} bytes may be buffered");
        agentd.client().await.ping().await.unwrap();
        assert_eq!(cgroup.out_of_memory_kills(), 0);
        drop(agentd);
    });
}

//= promises.agent.stalled-connection
#[test]
fn a_stalled_tcp_connection_continues_when_its_destination_reads() {
    run_within(LONG, async {
        let agentd = Agentd::start();
        let client = agentd.client_of(Generation::new(7)).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let sink = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.unwrap()
        });
        let mut tcp = client.tcp("127.0.0.1", port).await.unwrap();
        for _ in 0..512 {
            tcp.write(vec![7u8; 64 * 1024]).await.unwrap();
        }
        tcp.shutdown().await.unwrap();
        assert_eq!(sink.await.unwrap(), 32 << 20);
    });
}

//= promises.agent.client-leaves-stalled
#[test]
fn a_stalled_client_that_disconnects_has_its_command_killed() {
    run_within(LONG, async {
        let agentd = Agentd::start();
        let mut peer = Peer::connect(&agentd.socket()).await;
        let id = peer.first_id;
        peer.send(7, id, &command("sleep", &["1000"])).await;
        assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecStarted);
        let pid = *carrel_tests::children_of(agentd.pid()).first().unwrap();
        let stdin = ExecStdin { data: vec![0; 64 * 1024].into() };
        let flood = async {
            loop {
                peer.send(7, id, &stdin).await;
            }
        };
        let stalled = async {
            let other = agentd.client().await;
            for _ in 0..300 {
                other.ping().await.unwrap();
            }
        };
        tokio::select! {
            () = stalled => {}
            () = flood => {}
        }
        drop(peer);
        while std::path::Path::new(&format!("/proc/{pid}")).exists() {
            tokio::task::yield_now().await;
        }
    });
}

//= carrel.commands.below-backpressure-reading
//= promises.agent.memory-command-takes-input
#[test]
fn input_for_a_command_that_does_not_read_blocks_only_its_sender() {
    run_within(LONG, async {
        let cgroup = MemoryCgroup::new("input", LIMIT);
        let agentd = Agentd::launch(cgroup.command(&agentd_path()));
        let client = agentd.client_of(Generation::new(7)).await;
        let exec = client.exec(command("sleep", &["1000"])).await.unwrap();
        let input = exec.input();
        let other = agentd.client().await;
        let flood = async {
            loop {
                input.write(vec![0u8; 64 * 1024]).await.unwrap();
            }
        };
        let meanwhile = async {
            for _ in 0..500 {
                other.ping().await.unwrap();
            }
        };
        tokio::select! {
            () = meanwhile => {}
            () = flood => {}
        }
        assert_eq!(cgroup.out_of_memory_kills(), 0);
        drop((exec, client, other, agentd));
    });
}
