//! Many subscribers, most of them idle.

use carrel_api::agbox::v1::EventType;

use crate::server::{GrpcTestServer, exec, ready, subscribe, until};

//= promises.control-plane.subscribers
#[tokio::test]
async fn a_thousand_subscribers_of_one_connection_receive_an_event() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let from = ready(&mut client, "demo").await;
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.push(client.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner());
    }
    // Other requests are answered meanwhile.
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    for events in &mut streams {
        assert_eq!(until(events, EventType::ExecStarted).await.sequence, from + 1);
    }
}

#[tokio::test]
async fn many_connections_with_a_subscriber_each_are_served() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let from = ready(&mut client, "demo").await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut own = server.client().await;
        streams.push(own.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner());
    }
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    for events in &mut streams {
        assert_eq!(until(events, EventType::ExecStarted).await.sequence, from + 1);
    }
}
