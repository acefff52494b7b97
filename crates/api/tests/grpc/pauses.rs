//! Pauses are sent by `carrel.v1` only, since clients of `agbox.v1` would fail on them.

use std::time::Duration;

use carrel_api::agbox::v1::{EventType, StopSandboxRequest, SubscribeSandboxEventsRequest};
use carrel_api::carrel::v1::{
    PauseChange, StartExecRequest, WatchSandboxRequest, WatchSandboxResponse, WatchSandboxesRequest,
};
use carrel_control::provider::DiskSpace;
use tonic::{Code, Streaming};

use crate::server::{GrpcTestServer, WATCHDOG, exec, is_refused, next, ready, subscribe};

const LOW: &str = "host disk low: 1 GiB free, 2 GiB reserved";

async fn next_response(events: &mut Streaming<WatchSandboxResponse>) -> WatchSandboxResponse {
    tokio::time::timeout(WATCHDOG, events.message()).await.unwrap().unwrap().unwrap()
}

//= control.versions.agbox-v1-baseline-numbers
//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn pauses_are_sent_by_carrel_v1_and_not_by_agbox_v1() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let newest = ready(&mut client, "demo").await;
    let mut api = server.carrel_v1().await;
    let request = WatchSandboxRequest { sandbox_id: "demo".to_owned(), from_sequence: newest };
    let mut events = api.watch_sandbox(request).await.unwrap().into_inner();
    server.fake.pause_for_disk("demo", Some(LOW));
    let paused = next_response(&mut events).await;
    assert_eq!(paused.event, None);
    let PauseChange { sandbox_id, sequence, occurred_at, paused, reason, message } = paused.pause.unwrap();
    assert_eq!((sandbox_id.as_str(), sequence, paused), ("demo", newest + 1, true));
    assert_eq!((reason.as_str(), message.as_str(), occurred_at.is_some()), ("host_disk", LOW, true));

    // `agbox.v1` accepts the sequence of the pause, and continues after it.
    let handle = client.get_sandbox(carrel_api::agbox::v1::GetSandboxRequest { sandbox_id }).await.unwrap();
    assert_eq!(handle.into_inner().sandbox.unwrap().last_event_sequence, newest + 1);
    let mut late = client.subscribe_sandbox_events(subscribe("demo", newest + 1)).await.unwrap().into_inner();
    let request = SubscribeSandboxEventsRequest { include_current_snapshot: true, ..subscribe("demo", newest + 1) };
    let mut snapshot = client.subscribe_sandbox_events(request).await.unwrap().into_inner();
    let shown = next(&mut snapshot).await;
    assert_eq!((shown.event_type(), shown.sequence, shown.snapshot), (EventType::SandboxReady, newest, true));
    server.fake.pause_for_disk("demo", None);
    let unpaused = next_response(&mut events).await.pause.unwrap();
    assert_eq!((unpaused.sequence, unpaused.paused, unpaused.reason.as_str()), (newest + 2, false, ""));
    client.stop_sandbox(StopSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    for events in [&mut late, &mut snapshot] {
        let event = next(events).await;
        assert_eq!((event.event_type(), event.sequence), (EventType::SandboxStopRequested, newest + 3));
    }
    assert_eq!(next_response(&mut events).await.event.unwrap().sequence, newest + 3);

    // The watch of all sandboxes contains them too.
    let request = WatchSandboxesRequest { from_position: Some(0), ..WatchSandboxesRequest::default() };
    let mut all = api.watch_sandboxes(request).await.unwrap().into_inner();
    let mut pauses = 0;
    while pauses < 2 {
        let response = tokio::time::timeout(Duration::from_secs(60), all.message()).await.unwrap().unwrap().unwrap();
        assert_ne!(response.event.is_some(), response.pause.is_some());
        pauses += usize::from(response.pause.is_some());
    }
}

//= promises.control-plane.sandbox-paused-since-host
#[tokio::test]
async fn an_exec_in_a_paused_sandbox_is_refused_with_a_reason_that_the_client_knows() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let newest = ready(&mut client, "demo").await;
    let mut api = server.carrel_v1().await;
    let request = WatchSandboxRequest { sandbox_id: "demo".to_owned(), from_sequence: newest };
    let mut events = api.watch_sandbox(request).await.unwrap().into_inner();
    let summary = "1 GiB free, 2 GiB reserved".to_owned();
    server.fake.set_disk_space(Some(DiskSpace {
        free: 1,
        reserve: 2,
        is_low: true,
        pause_summary: summary.clone(),
        summary,
    }));
    server.fake.pause_for_disk("demo", Some(LOW));
    next_response(&mut events).await;
    let metadata = [("sandbox_id", "demo"), ("paused_by", "host_disk"), ("free", "1"), ("reserve", "2")];
    let published = client.create_exec(exec("demo", "exec-1")).await;
    assert!(published.as_ref().unwrap_err().message().contains(&format!("is paused ({LOW})")));
    is_refused(published, Code::FailedPrecondition, "SANDBOX_NOT_READY", &metadata);
    let request = StartExecRequest {
        sandbox_id: "demo".to_owned(),
        command: vec!["true".to_owned()],
        ..StartExecRequest::default()
    };
    is_refused(api.start_exec(request).await, Code::FailedPrecondition, "SANDBOX_PAUSED", &metadata);
}
