//! Generation checks: what the agent does not support fails locally and is never sent.

use carrel_agent_client::protocol::Generation;
use carrel_agent_client::protocol::payload::{Ping, Pong, Touch, Touched, TreeGlob};
use carrel_agent_client::{AgentClientError, MessageType, UnsupportedOperation};

use crate::peer::connected;

fn refusal<T: std::fmt::Debug>(result: Result<T, AgentClientError>) -> UnsupportedOperation {
    match result.unwrap_err() {
        AgentClientError::Unsupported(refusal) => refusal,
        other => panic!("{other}"),
    }
}

//= versioning.number-agreed-upon-once.old-runtime-never-understand
//= versioning.three-kinds-change.too-old-clear-error
//= versioning.rules-never-broken.5-host-checks-agreed
//= versioning.implementation-details.typed-send-checks-rejects
//= versioning.implementation-details.error-advises-restarting-sandbox
//= versioning.tests-names.too-new-type-rejected
//= versioning.three-kinds-change.host-checks-agreed-generation
#[tokio::test]
async fn an_operation_the_agent_does_not_support_fails_locally_and_nothing_is_sent() {
    let (client, mut peer) = connected(1).await;
    let glob = TreeGlob { root: "/".into(), pattern: "*".into(), hidden: false, limit: 0 };
    for (refused, feature, required) in [
        (refusal(client.ping().await), MessageType::Ping, 6),
        (refusal(client.touch().await), MessageType::Touch, 6),
        (refusal(client.files().stat("/").await), MessageType::FsRequest, 2),
        (refusal(client.files().read_to_end("/x").await), MessageType::FsRequest, 2),
        (refusal(client.tcp("localhost", 80).await), MessageType::TcpConnect, 4),
        (refusal(client.tree().glob(glob).await), MessageType::CarrelFsRequest, 11),
    ] {
        let expected =
            UnsupportedOperation { feature, required: Generation::new(required), negotiated: Generation::LEGACY };
        assert_eq!(refused, expected);
        assert!(refused.to_string().contains("restart the sandbox"), "{refused}");
    }
    client.close();
    peer.expect_end().await;
}

//= versioning.number-agreed-upon-once.new-feature-fails-rest
//= versioning.number-agreed-upon-once.settle-lower-two-use
//= versioning.number-agreed-upon-once.version-message-generation-second
#[tokio::test]
async fn only_the_unsupported_operation_fails_and_the_connection_continues() {
    for generation in 6..=10 {
        let (client, mut peer) = connected(generation).await;
        let agent = async {
            let (id, _) = peer.expect::<Ping>().await;
            peer.send(id, &Pong {}).await;
            let (id, _) = peer.expect::<Touch>().await;
            peer.send(id, &Touched { activity_seq: 41 }).await;
        };
        let calls = async {
            client.ping().await.unwrap();
            let glob = TreeGlob { root: "/".into(), pattern: "*".into(), hidden: false, limit: 0 };
            refusal(client.tree().glob(glob).await);
            assert_eq!(client.touch().await.unwrap(), 41);
        };
        tokio::join!(agent, calls);
    }
}

//= versioning.three-kinds-change.host-checks-agreed-generation
//= versioning.implementation-details.supports-ensure-version-compat
#[tokio::test]
async fn the_predicate_and_the_send_check_agree_for_every_type_and_generation() {
    for generation in 1..=10 {
        let (client, _peer) = connected(generation).await;
        for feature in MessageType::ALL {
            let expected = feature.min_protocol_version().get() <= generation;
            assert_eq!(client.supports(feature), expected, "{feature} at {generation}");
            assert_eq!(client.ensure_version_compat(feature).is_ok(), expected);
        }
    }
}
