//! Both forms of the handshake, and what they negotiate.

use std::future::Future;
use std::time::Duration;

use carrel_agent_client::protocol::payload::{
    CarrelHello, CarrelReady, CarrelWelcome, CoreError, CoreErrorKind, Ping, Pong, Ready,
};
use carrel_agent_client::protocol::{Generation, PrologueFormat};
use carrel_agent_client::{AgentClient, ConnectError, ConnectOptions, ConnectionLost, MessageType};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::peer::{ScriptedPeer, connected_to_carrel, greeting, plain_ready, ready_frame};

async fn connect_to(bytes: &[u8], options: ConnectOptions) -> (Result<AgentClient, ConnectError>, ScriptedPeer) {
    let (mut stream, ours) = tokio::io::duplex(64 * 1024);
    stream.write_all(bytes).await.unwrap();
    (AgentClient::connect_stream(ours, options).await, ScriptedPeer { stream, generation: Generation::PUBLISHED })
}

fn at_most(generation: u8) -> ConnectOptions {
    ConnectOptions { max_generation: Generation::new(generation), ..ConnectOptions::default() }
}

//= versioning.number-agreed-upon-once.during-handshake-side-learns
//= client.methods-client.readybytes-body-core-ready
//= client.constants-functions.client-handles-framing-correlation
#[tokio::test]
async fn the_current_prologue_gives_the_range_and_the_generation() {
    let (client, mut peer) = connect_to(&greeting(10, &plain_ready()), ConnectOptions::default()).await;
    let client = client.unwrap();
    assert_eq!(client.generation(), Generation::PUBLISHED);
    assert_eq!(client.ready(), plain_ready());
    assert_eq!(client.ready_bytes(), &ready_frame(10, &plain_ready())[9..]);
    let agent = async {
        for id in 1..=3 {
            assert_eq!(peer.expect::<Ping>().await.0, id);
            peer.send(id, &Pong {}).await;
        }
    };
    let pings = async {
        for _ in 0..3 {
            client.ping().await.unwrap();
        }
    };
    tokio::join!(agent, pings);
}

//= versioning.three-kinds-change.change-format-sorted-handshake
//= versioning.three-kinds-change.newer-side-keeps-old
//= versioning.implementation-details.codec-gate-two-consumers
//= versioning.rules-never-broken.6-newer-side-speaks
//= versioning.implementation-details.old-codec-carried-until
#[tokio::test]
async fn the_legacy_prologue_means_generation_one() {
    for slot in [0, 1, 15] {
        let ids = PrologueFormat::LegacyV1.range(slot).unwrap();
        let mut bytes = PrologueFormat::LegacyV1.prologue(ids);
        bytes.extend(ready_frame(10, &plain_ready()));
        let (client, mut peer) = connect_to(&bytes, ConnectOptions::default()).await;
        let client = client.unwrap();
        assert_eq!(client.generation(), Generation::LEGACY);
        assert!(client.supports(MessageType::ExecRequest) && !client.supports(MessageType::FsRequest));
        peer.generation = Generation::LEGACY;
        let exec = client.exec(carrel_agent_client::ExecRequest { cmd: "true".into(), ..Default::default() });
        let agent = async {
            let (id, request) = peer.expect::<carrel_agent_client::ExecRequest>().await;
            assert_eq!((id, request.rows, request.cols), (ids.start(), 24, 80));
            peer.send(id, &carrel_agent_client::protocol::payload::ExecStarted { pid: 7 }).await;
        };
        assert_eq!(tokio::join!(exec, agent).0.unwrap().pid(), 7);
    }
}

//= versioning.implementation-details.negotiated-version-lower-ours
//= versioning.tests-names.negotiated-generation-lower-two
#[tokio::test]
async fn the_negotiated_generation_is_the_lower_of_the_two() {
    for peer in 1..=12 {
        for own in 1..=11 {
            let (client, _peer) = connect_to(&greeting(peer, &plain_ready()), at_most(own)).await;
            assert_eq!(client.unwrap().generation().get(), peer.min(own).min(10), "own {own}, peer {peer}");
        }
    }
}

#[tokio::test]
async fn a_channel_begins_with_ready_and_owns_every_id() {
    let (mut stream, ours) = tokio::io::duplex(1024);
    stream.write_all(&ready_frame(7, &plain_ready())).await.unwrap();
    let client = AgentClient::connect_channel(ours, ConnectOptions::default()).await.unwrap();
    assert_eq!(client.generation().get(), 7);
}

//= carrel.client.agent-ours-greeted-foreign
#[tokio::test]
async fn a_carrel_agent_is_sent_hello_and_its_welcome_sets_the_generation() {
    let (client, mut peer) = connected_to_carrel().await;
    assert_eq!(client.generation(), Generation::CURRENT);
    assert!(client.supports(MessageType::CarrelFsRequest));
    let agent = async {
        let (id, _) = peer.expect::<Ping>().await;
        assert_eq!(id, 2, "carrel.hello used the first id");
        peer.send(id, &Pong {}).await;
    };
    tokio::join!(client.ping(), agent).0.unwrap();
}

#[tokio::test]
async fn a_welcome_below_the_offer_is_accepted_and_other_frames_are_skipped() {
    let (mut stream, ours) = tokio::io::duplex(1024);
    let ready = Ready { carrel: Some(CarrelReady { generation: 99 }), ..plain_ready() };
    stream.write_all(&greeting(10, &ready)).await.unwrap();
    let mut peer = ScriptedPeer { stream, generation: Generation::PUBLISHED };
    let agent = async {
        let (id, hello) = peer.expect::<CarrelHello>().await;
        assert_eq!(hello, CarrelHello { generation: 11, relay: false });
        peer.send(id + 1, &Pong {}).await;
        peer.send(id, &CarrelWelcome { generation: 10 }).await;
    };
    let (client, ()) = tokio::join!(AgentClient::connect_stream(ours, ConnectOptions::default()), agent);
    assert_eq!(client.unwrap().generation(), Generation::PUBLISHED);
}

//= carrel.files-trees-connections.10-spoken-our-peer
//= carrel.client.agent-ours-greeted-foreign
#[tokio::test]
async fn a_foreign_agent_is_never_sent_hello() {
    let ours = Ready { carrel: Some(CarrelReady { generation: 11 }), ..plain_ready() };
    for (ready, options) in [(plain_ready(), ConnectOptions::default()), (ours, at_most(10))] {
        for generation in [10, 11, 200] {
            let (client, mut peer) = connect_to(&greeting(generation, &ready), options).await;
            let client = client.unwrap();
            assert_eq!(client.generation(), Generation::PUBLISHED);
            client.close();
            peer.expect_end().await;
        }
    }
}

//= versioning.three-kinds-change.refusal-upfront-says
//= versioning.three-kinds-change.connection-refused-peer-older
//= versioning.implementation-details.old-codec-carried-until
#[tokio::test]
async fn an_agent_that_is_too_old_is_rejected_with_a_hint() {
    let options = ConnectOptions { min_generation: Generation::new(7), ..ConnectOptions::default() };
    assert!(connect_to(&greeting(7, &plain_ready()), options).await.0.is_ok());
    let mut legacy = PrologueFormat::LegacyV1.prologue(PrologueFormat::LegacyV1.range(0).unwrap());
    legacy.extend(ready_frame(10, &plain_ready()));
    for (bytes, spoken) in [(greeting(6, &plain_ready()), 6), (legacy, 1)] {
        let (refused, mut peer) = connect_to(&bytes, options).await;
        let error = refused.unwrap_err();
        assert!(matches!(&error, ConnectError::BelowHorizon { peer, .. } if peer.get() == spoken), "{error}");
        assert!(error.to_string().contains("restart the sandbox"), "{error}");
        peer.expect_end().await;
    }
}

/// Runs a handshake that times out on a paused clock, and returns how long it took.
async fn timed_out(expected: Duration, handshake: impl Future<Output = Result<AgentClient, ConnectError>>) -> Duration {
    let started = Instant::now();
    let error = handshake.await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut(after) if after == expected), "{error}");
    started.elapsed()
}

/// A timer of a paused clock is late by at most its resolution.
const RESOLUTION: Duration = Duration::from_millis(1);

//= client.constants-functions.handshake-10-s-default
//= promises.client.time-handshake-unless-caller
#[tokio::test(start_paused = true)]
async fn a_silent_peer_fails_after_10_s_by_default() {
    let ten = Duration::from_secs(10);
    let carrel = Ready { carrel: Some(CarrelReady { generation: 11 }), ..plain_ready() };
    let greeted = greeting(10, &carrel);
    for output in [&[][..], &greeted[..3], &greeted[..8], &greeted[..20], &greeted] {
        let (mut stream, ours) = tokio::io::duplex(64 * 1024);
        stream.write_all(output).await.unwrap();
        let elapsed = timed_out(ten, AgentClient::connect_stream(ours, ConnectOptions::default())).await;
        assert!((ten..=ten + RESOLUTION).contains(&elapsed), "{elapsed:?} after {} bytes", output.len());
    }
}

//= client.constants-functions.handshake-10-s-default
//= promises.client.time-handshake-unless-caller
#[tokio::test(start_paused = true)]
async fn a_caller_sets_a_shorter_or_a_longer_timeout_of_the_handshake() {
    let seconds = Duration::from_secs;
    for timeout in [Duration::from_millis(250), seconds(9), seconds(60), seconds(3 * 3600)] {
        let options = ConnectOptions { timeout, ..ConnectOptions::default() };
        let (_silent, ours) = tokio::io::duplex(1024);
        let elapsed = timed_out(timeout, AgentClient::connect_stream(ours, options)).await;
        assert!((timeout..=timeout + RESOLUTION).contains(&elapsed), "{elapsed:?} instead of {timeout:?}");
        let (_silent, ours) = tokio::io::duplex(1024);
        let elapsed = timed_out(timeout, AgentClient::connect_channel(ours, options)).await;
        assert!((timeout..=timeout + RESOLUTION).contains(&elapsed), "{elapsed:?} instead of {timeout:?}");
    }
    // A peer that needs longer than the default is waited for.
    let (mut stream, ours) = tokio::io::duplex(1024);
    let slow = async {
        tokio::time::sleep(seconds(59)).await;
        stream.write_all(&greeting(10, &plain_ready())).await.unwrap();
    };
    let options = ConnectOptions { timeout: seconds(60), ..ConnectOptions::default() };
    let (client, ()) = tokio::join!(AgentClient::connect_stream(ours, options), slow);
    client.unwrap();
}

//= client.constants-functions.connecting-fails-typed-error
#[tokio::test]
async fn a_peer_without_a_valid_ready_is_rejected() {
    let range = PrologueFormat::Current.prologue(PrologueFormat::Current.range(0).unwrap());
    let failed = CoreError {
        kind: CoreErrorKind::InitializationFailed,
        message: "no such user".into(),
        offending_type: None,
        init_failure: None,
        workload_failure: None,
    };
    let mut failing = range.clone();
    carrel_agent_client::protocol::codec::encode(&mut failing, Generation::PUBLISHED, 0, &failed).unwrap();
    let mut pong = range.clone();
    carrel_agent_client::protocol::codec::encode(&mut pong, Generation::PUBLISHED, 0, &Pong {}).unwrap();
    let refusal = async |bytes: &[u8]| connect_to(bytes, ConnectOptions::default()).await.0.unwrap_err();

    let error = refusal(&failing).await;
    assert!(matches!(&error, ConnectError::InitializationFailed(why) if why == "no such user"), "{error}");
    assert!(matches!(refusal(&pong).await, ConnectError::NotReady(_)));
    assert!(matches!(
        refusal(&[range.clone(), b"\0\0\0\x08\0\0\0\0\0abc".to_vec()].concat()).await,
        ConnectError::NotReady(_)
    ));
    assert!(matches!(refusal(&[0, 0, 0, 9, 0, 0, 0, 4]).await, ConnectError::EmptyCorrelationIdRange(_)));
    let broken = refusal(&[range, vec![0xff; 9]].concat()).await;
    assert!(matches!(broken, ConnectError::Lost(ConnectionLost::Broken(_))), "{broken}");
}

//= client.constants-functions.connecting-fails-typed-error
#[tokio::test]
async fn a_peer_that_disconnects_is_reported_immediately() {
    let (stream, ours) = tokio::io::duplex(64);
    drop(stream);
    let error = AgentClient::connect_stream(ours, ConnectOptions::default()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Lost(ConnectionLost::Ended)), "{error}");
}
