//! Memory limits of requests and responses.

use std::sync::Arc;

use carrel_api::agbox::v1::{CompanionContainerSpec, ListSandboxesRequest, PingRequest};
use carrel_api::{MemoryLimits, ServerOptions};
use carrel_control::ShareLimits;
use tonic::Code;

use crate::server::{GrpcTestServer, WATCHDOG, create, is_refused, pairs, ready, subscribe};

async fn server(memory: MemoryLimits) -> GrpcTestServer {
    GrpcTestServer::with(ServerOptions { memory, ..ServerOptions::default() }, |_, fake| Arc::new(fake)).await
}

fn all(total: u64) -> ShareLimits {
    ShareLimits { total, each: total, reserved: 0 }
}

//= promises.control-plane.requests-under-way
#[tokio::test]
async fn requests_beyond_the_limit_are_refused_and_others_continue() {
    let server = server(MemoryLimits { requests: all(4), ..MemoryLimits::default() }).await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    let mut streams = Vec::new();
    // The last request may not have ended yet.
    while streams.len() < 4 {
        match client.subscribe_sandbox_events(subscribe("demo", 0)).await {
            Ok(stream) => streams.push(stream.into_inner()),
            Err(_) => tokio::task::yield_now().await,
        }
    }
    let refused = client.ping(PingRequest {}).await;
    is_refused(refused, Code::ResourceExhausted, "LIMIT_REACHED", &[("limit", "requests")]);
    for stream in &mut streams {
        assert!(stream.message().await.unwrap().is_some());
    }
    drop(streams.pop());
    let served = async { while client.ping(PingRequest {}).await.is_err() {} };
    tokio::time::timeout(WATCHDOG, served).await.unwrap();
}

//= promises.control-plane.request-memory
#[tokio::test]
async fn a_large_message_without_memory_is_refused_and_a_small_one_is_not() {
    let server = server(MemoryLimits { bytes: all(1 << 20), ..MemoryLimits::default() }).await;
    let mut client = server.client().await;
    let mut large = create("large");
    large.config_yaml = vec![b' '; 2 << 20];
    let limit = [("limit", "request_memory")];
    is_refused(client.create_sandbox(large).await, Code::ResourceExhausted, "LIMIT_REACHED", &limit);
    // A few bytes each, and hundreds of bytes when they are decoded.
    let mut many = create("many");
    many.create_spec.as_mut().unwrap().companion_containers = vec![CompanionContainerSpec::default(); 10_000];
    is_refused(client.create_sandbox(many).await, Code::ResourceExhausted, "LIMIT_REACHED", &limit);
    ready(&mut client, "small").await;
}

#[tokio::test]
async fn a_small_request_is_served_without_memory() {
    let server = server(MemoryLimits { bytes: all(0), ..MemoryLimits::default() }).await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    let listed = client.list_sandboxes(ListSandboxesRequest::default()).await.unwrap().into_inner().sandboxes;
    assert_eq!(listed.len(), 1);
}

//= promises.control-plane.list-whole
#[tokio::test]
async fn a_long_list_is_complete_or_refused() {
    let server = server(MemoryLimits { bytes: all(3 << 20), ..MemoryLimits::default() }).await;
    let mut client = server.client().await;
    let label = "x".repeat(64 << 10);
    let list = ListSandboxesRequest::default;
    for number in 0..40 {
        let mut request = create(&format!("large-{number}"));
        request.create_spec.as_mut().unwrap().labels = pairs(&[("large", &label)]);
        client.create_sandbox(request).await.unwrap();
    }
    let listed = client.list_sandboxes(list()).await.unwrap().into_inner().sandboxes;
    assert!(listed.len() == 40 && listed.iter().all(|one| one.labels["large"] == label));
    for number in 40..50 {
        let mut request = create(&format!("large-{number}"));
        request.create_spec.as_mut().unwrap().labels = pairs(&[("large", &label)]);
        client.create_sandbox(request).await.unwrap();
    }
    let limit = [("limit", "request_memory")];
    is_refused(client.list_sandboxes(list()).await, Code::ResourceExhausted, "LIMIT_REACHED", &limit);
    // Some of them can still be listed.
    let label_selector = pairs(&[("large", "none")]);
    let none = ListSandboxesRequest { label_selector, ..list() };
    assert!(client.list_sandboxes(none).await.unwrap().into_inner().sandboxes.is_empty());
}
