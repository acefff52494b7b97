//! Version skew in both directions at every generation: only the newer feature fails, with an error that names it.

use carrel_agent_client::protocol::payload::TreeGlob;
use carrel_agent_client::{AgentClient, AgentClientError, ConnectError, ConnectOptions, Generation, MessageType};
use carrel_tests::{Agentd, run, shell};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Checks that a feature works from its generation on, and is refused with its name below.
fn expect<T>(outcome: Result<T, AgentClientError>, feature: MessageType, agreed: Generation) {
    let required = feature.min_protocol_version();
    match outcome {
        Ok(_) => assert!(agreed >= required, "{feature} worked at {agreed}, but needs {required}"),
        Err(AgentClientError::Unsupported(refused)) => {
            assert!(agreed < required, "{feature} was refused at {agreed}: {refused}");
            assert_eq!((refused.feature, refused.required, refused.negotiated), (feature, required, agreed));
            assert!(refused.to_string().contains("restart the sandbox"), "{refused}");
        }
        Err(error) => panic!("{feature} at {agreed}: {error}"),
    }
}

async fn all_features(agentd: &Agentd, client: &AgentClient, agreed: Generation) {
    for feature in MessageType::ALL {
        assert_eq!(client.supports(feature), feature.is_available_at(agreed), "{feature} at {agreed}");
        assert_eq!(client.ensure_version_compat(feature).is_ok(), client.supports(feature));
    }
    let output = client.run(shell("cat; echo err >&2; exit 3"), "in").await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..], output.code), (&b"in"[..], &b"err\n"[..], 3));

    expect(client.ping().await, MessageType::Ping, agreed);
    expect(client.touch().await, MessageType::Touch, agreed);

    let path = agentd.path("file");
    let content: Vec<u8> = (0..1_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    expect(client.files().write_all(&path, content.clone()).await, MessageType::FsRequest, agreed);
    if client.supports(MessageType::FsRequest) {
        assert_eq!(client.files().read_to_end(&path).await.unwrap(), content);
    }

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    if client.supports(MessageType::TcpConnect) {
        let echo = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            socket.read_to_end(&mut received).await.unwrap();
            socket.write_all(&received).await.unwrap();
        });
        let mut tcp = client.tcp("127.0.0.1", port).await.unwrap();
        tcp.write("over and out").await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut echoed = Vec::new();
        while let Some(piece) = tcp.read().await.unwrap() {
            echoed.extend_from_slice(&piece);
        }
        assert_eq!(echoed, b"over and out");
        echo.await.unwrap();
    } else {
        expect(client.tcp("127.0.0.1", port).await, MessageType::TcpConnect, agreed);
    }

    let glob =
        TreeGlob { root: agentd.dir.path().to_str().unwrap().into(), pattern: "*".into(), hidden: false, limit: 0 };
    expect(client.tree().glob(glob).await, MessageType::CarrelFsRequest, agreed);

    // After every refusal the connection still works.
    assert_eq!(client.run(shell("echo on"), "").await.unwrap().stdout, b"on\n");
}

//= versioning.number-agreed-upon-once.upgraded-host-talks-old
//= versioning.number-agreed-upon-once.new-feature-fails-rest
//= versioning.number-agreed-upon-once.old-runtime-never-understand
//= versioning.three-kinds-change.host-checks-agreed-generation
//= versioning.rules-never-broken.5-host-checks-agreed
//= versioning.implementation-details.both-directions-share-available
//= client.streams-types.typed-convenience-built-top
//= promises.client.fails-older-agent
#[test]
fn a_newer_client_adapts_to_every_older_agent() {
    run(async {
        for generation in Generation::all() {
            let agentd = Agentd::of_generation(generation);
            let client = agentd.client().await;
            assert_eq!(client.generation(), generation);
            all_features(&agentd, &client, generation).await;
        }
    });
}

//= versioning.number-agreed-upon-once.old-host-talks-newer
//= promises.client.fails-older-agent
#[test]
fn an_older_client_is_served_by_a_newer_agent() {
    run(async {
        let agentd = Agentd::start();
        for generation in Generation::all() {
            let client = agentd.client_of(generation).await;
            assert_eq!(client.generation(), generation);
            all_features(&agentd, &client, generation).await;
        }
    });
}

//= versioning.number-agreed-upon-once.settle-lower-two-use
//= versioning.rules-never-broken.1-version-number-agreed
//= versioning.three-kinds-change.connection-refused-peer-older
//= promises.client.pairs-generations-agree-lower
#[test]
fn two_peers_agree_on_the_lower_generation() {
    run(async {
        for agents in Generation::all() {
            let agentd = Agentd::of_generation(agents);
            for clients in Generation::all() {
                let client = agentd.client_of(clients).await;
                assert_eq!(client.generation(), agents.min(clients), "agent {agents}, client {clients}");
                assert_eq!(client.run(shell("exit 5"), "").await.unwrap().code, 5);
            }
        }
    });
}

//= versioning.three-kinds-change.connection-refused-peer-older
//= versioning.three-kinds-change.refusal-upfront-says
#[test]
fn an_agent_below_the_horizon_is_refused_at_connect_with_a_hint() {
    run(async {
        let agentd = Agentd::of_generation(Generation::new(4));
        let options = ConnectOptions { min_generation: Generation::new(5), ..ConnectOptions::default() };
        let refused = AgentClient::connect_with(agentd.socket(), options).await.unwrap_err();
        assert!(matches!(refused, ConnectError::BelowHorizon { .. }), "{refused}");
        assert!(refused.to_string().contains("restart the sandbox"), "{refused}");
    });
}
