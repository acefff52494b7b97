//! Commands: events, input with credit, output with acknowledgements.

use carrel_agent_client::protocol::Envelope;
use carrel_agent_client::protocol::payload::{
    ExecExited, ExecFailed, ExecFailureKind, ExecLimits, ExecOutputAck, ExecRequest, ExecResize, ExecSignal,
    ExecStarted, ExecStderr, ExecStdin, ExecStdinAck, ExecStdinError, ExecStdout,
};
use carrel_agent_client::{AgentClient, AgentClientError, Exec, ExecEvent, ExecOutput, MessageType};

use crate::peer::{ScriptedPeer, connected, connected_to, data, flow_ready};

fn command(cmd: &str) -> ExecRequest {
    ExecRequest { cmd: cmd.into(), ..ExecRequest::default() }
}

/// A running command and its id.
pub async fn started(client: &AgentClient, peer: &mut ScriptedPeer) -> (Exec, u32) {
    let agent = async {
        let (id, _) = peer.expect::<ExecRequest>().await;
        peer.send(id, &ExecStarted { pid: 42 }).await;
        id
    };
    let (exec, id) = tokio::join!(client.exec(command("cat")), agent);
    (exec.unwrap(), id)
}

#[tokio::test]
async fn events_of_a_command_arrive_in_order_until_it_exits() {
    let (client, mut peer) = connected(7).await;
    let (mut exec, id) = started(&client, &mut peer).await;
    assert_eq!(exec.pid(), 42);
    peer.send(id, &ExecStdout { data: data(b"out") }).await;
    peer.send(id, &ExecStderr { data: data(b"err") }).await;
    peer.send(id, &ExecExited { code: -1, signal: Some(15) }).await;
    assert_eq!(exec.next().await.unwrap(), Some(ExecEvent::Stdout("out".into())));
    assert_eq!(exec.next().await.unwrap(), Some(ExecEvent::Stderr("err".into())));
    assert_eq!(exec.next().await.unwrap(), Some(ExecEvent::Exited { code: -1, signal: Some(15) }));
    assert_eq!(exec.next().await.unwrap(), None);
    exec.kill().unwrap();
    assert!(matches!(exec.write_stdin("late").await, Err(AgentClientError::InputClosed)));
    drop(exec);
    client.close();
    peer.expect_end().await;
}

#[tokio::test]
async fn a_command_that_could_not_be_started_reports_the_reason() {
    let (client, mut peer) = connected(10).await;
    let agent = async {
        let (id, _) = peer.expect::<ExecRequest>().await;
        let failed = ExecFailed {
            kind: ExecFailureKind::NotFound,
            errno: Some(2),
            errno_name: Some("ENOENT".into()),
            message: "no such program".into(),
            stage: None,
        };
        peer.send(id, &failed).await;
    };
    let error = tokio::join!(client.exec(command("nonsense")), agent).0.unwrap_err();
    assert_eq!(error.to_string(), "command could not be started: no such program (not_found)");
    assert_eq!(error.errno_name(), Some("ENOENT"));
}

#[tokio::test]
async fn resize_and_signals_are_sent_to_the_command() {
    let (client, mut peer) = connected(10).await;
    let (exec, id) = started(&client, &mut peer).await;
    exec.resize(50, 132).unwrap();
    exec.signal(15).unwrap();
    exec.kill().unwrap();
    assert_eq!(peer.expect().await, (id, ExecResize { rows: 50, cols: 132 }));
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 15, whole: false }));
    assert_eq!(peer.expect().await, (id, ExecSignal { signal: 9, whole: false }));
}

//= carrel.commands.flow-control-generation-10
#[tokio::test]
async fn input_is_split_into_chunks_and_waits_for_credit() {
    let limits = ExecLimits { input_limit: 40_000, ..ExecLimits::DEFAULT };
    let (client, mut peer) = connected_to(10, &flow_ready(limits)).await;
    let (exec, id) = started(&client, &mut peer).await;
    let agent = async {
        let (mut received, mut taken, mut input) = (0u64, 0u64, Vec::new());
        loop {
            let (from, chunk) = peer.expect_data(MessageType::ExecStdin).await;
            assert_eq!(from, id);
            if chunk.is_empty() {
                return input;
            }
            assert!(chunk.len() <= 16_384, "{}", chunk.len());
            received += chunk.len() as u64;
            input.extend(chunk);
            assert!(received - taken <= 40_000, "{received} sent, {taken} taken");
            // The client has to wait when the next chunk does not fit; only then is something consumed.
            if received - taken + 16_384 > 40_000 {
                taken = received;
                peer.send(id, &ExecStdinAck { consumed: taken }).await;
            }
        }
    };
    let input: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
    let write = async {
        exec.write_stdin(input.clone()).await.unwrap();
        exec.close_stdin().await.unwrap();
        exec.close_stdin().await.unwrap();
    };
    assert_eq!(tokio::join!(agent, write).0, input);
    assert!(matches!(exec.write_stdin("more").await, Err(AgentClientError::InputClosed)));
}

#[tokio::test]
async fn a_writer_waiting_for_credit_fails_when_the_command_rejects_input() {
    let limits = ExecLimits { input_limit: 16_384, ..ExecLimits::DEFAULT };
    let (client, mut peer) = connected_to(10, &flow_ready(limits)).await;
    let (mut exec, id) = started(&client, &mut peer).await;
    let input = exec.input();
    let agent = async {
        peer.expect_data(MessageType::ExecStdin).await;
        let error = ExecStdinError { errno: Some(32), errno_name: Some("EPIPE".into()), message: "closed".into() };
        peer.send(id, &error).await;
    };
    let error = tokio::join!(input.write(vec![0; 100_000]), agent).0.unwrap_err();
    assert_eq!(error.errno_name(), Some("EPIPE"));
    assert!(matches!(exec.next().await.unwrap(), Some(ExecEvent::StdinError(_))));
}

//= carrel.commands.flow-control-generation-10
#[tokio::test]
async fn output_is_acknowledged_when_it_is_consumed_and_not_before() {
    let (client, mut peer) = connected_to(10, &flow_ready(ExecLimits::DEFAULT)).await;
    let (mut exec, id) = started(&client, &mut peer).await;
    peer.send(id, &ExecStdout { data: data(b"12345") }).await;
    exec.next().await.unwrap();
    assert_eq!(peer.expect().await, (id, ExecOutputAck { consumed: 261 }));
    peer.send(id, &ExecStderr { data: data(b"") }).await;
    exec.next().await.unwrap();
    assert_eq!(peer.expect().await, (id, ExecOutputAck { consumed: 517 }));
    peer.send(id, &ExecExited { code: 0, signal: None }).await;
    exec.next().await.unwrap();
    drop(exec);
    client.close();
    peer.expect_end().await;
}

#[tokio::test]
async fn an_agent_that_fills_its_window_never_stalls_while_output_is_consumed() {
    let limits = ExecLimits { output_limit: 70_000, ..ExecLimits::DEFAULT };
    let (client, mut peer) = connected_to(10, &flow_ready(limits)).await;
    let (mut exec, id) = started(&client, &mut peer).await;
    let agent = async {
        let (mut charged, mut consumed, mut acknowledgements) = (0u64, 0u64, 0);
        for _ in 0..100 {
            while charged - consumed + 16_640 > 70_000 {
                let (_, ack) = peer.expect::<ExecOutputAck>().await;
                assert!(ack.consumed > consumed && ack.consumed <= charged);
                (consumed, acknowledgements) = (ack.consumed, acknowledgements + 1);
            }
            peer.send(id, &ExecStdout { data: data(&[7; 16_384]) }).await;
            charged += 16_640;
        }
        // The exit is deferred until everything is acknowledged, as by published agents.
        while consumed < charged {
            (consumed, acknowledgements) = (peer.expect::<ExecOutputAck>().await.1.consumed, acknowledgements + 1);
        }
        peer.send(id, &ExecExited { code: 0, signal: None }).await;
        assert!(acknowledgements <= 100);
    };
    let output = tokio::join!(exec.collect(), agent).0.unwrap();
    assert_eq!(output.stdout.len(), 100 * 16_384);
}

//= versioning.rules-never-broken.6-newer-side-speaks
//= versioning.number-agreed-upon-once.old-runtime-never-understand
#[tokio::test]
async fn below_generation_ten_nothing_is_acknowledged() {
    let (client, mut peer) = connected_to(9, &flow_ready(ExecLimits::DEFAULT)).await;
    let (mut exec, id) = started(&client, &mut peer).await;
    peer.send(id, &ExecStdout { data: data(b"12345") }).await;
    peer.send(id, &ExecExited { code: 3, signal: None }).await;
    assert_eq!(exec.collect().await.unwrap().code, 3);
    client.close();
    peer.expect_end().await;
}

#[tokio::test]
async fn input_is_written_while_output_is_read() {
    // The agent echoes each chunk before it accepts the next: writing everything first would deadlock.
    let limits = ExecLimits { input_limit: 16_384, ..ExecLimits::DEFAULT };
    let (client, mut peer) = connected_to(10, &flow_ready(limits)).await;
    let agent = async {
        let (id, _) = peer.expect::<ExecRequest>().await;
        peer.send(id, &ExecStarted { pid: 1 }).await;
        let mut taken = 0;
        loop {
            let frame = peer.frame().await.unwrap();
            let envelope = Envelope::parse(&frame.body).unwrap();
            if envelope.message_type() == Some(MessageType::ExecOutputAck) {
                continue;
            }
            let chunk = envelope.payload::<ExecStdin<'_>>().unwrap().data;
            if chunk.is_empty() {
                break;
            }
            peer.send(id, &ExecStdout { data: data(&chunk) }).await;
            taken += chunk.len() as u64;
            peer.send(id, &ExecStdinAck { consumed: taken }).await;
        }
        peer.send(id, &ExecExited { code: 5, signal: None }).await;
    };
    let input = vec![9; 100_000];
    let output = tokio::join!(client.run(command("cat"), input.clone()), agent).0.unwrap();
    assert_eq!(output, ExecOutput { stdout: input, stderr: Vec::new(), code: 5, signal: None });
}
