//! Version skew in both directions at every generation: only the newer feature fails, with an error that names it.

mod features;

use carrel_agent_client::{AgentClient, ConnectError, ConnectOptions, Generation};
use carrel_protocol::codec::encode_body;
use carrel_protocol::{Envelope, Flags};
use carrel_tests::{Agentd, run, shell};

use crate::features::all_features;

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
            all_features(&client, &agentd.path(""), generation).await;
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
            all_features(&client, &agentd.path(""), generation).await;
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
                let negotiated = agents.min(clients);
                // The agent's own messages have the generation that it announced, or that a greeting agreed on.
                let answers =
                    if negotiated > Generation::PUBLISHED { negotiated } else { agents.min(Generation::PUBLISHED) };
                let request = encode_body(negotiated, &shell("exit 5")).unwrap();
                let answer = client.request_raw(Flags::SESSION_START, request).await.unwrap();
                assert_eq!(Envelope::parse(&answer.body).unwrap().generation, answers);
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
