//! A subscriber that does not read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use carrel_api::ServerOptions;
use carrel_api::agbox::v1::EventType;
use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_control::provider::How;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::server::{GrpcTestServer, end, error_info, exec, next, ready, subscribe, until};

/// The number of execs: their events fill all buffers between the log and a client.
const EXECS: usize = 700;

//= control.subscription.stream-broke-taken-last
//= promises.control-plane.subscriber-read
#[tokio::test]
async fn a_slow_subscriber_is_disconnected_and_does_not_block_others() {
    let tuning = ServerOptions { subscriber_timeout: Duration::from_millis(50), ..ServerOptions::default() };
    let server = GrpcTestServer::with(tuning, |_, fake| Arc::new(fake)).await;
    let mut client = server.client().await;
    let from = ready(&mut client, "demo").await;
    let endpoint = Endpoint::from_shared(format!("unix://{}", server.socket.display())).unwrap();
    let narrow = endpoint.initial_stream_window_size(1024).connect().await.unwrap();
    let mut narrow = SandboxServiceClient::new(narrow);
    let mut slow = narrow.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner();
    let mut quick = client.subscribe_sandbox_events(subscribe("demo", from)).await.unwrap().into_inner();
    let (mut number, began) = (0, Instant::now());
    // Until the buffers are full, and the timeout has certainly expired.
    while number < EXECS || began.elapsed() < tuning.subscriber_timeout * 20 {
        let id = format!("exec-{number}");
        number += 1;
        client.create_exec(exec("demo", &id)).await.unwrap();
        while !server.fake.end_exec(&id, How::Exited(0)) {
            tokio::task::yield_now().await;
        }
        until(&mut quick, EventType::ExecFinished).await;
    }
    // The fast subscriber has received everything. The slow one receives what was buffered, in order, and then an
    // error.
    let mut last = from;
    let status = loop {
        match tokio::time::timeout(crate::server::WATCHDOG, slow.message()).await.unwrap() {
            Ok(Some(event)) => {
                assert_eq!(event.sequence, last + 1);
                last += 1;
            }
            Ok(None) => panic!("the stream ended without an error"),
            Err(status) => break status,
        }
    };
    let (code, reason, about) = error_info(&status);
    assert_eq!((code, reason.as_str()), (Code::ResourceExhausted, "SUBSCRIBER_TOO_SLOW"));
    assert_eq!((about["sandbox_id"].as_str(), about["last_sequence"].as_str()), ("demo", last.to_string().as_str()));
    assert!(last < from + 2 * number as u64);
    // It subscribes again where it was, and misses nothing.
    let mut again = client.subscribe_sandbox_events(subscribe("demo", last)).await.unwrap().into_inner();
    assert_eq!(next(&mut again).await.sequence, last + 1);
    drop(again);
    server.close();
    assert!(end(&mut quick).await.is_err());
}
