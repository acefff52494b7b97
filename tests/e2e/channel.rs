//! The channel of the host: bootstrap, the ids of many clients, and shutdown.

use std::os::unix::net::UnixStream;

use carrel_protocol::payload::{
    Bootstrap, CarrelHello, CarrelWelcome, ClientDisconnected, CoreError, CoreErrorKind, EnvironmentVariable,
    ExecExited, ExecLimits, ExecRequest, ExecSignal, ExecStdin, ExecStdinError, ExecStdout, InitFailure, InitResolved,
    Network, Ping, Ready, Shutdown, TransportPosition, WorkloadDisposition, WorkloadFreeze,
};
use carrel_protocol::{Generation, MessageType, PrologueFormat};
use carrel_tests::{Guest, Peer, run, shell};

fn bootstrap() -> Bootstrap {
    Bootstrap {
        user: Some("nobody".into()),
        default_cwd: Some("/usr".into()),
        default_env: vec![EnvironmentVariable { key: "WHERE".into(), value: "here".into() }],
        exec_limits: Some(ExecLimits { max_executions: 2, ..ExecLimits::DEFAULT }),
        ..Bootstrap::default()
    }
}

/// An agent, and a peer that has received its `Ready`.
async fn ready_guest() -> (Guest, Peer) {
    let (guest, channel) = Guest::start(Guest::plain());
    let mut peer = Peer::from_std(channel);
    assert_eq!(peer.next().await.unwrap().message_type(), MessageType::Ready);
    (guest, peer)
}

async fn core_error(peer: &mut Peer, id: u32) -> CoreError {
    peer.next_of(id).await.payload(|envelope| envelope.payload().unwrap())
}

/// The output and the exit of a command.
async fn output(peer: &mut Peer, id: u32) -> (String, ExecExited) {
    let mut text = String::new();
    loop {
        let received = peer.next_of(id).await;
        match received.message_type() {
            MessageType::ExecStdout => {
                received
                    .payload(|e| text += std::str::from_utf8(&e.payload::<ExecStdout<'_>>().unwrap().data).unwrap());
            }
            MessageType::ExecExited => return (text, received.payload(|envelope| envelope.payload().unwrap())),
            _ => {}
        }
    }
}

//= carrel.agent-itself.bootstrap-far-makes-sense
#[test]
fn a_bootstrap_that_was_sent_before_the_start_is_applied_before_ready() {
    run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer::from_std(ours);
        peer.send(10, 0, &bootstrap()).await;
        let _guest = Guest::on(&mut Guest::plain(), theirs);
        let resolved: InitResolved = peer.next().await.unwrap().payload(|envelope| envelope.payload().unwrap());
        assert_eq!((resolved.default_user.uid, resolved.default_user.gid), (65_534, 65_534));
        let ready: Ready = peer.next().await.unwrap().payload(|envelope| envelope.payload().unwrap());
        assert_eq!(ready.exec_limits.unwrap().max_executions, 2);
        peer.send(7, 5, &shell("echo $WHERE $PWD $(id -u)")).await;
        assert_eq!(output(&mut peer, 5).await.0, "here /usr 65534\n");
    });
}

//= carrel.agent-itself.bootstrap-far-makes-sense
#[test]
fn a_bootstrap_is_accepted_once_and_settings_of_virtual_machines_are_refused() {
    run(async {
        let (_guest, mut peer) = ready_guest().await;
        let network = Network { interface: "eth0".into(), mac: [0; 6], mtu: 1500, ipv4: None, ipv6: None };
        peer.send(10, 0, &Bootstrap { network: Some(network), ..bootstrap() }).await;
        assert_eq!(core_error(&mut peer, 0).await.kind, CoreErrorKind::CapabilityUnavailable);
        peer.send(10, 0, &Bootstrap { user: Some("no-such-user".into()), ..Bootstrap::default() }).await;
        let error = core_error(&mut peer, 0).await;
        assert_eq!(
            (error.kind, error.init_failure),
            (CoreErrorKind::InitializationFailed, Some(InitFailure::UserNotFound))
        );
        peer.send(10, 0, &bootstrap()).await;
        assert_eq!(peer.next_of(0).await.message_type(), MessageType::InitResolved);
        peer.send(10, 0, &bootstrap()).await;
        assert_eq!(core_error(&mut peer, 0).await.kind, CoreErrorKind::InvalidSession);
        let freeze = WorkloadFreeze {
            external_mount_tags: vec![],
            attempt_id: "a".into(),
            host_input: TransportPosition::default(),
        };
        peer.send(10, 9, &freeze).await;
        let error = core_error(&mut peer, 9).await;
        assert_eq!(error.kind, CoreErrorKind::CapabilityUnavailable);
        assert_eq!(error.workload_failure.unwrap().disposition, WorkloadDisposition::Unavailable);
    });
}

//= carrel.agent-itself.withdrawn-range-ends-its-sessions
#[test]
fn a_disconnect_of_a_client_kills_its_sessions_and_no_others() {
    run(async {
        let (_guest, mut peer) = ready_guest().await;
        let (first, second) = (PrologueFormat::Current.range(0).unwrap(), PrologueFormat::Current.range(1).unwrap());
        peer.send(7, first.start(), &shell("echo $$; sleep 1000")).await;
        peer.send(7, second.start(), &shell("echo $$; sleep 1000")).await;
        let mut pids = [0u32; 2];
        while pids.contains(&0) {
            let received = peer.next().await.unwrap();
            if received.message_type() == MessageType::ExecStdout {
                let pid: u32 = received.payload(|envelope| {
                    let data = envelope.payload::<ExecStdout<'_>>().unwrap().data.into_owned();
                    String::from_utf8(data).unwrap().trim().parse().unwrap()
                });
                pids[usize::from(received.id == second.start())] = pid;
            }
        }
        peer.send(
            10,
            0,
            &ClientDisconnected { id_start: first.start(), id_end_exclusive: first.end(), incarnation: None },
        )
        .await;
        let probe =
            format!("while kill -0 {} 2>/dev/null; do sleep 0.02; done; kill -0 {} && echo alive", pids[0], pids[1]);
        peer.send(7, second.start() + 1, &shell(&probe)).await;
        assert_eq!(output(&mut peer, second.start() + 1).await.0, "alive\n");
        // The id is free again, and starts a new session.
        peer.send(7, first.start(), &shell("echo again")).await;
        assert_eq!(output(&mut peer, first.start()).await.0, "again\n");
        peer.send(7, second.start(), &ExecSignal { signal: 9, whole: false }).await;
        assert_eq!(output(&mut peer, second.start()).await.1, ExecExited { code: -1, signal: Some(9) });
    });
}

//= versioning.rules-never-broken.1-version-number-agreed
//= versioning.implementation-details.gate-behaviour-stamp-message
//= versioning.number-agreed-upon-once.during-handshake-side-learns
//= versioning.number-agreed-upon-once.version-message-generation-second
//= carrel.files-trees-connections.10-spoken-our-peer
#[test]
fn the_private_generation_is_used_only_after_a_hello() {
    run(async {
        let (_guest, mut peer) = ready_guest().await;
        peer.send(11, 3, &carrel_protocol::payload::CarrelFsCancel {}).await;
        assert_eq!(core_error(&mut peer, 3).await.kind, CoreErrorKind::UnsupportedMessageType);
        peer.send(11, 4, &Ping {}).await;
        let pong = peer.next_of(4).await;
        assert_eq!(pong.envelope().generation, Generation::PUBLISHED, "a stamp alone proves nothing");
        peer.send(11, 5, &CarrelHello { generation: 200, relay: false }).await;
        let welcome: CarrelWelcome = peer.next_of(5).await.payload(|envelope| envelope.payload().unwrap());
        assert_eq!(welcome.generation, Generation::CURRENT.get());
        peer.send(11, 6, &Ping {}).await;
        assert_eq!(peer.next_of(6).await.envelope().generation, Generation::CURRENT);
    });
}

//= promises.agent.channel-relay-input-session
#[test]
fn on_a_shared_channel_too_much_input_for_one_session_blocks_no_other() {
    run(async {
        let (_guest, mut peer) = ready_guest().await;
        peer.send(11, 5, &CarrelHello { generation: 11, relay: true }).await;
        peer.next_of(5).await;
        let (one, two) =
            (PrologueFormat::Current.range(0).unwrap().start() + 9, PrologueFormat::Current.range(1).unwrap().start());
        peer.send(7, one, &carrel_tests::command("sleep", &["1000"])).await;
        assert_eq!(peer.next_of(one).await.message_type(), MessageType::ExecStarted);
        for _ in 0..192 {
            peer.send(7, one, &ExecStdin { data: vec![0; 64 * 1024].into() }).await;
        }
        peer.send(7, two, &Ping {}).await;
        let error: ExecStdinError = peer.next_of(one).await.payload(|envelope| envelope.payload().unwrap());
        assert_eq!(error.errno_name.as_deref(), Some("ENOBUFS"));
        assert_eq!(peer.next_of(two).await.message_type(), MessageType::Pong);
        peer.send(7, one, &ExecSignal { signal: 9, whole: false }).await;
        assert_eq!(output(&mut peer, one).await.1, ExecExited { code: -1, signal: Some(9) });
    });
}

//= client.constants-functions.flagshutdown-0x04-requests-shutdown
//= carrel.agent-itself.shutdown-end-without-host
//= promises.agent.commands-after-shutdown
#[test]
fn a_shutdown_terminates_commands_and_then_the_agent() {
    run(async {
        let (mut guest, mut peer) = ready_guest().await;
        let request = ExecRequest { ..shell("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done") };
        peer.send(7, 8, &request).await;
        while peer.next_of(8).await.message_type() != MessageType::ExecStdout {}
        peer.send(7, 0, &Shutdown).await;
        let (text, exited) = output(&mut peer, 8).await;
        assert_eq!((text.as_str(), exited.code), ("bye\n", 3));
        assert!(peer.next().await.is_none());
        assert_eq!(guest.wait(), Some(0));
    });
}

//= carrel.agent-itself.shutdown-end-without-host
#[test]
fn an_agent_that_loses_its_host_exits_and_kills_its_processes() {
    run(async {
        let (mut guest, mut peer) = ready_guest().await;
        peer.send(7, 8, &shell("echo $$; sleep 1000")).await;
        let pid = loop {
            let received = peer.next_of(8).await;
            if received.message_type() == MessageType::ExecStdout {
                break received.payload(|envelope| {
                    String::from_utf8(envelope.payload::<ExecStdout<'_>>().unwrap().data.into_owned()).unwrap()
                });
            }
        };
        drop(peer);
        assert_eq!(guest.wait(), Some(0));
        // It was killed before the agent exited; the kernel may not have finished.
        let running = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
            !status.is_empty() && !status.contains("State:\tZ") && !status.contains("State:\tX")
        };
        while running() {
            tokio::task::yield_now().await;
        }
    });
}
