//! Many subscribers, most of them idle.

use carrel_api::agbox::v1::EventType;

use crate::world::{World, exec, ready, subscribe, until};

//= promises.control-plane.subscribers
#[tokio::test]
async fn a_thousand_subscribers_of_one_connection_hear_of_the_same_event() {
    let world = World::new().await;
    let mut client = world.client().await;
    let from = ready(&mut client, "demo").await;
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.push(client.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner());
    }
    // They cost nothing but their streams: others are answered beside them.
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    for events in &mut streams {
        assert_eq!(until(events, EventType::ExecStarted).await.sequence, from + 1);
    }
}

#[tokio::test]
async fn many_connections_with_a_subscriber_each_are_served() {
    let world = World::new().await;
    let mut client = world.client().await;
    let from = ready(&mut client, "demo").await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut own = world.client().await;
        streams.push(own.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner());
    }
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    for events in &mut streams {
        assert_eq!(until(events, EventType::ExecStarted).await.sequence, from + 1);
    }
}
