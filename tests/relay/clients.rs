//! Many clients of one relay.

use carrel_agent_client::{AgentClient, ExecEvent, Generation};
use carrel_protocol::payload::{CoreError, CoreErrorKind, Shutdown};
use carrel_protocol::{Flags, PrologueFormat};
use carrel_shim_client::messages::EndReason;
use carrel_tests::{Peer, TestSandbox, command, run, shell};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

//= client.constants-functions.connectagentsandbox-name-core-ready
//= carrel.relay.prologue-id-range-core
//= carrel.supervisor.socket-served-path-follows
//= promises.relay.generation-announced
#[test]
fn a_client_connects_by_the_name_of_a_sandbox_and_runs_commands() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let client = AgentClient::connect_sandbox(sandbox.home.path(), "test", Default::default()).await.unwrap();
        assert_eq!(client.generation(), Generation::PUBLISHED, "the private generation is not announced");
        let output = client.run(shell("cat; echo problem >&2; exit 42"), "from the host").await.unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"from the host"[..], &b"problem\n"[..]));
        assert_eq!(output.code, 42);
        assert_eq!(sandbox.shell("cat /proc/1/comm").await, "carrel-agentd\n");
        assert_eq!(sandbox.shell("echo $HOME").await, "/root\n");
    });
}

//= versioning.implementation-details.relay-bridges-host-guest
//= carrel.relay.clients-different-generations-bridged
//= promises.relay.generations-clients-work-beside
#[test]
fn clients_of_every_generation_work_at_the_same_time() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut running = Vec::new();
        for generation in 1..=10 {
            let client = sandbox.client_of(Generation::new(generation)).await;
            running.push(tokio::spawn(async move {
                let input = vec![generation; 300_000];
                let output = client.run(command("cat", &[]), input.clone()).await.unwrap();
                assert!(output.stdout == input, "generation {generation}");
                output.code
            }));
        }
        for one in running {
            assert_eq!(one.await.unwrap(), 0);
        }
    });
}

//= carrel.relay.prologue-id-range-core
//= carrel.relay.128-slots-lowest-free
//= promises.relay.clients-once
#[test]
fn every_slot_has_its_own_range_of_ids_and_the_last_slot_half_a_range() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut peers = Vec::new();
        for slot in 0..128 {
            let mut stream = UnixStream::connect(sandbox.socket()).await.unwrap();
            let mut prologue = [0; 8];
            stream.read_exact(&mut prologue).await.unwrap();
            let ids = PrologueFormat::Current.range(slot).unwrap();
            let end = if slot < 127 { ids.end() } else { ids.start() + PrologueFormat::Current.step() / 2 };
            assert_eq!(prologue[..4], ids.start().to_be_bytes());
            assert_eq!(prologue[4..], end.to_be_bytes());
            peers.push(stream);
        }
        let mut late = UnixStream::connect(sandbox.socket()).await.unwrap();
        assert_eq!(late.read(&mut [0; 1]).await.unwrap(), 0, "one too many is closed without a prologue");
        // A slot is reused after its client disconnects and the guest has been notified.
        drop(peers.swap_remove(5));
        let next = loop {
            let mut next = UnixStream::connect(sandbox.socket()).await.unwrap();
            let mut prologue = [0; 8];
            if next.read_exact(&mut prologue).await.is_ok() {
                break prologue;
            }
        };
        assert_eq!(next[..4], PrologueFormat::Current.range(5).unwrap().start().to_be_bytes());
    });
}

//= carrel.relay.ids-outside-range-flags
//= promises.relay.ways-client-loses-connection
#[test]
fn a_client_that_uses_the_ids_of_another_is_disconnected_and_the_other_is_not() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let victim = sandbox.client().await;
        let mut exec = victim.exec(shell("echo there; exec sleep 1000")).await.unwrap();
        assert!(matches!(exec.next().await.unwrap(), Some(ExecEvent::Stdout(data)) if &data[..] == b"there\n"));
        for (flags, id) in [(Flags::NONE, 1), (Flags::NONE, 0), (Flags::from_bits(3), u32::MAX), (Flags::SHUTDOWN, 1)] {
            let mut attacker = Peer::connect(&sandbox.socket()).await;
            let id = if id == u32::MAX { attacker.first_id } else { id };
            let signal = carrel_tests::body(10, &carrel_protocol::payload::ExecSignal { signal: 9, whole: false });
            attacker.send_body(id, flags, &signal).await;
            assert!(attacker.next().await.is_none(), "flags {flags:?}, id {id}");
        }
        exec.signal(libc::SIGTERM).unwrap();
        assert_eq!(exec.collect().await.unwrap().signal, Some(libc::SIGTERM));
    });
}

//= carrel.relay.client-leaves-sessions-ended
//= promises.relay.client-leaves
#[test]
fn a_disconnect_kills_the_commands_of_that_client_and_of_no_other() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let (leaving, staying) = (sandbox.client().await, sandbox.client().await);
        let start = |client: AgentClient| async move {
            let mut exec = client.exec(shell("echo $$; exec sleep 1000")).await.unwrap();
            let Some(ExecEvent::Stdout(pid)) = exec.next().await.unwrap() else { panic!("no pid") };
            (client, exec, String::from_utf8(pid.to_vec()).unwrap().trim().to_owned())
        };
        let (leaving, abandoned, first) = start(leaving).await;
        let (staying, mut exec, second) = start(staying).await;
        drop((abandoned, leaving));
        // The guest answers this after it was notified of the disconnect.
        let alive = |pid: &str| shell(&format!("test -e /proc/{pid}"));
        while staying.run(alive(&first), "").await.unwrap().code == 0 {}
        assert_eq!(staying.run(alive(&second), "").await.unwrap().code, 0);
        exec.signal(libc::SIGTERM).unwrap();
        assert_eq!(exec.collect().await.unwrap().signal, Some(libc::SIGTERM));
    });
}

//= versioning.implementation-details.relay-routes-id-flags
//= carrel.relay.routing-id-without-decoding
//= promises.relay.bodies-reads
#[test]
fn frames_with_malformed_bodies_are_routed_and_answered() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let (mut noisy, quiet) = (Peer::connect(&sandbox.socket()).await, sandbox.client().await);
        let first = noisy.first_id;
        // From the first frame on: a client that never sent a valid message is answered too.
        for number in 0..500 {
            noisy.send_body(first + number, Flags::NONE, &[0xff; 100]).await;
            let answer = noisy.next_of(first + number).await;
            let error: CoreError = answer.payload(|envelope| envelope.payload().unwrap());
            assert_eq!(error.kind, CoreErrorKind::MalformedMessage);
            if number % 100 == 0 {
                quiet.ping().await.unwrap();
            }
        }
    });
}

//= carrel.files-trees-connections.10-spoken-our-peer
//= promises.relay.generation-announced
#[test]
fn messages_of_the_private_generation_are_refused_from_clients() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut peer = Peer::connect(&sandbox.socket()).await;
        let id = peer.first_id;
        let hello = carrel_protocol::payload::CarrelHello { generation: 11, relay: true };
        peer.send(11, id, &hello).await;
        let error: CoreError = peer.next_of(id).await.payload(|envelope| envelope.payload().unwrap());
        assert_eq!(error.kind, CoreErrorKind::UnsupportedMessageType);
        let credit = carrel_protocol::payload::CarrelCredit { id_start: 1, limit: u64::MAX };
        peer.send(11, id + 1, &credit).await;
        let error: CoreError = peer.next_of(id + 1).await.payload(|envelope| envelope.payload().unwrap());
        assert_eq!(error.kind, CoreErrorKind::UnsupportedMessageType);
    });
}

//= carrel.relay.never-waits-client-guest
//= promises.relay.clients-let-turn
#[test]
fn clients_that_reconnect_in_a_loop_do_not_delay_others() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let client = sandbox.client().await;
        let storm: Vec<_> = (0..2)
            .map(|_| {
                let socket = sandbox.socket();
                std::thread::spawn(move || while std::os::unix::net::UnixStream::connect(&socket).is_ok() {})
            })
            .collect();
        for _ in 0..100 {
            client.ping().await.unwrap();
            sandbox.owned.statistics().await.unwrap();
        }
        sandbox.owned.stop(std::time::Duration::ZERO).await.unwrap();
        storm.into_iter().for_each(|one| one.join().unwrap());
    });
}

//= carrel.relay.client-shut-sandbox-down
//= promises.supervisor.end-reasons-distinguished
#[test]
fn a_client_can_shut_the_sandbox_down() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let mut peer = Peer::connect(&sandbox.socket()).await;
        peer.send(10, 0, &Shutdown).await;
        drop(peer);
        let ended = sandbox.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.code), (EndReason::Shutdown, Some(0)), "{ended:?}");
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}
