//! Flow control: a client that does not read, or whose command does not read, blocks only itself.

use std::time::Duration;

use carrel_agent_client::Generation;
use carrel_protocol::payload::{ExecExited, ExecStdin, ExecStdout};
use carrel_protocol::{MessageType, Payload};
use carrel_tests::{Peer, TestSandbox, command, full, run_within, shell};

const LONG: Duration = Duration::from_secs(300);

fn mebibytes() -> u64 {
    (if full() { 4096 } else { 256 }) * 1024 * 1024
}

/// The private memory of a process.
fn private_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let kibibytes = |line: &str| line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    text.lines().filter(|line| line.starts_with("Private_")).filter_map(kibibytes).sum::<u64>() * 1024
}

//= carrel.relay.never-waits-client-guest
//= promises.relay.memory-256-mib-4
#[test]
fn an_old_client_that_stops_reading_loses_nothing_and_delays_no_other_client() {
    run_within(LONG, async {
        let sandbox = TestSandbox::start().await;
        let mut reader = Peer::connect(&sandbox.socket()).await;
        let id = reader.first_id;
        // Below generation 10 nothing is acknowledged.
        reader.send(7, id, &command("head", &["-c", &mebibytes().to_string(), "/dev/zero"])).await;
        let other = sandbox.client().await;
        for _ in 0..100 {
            other.ping().await.unwrap();
            assert_eq!(other.run(command("true", &[]), "").await.unwrap().code, 0);
        }
        assert!(private_memory(sandbox.owned.shim_pid()) < 8 << 20);
        let mut received = 0;
        loop {
            let frame = reader.next_of(id).await;
            match frame.message_type() {
                MessageType::ExecStdout => {
                    received += ExecStdout::from_bytes(&frame.envelope().payload).unwrap().data.len() as u64;
                }
                MessageType::ExecExited => break,
                MessageType::ExecStarted => {}
                other => panic!("{other}"),
            }
        }
        assert_eq!(received, mebibytes());
    });
}

//= carrel.relay.fair-turns
//= promises.relay.input-256-mib-4
#[test]
fn an_old_client_whose_command_does_not_read_is_blocked_alone_and_loses_nothing() {
    run_within(LONG, async {
        let sandbox = TestSandbox::start().await;
        let mut writer = Peer::connect(&sandbox.socket()).await;
        let id = writer.first_id;
        let script = "while [ ! -e /tmp/go ]; do sleep 0.01; done; cat | wc -c";
        writer.send(7, id, &shell(script)).await;
        assert_eq!(writer.next_of(id).await.message_type(), MessageType::ExecStarted);
        let sending = tokio::spawn(async move {
            let data = vec![1; 64 * 1024];
            for _ in 0..mebibytes() / 64 / 1024 {
                writer.send(7, id, &ExecStdin { data: data.as_slice().into() }).await;
            }
            writer.send(7, id, &ExecStdin { data: [].as_slice().into() }).await;
            writer
        });
        let other = sandbox.client().await;
        for _ in 0..100 {
            other.ping().await.unwrap();
            assert_eq!(other.run(command("cat", &[]), vec![7; 100_000]).await.unwrap().stdout.len(), 100_000);
        }
        assert!(!sending.is_finished());
        assert_eq!(sandbox.shell("touch /tmp/go").await, "");
        let mut writer = sending.await.unwrap();
        let mut counted = String::new();
        loop {
            let frame = writer.next_of(id).await;
            match frame.message_type() {
                MessageType::ExecStdout => {
                    let data = ExecStdout::from_bytes(&frame.envelope().payload).unwrap().data.to_vec();
                    counted.push_str(std::str::from_utf8(&data).unwrap());
                }
                MessageType::ExecExited => {
                    let exited: ExecExited = frame.payload(|envelope| envelope.payload().unwrap());
                    assert_eq!(exited.code, 0);
                    break;
                }
                other => panic!("{other}"),
            }
        }
        assert_eq!(counted.trim(), mebibytes().to_string());
    });
}

//= promises.agent.channel-relay-input-session
//= promises.relay.room-large-frames
#[test]
fn the_largest_input_frames_arrive_complete() {
    run_within(LONG, async {
        let sandbox = TestSandbox::start().await;
        for size in [1_100_000, 4_000_000] {
            let mut peer = Peer::connect(&sandbox.socket()).await;
            let id = peer.first_id;
            peer.send(7, id, &command("wc", &["-c"])).await;
            assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecStarted);
            peer.send(7, id, &ExecStdin { data: vec![1; size].into() }).await;
            peer.send(7, id, &ExecStdin { data: [].as_slice().into() }).await;
            let counted = peer.next_of(id).await;
            let counted = ExecStdout::from_bytes(&counted.envelope().payload).unwrap().data.to_vec();
            assert_eq!(String::from_utf8(counted).unwrap().trim(), size.to_string());
        }
    });
}

//= carrel.relay.never-waits-client-guest
//= promises.relay.room-large-frames
#[test]
fn clients_that_are_blocked_on_their_commands_take_no_buffer_space_from_others() {
    run_within(LONG, async {
        let sandbox = TestSandbox::start().await;
        let mut blocked = Vec::new();
        for _ in 0..8 {
            let mut peer = Peer::connect(&sandbox.socket()).await;
            let id = peer.first_id;
            peer.send(7, id, &command("sleep", &["1000"])).await;
            assert_eq!(peer.next_of(id).await.message_type(), MessageType::ExecStarted);
            blocked.push(tokio::spawn(async move {
                loop {
                    peer.send(7, id, &ExecStdin { data: vec![0; 60_000].into() }).await;
                }
            }));
        }
        for generation in [Generation::new(7), Generation::PUBLISHED] {
            let client = sandbox.client_of(generation).await;
            let content = vec![3; 8 << 20];
            client.files().upload("/tmp/large", content.as_slice()).await.unwrap();
        }
        assert!(blocked.iter().all(|one| !one.is_finished()), "no client was disconnected");
        blocked.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

//= carrel.supervisor.pause-resume-statistics
//= promises.relay.timeout-client-middle-frame
#[test]
fn uploads_continue_after_a_pause() {
    run_within(LONG, async {
        let mut sandbox = TestSandbox::with(|create| {
            (create.disk, create.limits.memory) = (1 << 30, Some(2 << 30));
        })
        .await;
        let mut uploads = Vec::new();
        for number in 0..6 {
            let client = sandbox.client_of(Generation::new(7)).await;
            uploads.push(tokio::spawn(async move {
                let content = vec![number; 32 << 20];
                client.files().upload(&format!("/tmp/{number}"), content.as_slice()).await.unwrap();
            }));
        }
        sandbox.owned.pause().await.unwrap();
        // Longer than every timeout for a client in the middle of a frame.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        sandbox.owned.resume().await.unwrap();
        for upload in uploads {
            upload.await.unwrap();
        }
    });
}

//= carrel.relay.bounded-memory-client
//= promises.relay.memory-whatever-clients-guest
#[test]
fn files_are_transferred_in_both_directions_at_every_generation_while_other_clients_are_answered() {
    run_within(LONG, async {
        let sandbox = TestSandbox::with(|create| {
            (create.disk, create.limits.memory) = (2 << 30, Some(4 << 30));
        })
        .await;
        for generation in [Generation::new(7), Generation::PUBLISHED] {
            let client = sandbox.client_of(generation).await;
            let content: Vec<u8> = (0..64u64 << 20 >> 3).flat_map(u64::to_le_bytes).collect();
            let upload = async {
                client.files().upload("/tmp/large", content.as_slice()).await.unwrap();
                let mut downloaded = Vec::new();
                client.files().download("/tmp/large", &mut downloaded).await.unwrap();
                assert!(downloaded == content, "generation {generation}");
            };
            let other = sandbox.client().await;
            let ping = async {
                loop {
                    other.ping().await.unwrap();
                }
            };
            tokio::select! { () = upload => {}, () = ping => {} }
        }
        assert!(private_memory(sandbox.owned.shim_pid()) < 64 << 20);
    });
}

//= carrel.relay.bounded-memory-client
//= promises.relay.memory-whatever-clients-guest
//= promises.relay.timeout-client-middle-frame
#[test]
fn clients_that_stop_in_the_middle_of_a_large_frame_do_not_block_others() {
    run_within(LONG, async {
        let sandbox = TestSandbox::start().await;
        let mut stuck = Vec::new();
        for _ in 0..20 {
            let mut peer = Peer::connect(&sandbox.socket()).await;
            let mut partial = (4u32 << 20).to_be_bytes().to_vec();
            partial.extend(peer.first_id.to_be_bytes());
            partial.extend([0; 100_000]);
            peer.send_bytes(&partial).await;
            stuck.push(peer);
        }
        let client = sandbox.client_of(Generation::new(7)).await;
        let content = vec![3; 8 << 20];
        client.files().upload("/tmp/large", content.as_slice()).await.unwrap();
        assert_eq!(sandbox.shell("stat -c %s /tmp/large").await.trim(), content.len().to_string());
        assert!(private_memory(sandbox.owned.shim_pid()) < 64 << 20);
    });
}
