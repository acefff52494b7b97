//! A guest whose agent was replaced by a rogue program: the host is unharmed, and other sandboxes answer.

use carrel_shim_client::OwnerError;
use carrel_shim_client::messages::{EndReason, FailureCode};
use carrel_tests::{Peer, TestSandbox, agentd_path, run, run_within};

/// A sandbox whose first program is `carrel-liar` with the given behaviour.
async fn rogue(part: &str) -> Result<TestSandbox, OwnerError> {
    let program = agentd_path().parent().unwrap().join("carrel-liar");
    TestSandbox::try_with(|create| {
        create.agentd = program.into();
        create.hostname = part.to_owned();
    })
    .await
}

//= carrel.relay.agent-replaced-liar-harms
//= promises.relay.guest-say-before-ready
#[test]
fn a_guest_that_fails_the_handshake_does_not_become_a_sandbox_and_leaves_nothing() {
    run(async {
        for part in ["dies", "noise", "chatter", "closes"] {
            let error = rogue(part).await.err().expect("a rogue agent was accepted");
            let OwnerError::Failed(failed) = error else { panic!("{part}: {error}") };
            assert_eq!(failed.code, FailureCode::AgentFailed, "{part}: {failed:?}");
        }
        // The control: the same program behaves well.
        let mut honest = rogue("honest").await.unwrap();
        let ended = honest.owned.stop(std::time::Duration::ZERO).await.unwrap();
        assert_eq!(ended.reason, EndReason::Stopped);
        assert_eq!(honest.traces(), Vec::<String>::new());
    });
}

//= promises.relay.guest-say-before-ready
#[test]
fn a_shim_notices_that_its_owner_left_before_the_guest_is_ready() {
    // A guest has thirty seconds to send its first message.
    run_within(std::time::Duration::from_secs(20), async {
        let started = tokio::time::timeout(std::time::Duration::from_millis(500), rogue("silent")).await;
        // Its drop has waited for the shim to exit.
        assert!(started.is_err());
    });
}

//= carrel.relay.frame-guest-without-client
//= carrel.relay.agent-replaced-liar-harms
//= promises.relay.frames-guest-without-client
//= promises.supervisor.end-reasons-distinguished
#[test]
fn a_guest_that_floods_stray_frames_or_breaks_the_stream_is_killed_with_a_reason() {
    run(async {
        let bystander = TestSandbox::start().await;
        for part in ["strays", "broken"] {
            let mut sandbox = rogue(part).await.unwrap();
            let ended = sandbox.owned.ended().await.unwrap();
            assert_eq!(ended.reason, EndReason::Misbehaved, "{part}: {ended:?}");
            assert_eq!(sandbox.traces(), Vec::<String>::new());
            assert_eq!(bystander.shell("echo alive").await, "alive\n");
        }
    });
}

//= carrel.relay.frame-guest-without-client
//= carrel.relay.guest-cannot-touch-client
//= promises.relay.frames-guest-without-client
#[test]
fn a_few_stray_frames_are_dropped_and_counted() {
    run(async {
        let mut sandbox = rogue("few-strays").await.unwrap();
        let mut peer = Peer::connect(&sandbox.socket()).await;
        let id = peer.first_id;
        peer.send(10, id, &carrel_protocol::payload::Ping {}).await;
        let pong = peer.next().await.unwrap();
        assert_eq!(pong.id, id, "no stray frame reached the client");
        assert_eq!(sandbox.owned.statistics().await.unwrap().stray_frames, 20);
    });
}

//= carrel.relay.bounded-memory-client
//= carrel.relay.agent-replaced-liar-harms
//= promises.relay.memory-whatever-clients-guest
//= promises.relay.client-too-much-waits
#[test]
fn a_guest_that_floods_one_client_disconnects_only_that_client() {
    run(async {
        let mut sandbox = rogue("floods").await.unwrap();
        let mut flooded = Peer::connect(&sandbox.socket()).await;
        let other = Peer::connect(&sandbox.socket()).await;
        let id = flooded.first_id;
        flooded.send(10, id, &carrel_protocol::payload::Ping {}).await;
        // It does not read; the relay disconnects it instead of buffering everything.
        let mut statistics = sandbox.owned.statistics().await.unwrap();
        while statistics.clients == 2 {
            statistics = sandbox.owned.statistics().await.unwrap();
        }
        assert_eq!(statistics.clients, 1);
        let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.owned.shim_pid())).unwrap();
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
        let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(peak < 64 * 1024, "{peak} KiB");
        drop(other);
    });
}

//= carrel.supervisor.end-guest-oom-killed
#[test]
fn a_guest_that_exhausts_its_memory_is_reported_as_oom_killed() {
    run(async {
        let mut sandbox = rogue("eats").await.unwrap();
        let ended = sandbox.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::OutOfMemory, Some(libc::SIGKILL)), "{ended:?}");
        assert!(ended.out_of_memory_kills > 0);
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}

//= promises.relay.guest-closes-channel-lives
#[test]
fn a_guest_that_closes_its_channel_and_keeps_running_is_killed_without_a_busy_loop() {
    run(async {
        let mut sandbox = rogue("hangs-up").await.unwrap();
        let shim = sandbox.owned.shim_pid();
        let mut used = 0;
        let ended = loop {
            tokio::select! {
                ended = sandbox.owned.ended() => break ended.unwrap(),
                () = tokio::time::sleep(std::time::Duration::from_millis(20)) => used = processor_ticks(shim).unwrap_or(used),
            }
        };
        assert_eq!((ended.reason, ended.signal), (EndReason::GuestExit, Some(libc::SIGKILL)), "{ended:?}");
        assert!(used < 20, "the shim used {used} hundredths of a second while it waited");
    });
}

/// The processor time that a process has used, in hundredths of a second.
fn processor_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace().skip(11).map(|field| field.parse::<u64>().unwrap());
    Some(fields.next()? + fields.next()?)
}

//= carrel.relay.never-waits-client-guest
//= promises.relay.guest-never-reads-grants
#[test]
fn a_guest_that_never_reads_blocks_only_its_own_clients() {
    run(async {
        let mut sandbox = rogue("deaf").await.unwrap();
        let mut peer = Peer::connect(&sandbox.socket()).await;
        let (id, body) = (peer.first_id, vec![0xff; 1 << 20]);
        let sending = async {
            loop {
                peer.send_body(id, carrel_protocol::Flags::NONE, &body).await;
            }
        };
        let querying = async {
            for _ in 0..1000 {
                sandbox.owned.statistics().await.unwrap();
            }
        };
        tokio::select! { () = sending => {}, () = querying => {} }
        let ended = sandbox.owned.stop(std::time::Duration::from_millis(50)).await.unwrap();
        assert_eq!(ended.signal, Some(libc::SIGKILL));
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}

//= carrel.relay.guest-cannot-touch-client
//= promises.relay.guest-never-reads-grants
#[test]
fn a_guest_that_sends_excessive_credit_gains_nothing() {
    run(async {
        let sandbox = rogue("credit").await.unwrap();
        let mut peer = Peer::connect(&sandbox.socket()).await;
        let id = peer.first_id;
        // An honest agent would answer now; this one sends credit instead.
        peer.send(10, id, &carrel_protocol::payload::Ping {}).await;
        for number in 0..100 {
            peer.send_body(id, carrel_protocol::Flags::NONE, &vec![0; 1 << 20]).await;
            peer.send(10, id + 1 + number, &carrel_protocol::payload::Ping {}).await;
            peer.next_of(id + 1 + number).await;
        }
    });
}
