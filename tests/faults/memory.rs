//! The agent in sixteen mebibytes, while far more than that passes through it.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use carrel_agent_client::Generation;
use carrel_protocol::payload::{ExecExited, ExecStdout};
use carrel_protocol::{MessageType, Payload};
use carrel_tests::{Agentd, MemoryCgroup, Peer, agentd_path, command, full, run_within};

const LIMIT: u64 = 16 * 1024 * 1024;
const LONG: Duration = Duration::from_secs(300);

fn gibibytes() -> u64 {
    (if full() { 4 } else { 1 }) * 1024 * 1024 * 1024
}

#[test]
fn a_reader_that_reads_nothing_and_then_everything_loses_nothing() {
    run_within(LONG, async {
        let cgroup = MemoryCgroup::new("output", LIMIT);
        let agentd = Agentd::launch(cgroup.command(&agentd_path()));
        let mut reader = Peer::connect(&agentd.socket()).await;
        let id = reader.first_id;
        // Below generation 10 nothing is acknowledged: all that holds the command back is that nobody reads.
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

#[test]
fn large_files_pass_in_both_directions() {
    run_within(LONG, async {
        let size = gibibytes() / 4;
        for generation in [Generation::new(7), Generation::PUBLISHED] {
            let cgroup = MemoryCgroup::new(&format!("files-{generation}"), LIMIT);
            let agentd = Agentd::launch(cgroup.command(&agentd_path()));
            let client = agentd.client_of(generation).await;
            let files = client.files();
            let path = agentd.path("large");
            // A pattern whose every block differs, so that a lost, repeated or misplaced one shows.
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

#[test]
fn input_that_nobody_takes_makes_only_its_sender_wait() {
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
