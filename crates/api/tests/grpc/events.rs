//! Events: all of them, in order, once, and marked as replayed or new.

use carrel_api::agbox::v1::sandbox_event::Details;
use carrel_api::agbox::v1::{
    CancelExecRequest, CompanionContainerSpec, DeleteSandboxRequest, EventType, ExecState, ResumeSandboxRequest,
    SandboxEvent, SandboxState, StopSandboxRequest, SubscribeSandboxEventsRequest,
};
use carrel_control::fake::FakeCall;
use carrel_control::provider::How;
use tonic::Code;

use crate::server::{Client, GrpcTestServer, create, end, exec, is_refused, next, ready, subscribe, until};

//= control.order.sequence-daemon-gives-source
//= control.events.envelope-id-sequence-sandbox
//= promises.control-plane.events-sandbox
#[tokio::test]
async fn past_events_are_replayed_and_new_ones_follow_without_a_gap() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let newest = ready(&mut client, "demo").await;
    let mut all = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    let mut late = client.subscribe_sandbox_events(subscribe("demo", newest)).await.unwrap().into_inner();
    let mut middle = client.subscribe_sandbox_events(subscribe("demo", 1)).await.unwrap().into_inner();
    for number in 0..200 {
        let id = format!("exec-{number}");
        client.create_exec(exec("demo", &id)).await.unwrap();
        while !server.fake.end_exec(&id, How::Exited(0)) {
            tokio::task::yield_now().await;
        }
    }
    client.stop_sandbox(StopSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    for (events, from) in [(&mut all, 0), (&mut middle, 1), (&mut late, newest)] {
        let mut sequence = from;
        loop {
            let event = next(events).await;
            sequence += 1;
            assert_eq!((event.sequence, event.event_id.as_str()), (sequence, format!("demo-{sequence}").as_str()));
            assert_eq!((event.replay, event.snapshot), (sequence <= newest, false), "event {sequence}");
            assert_ne!(event.sandbox_state(), SandboxState::Unspecified);
            assert!(event.occurred_at.is_some());
            if event.event_type() == EventType::SandboxStopped {
                break;
            }
        }
        assert_eq!(sequence, newest + 402);
    }
}

/// The events of a sandbox from its first one to one of a kind.
async fn events_until(client: &mut Client, id: &str, last: EventType) -> Vec<SandboxEvent> {
    let mut stream = client.subscribe_sandbox_events(subscribe(id, 0)).await.unwrap().into_inner();
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &SandboxEvent| event.event_type() != last) {
        events.push(next(&mut stream).await);
    }
    events
}

/// The kind of details that a type of event has.
fn details_of(kind: EventType) -> &'static str {
    match kind {
        EventType::Unspecified | EventType::SandboxAccepted | EventType::SandboxReady => "none",
        EventType::SandboxPreparing
        | EventType::SandboxFailed
        | EventType::SandboxStopRequested
        | EventType::SandboxStopped
        | EventType::SandboxDeleteRequested
        | EventType::SandboxDeleted => "sandbox_phase",
        EventType::ExecStarted | EventType::ExecFinished | EventType::ExecFailed | EventType::ExecCancelled => "exec",
        EventType::CompanionContainerReady | EventType::CompanionContainerFailed => "service",
    }
}

//= control.events.envelope-id-sequence-sandbox
//= control.events.third-kind-named-service
#[tokio::test]
async fn every_type_of_event_has_its_kind_of_details_and_a_timestamp_in_order() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let mut request = create("demo");
    let service = |name: &str| CompanionContainerSpec {
        name: name.to_owned(),
        image: "host".to_owned(),
        ..CompanionContainerSpec::default()
    };
    request.create_spec.as_mut().unwrap().companion_containers = vec![service("database"), service("broken")];
    server.fake.hold(FakeCall::Start);
    client.create_sandbox(request).await.unwrap();
    let mut all = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    let mut live = client.subscribe_sandbox_events(subscribe("demo", 1)).await.unwrap().into_inner();
    server.fake.release(FakeCall::Start);
    let mut reported = 0;
    while reported < 2 {
        reported += usize::from(details_of(next(&mut live).await.event_type()) == "service");
    }
    for (id, end, kind) in [
        ("exec-1", Some(How::Exited(0)), EventType::ExecFinished),
        ("exec-2", Some(How::Exited(1)), EventType::ExecFailed),
        ("exec-3", None, EventType::ExecCancelled),
    ] {
        client.create_exec(exec("demo", id)).await.unwrap();
        match end {
            Some(how) => {
                while !server.fake.end_exec(id, how.clone()) {
                    tokio::task::yield_now().await;
                }
            }
            None => drop(client.cancel_exec(CancelExecRequest { exec_id: id.to_owned() }).await.unwrap()),
        }
        until(&mut live, kind).await;
    }
    client.stop_sandbox(StopSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    until(&mut live, EventType::SandboxStopped).await;
    client.resume_sandbox(ResumeSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    until(&mut live, EventType::SandboxReady).await;
    client.delete_sandbox(DeleteSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    until(&mut live, EventType::SandboxDeleted).await;
    // What was accepted and prepared before the subscription is replayed, everything else is live; both are the same.
    let replayed = events_until(&mut client, "demo", EventType::SandboxDeleted).await;
    for (number, past) in replayed.into_iter().enumerate() {
        let live = next(&mut all).await;
        assert!(past.replay && (!live.replay || number < 2), "{live:?}");
        assert_eq!(SandboxEvent { replay: true, ..live }, past);
    }
    server.fake.fail(FakeCall::Start, 1);
    client.create_sandbox(create("broken")).await.unwrap();

    let mut seen = std::collections::BTreeSet::new();
    for (id, last) in [("demo", EventType::SandboxDeleted), ("broken", EventType::SandboxFailed)] {
        let mut before = (0, 0);
        for event in events_until(&mut client, id, last).await {
            let kind = event.event_type();
            let details = match &event.details {
                None => "none",
                Some(Details::SandboxPhase(_)) => "sandbox_phase",
                Some(Details::Exec(_)) => "exec",
                Some(Details::Service(_)) => "service",
            };
            assert_eq!(details, details_of(kind), "{event:?}");
            assert_eq!((event.sandbox_id.as_str(), event.event_id), (id, format!("{id}-{}", event.sequence)));
            seen.insert(kind as i32);
            let time = event.occurred_at.map(|time| (time.seconds, time.nanos)).unwrap();
            // The fake provider ends execs by a clock of its own.
            if !matches!(kind, EventType::ExecFinished | EventType::ExecFailed | EventType::ExecCancelled) {
                assert!(time > (0, 0) && time >= before, "{kind:?} at {time:?}, after {before:?}");
                before = time;
            }
        }
    }
    // The types of events are numbered from 1.
    let all: Vec<_> = (1..).take_while(|number| EventType::try_from(*number).is_ok()).collect();
    assert!(all.len() == 14 && seen.iter().eq(&all), "{seen:?} of {all:?}");
}

//= control.snapshot-stream.subscribe-snapshot-step
#[tokio::test]
async fn a_snapshot_starts_with_the_newest_event_and_the_running_execs() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    client.create_exec(exec("demo", "exec-2")).await.unwrap();
    let request = SubscribeSandboxEventsRequest {
        sandbox_id: "demo".to_owned(),
        from_sequence: 0,
        include_current_snapshot: true,
    };
    let mut events = client.subscribe_sandbox_events(request).await.unwrap().into_inner();
    let newest = next(&mut events).await;
    assert_eq!((newest.replay, newest.snapshot, newest.sequence), (true, true, 5));
    assert_eq!((newest.event_type(), newest.event_id.as_str()), (EventType::ExecStarted, "demo-5"));
    for id in ["exec-1", "exec-2"] {
        let running = next(&mut events).await;
        assert_eq!((running.replay, running.snapshot, running.sequence), (true, true, 5));
        assert_eq!(running.event_id, format!("demo-snapshot-{id}"));
        assert_eq!((running.event_type(), running.sandbox_state()), (EventType::ExecStarted, SandboxState::Ready));
        let Some(Details::Exec(details)) = running.details else { panic!("no exec") };
        assert_eq!((details.exec_id.as_str(), details.exec_state()), (id, ExecState::Running));
        assert!(running.occurred_at.is_some());
    }
    for sequence in 1..=5 {
        let event = next(&mut events).await;
        assert_eq!((event.sequence, event.replay, event.snapshot), (sequence, true, false));
    }
}

//= control.subscription.anchor-typed-error
#[tokio::test]
async fn a_future_sequence_is_refused_with_the_oldest_one() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    let newest = ready(&mut client, "demo").await;
    let future = client.subscribe_sandbox_events(subscribe("demo", newest + 1)).await;
    let from = (newest + 1).to_string();
    let about = [("from_sequence", from.as_str()), ("oldest_sequence", "1"), ("sandbox_id", "demo")];
    is_refused(future, Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED", &about);
}

#[tokio::test]
async fn a_stream_outlives_its_sandbox_until_that_is_purged() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    let mut events = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    client.delete_sandbox(DeleteSandboxRequest { sandbox_id: "demo".to_owned() }).await.unwrap();
    until(&mut events, EventType::SandboxDeleted).await;
    let mut late = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    until(&mut late, EventType::SandboxDeleted).await;
    server.purge("demo").await;
    end(&mut events).await.unwrap();
    end(&mut late).await.unwrap();
    let gone = client.subscribe_sandbox_events(subscribe("demo", 0)).await;
    is_refused(gone, Code::NotFound, "SANDBOX_NOT_FOUND", &[("sandbox_id", "demo")]);
}

//= control.subscription.stream-broke-taken-last
//= promises.control-plane.daemon-asked-shut-down
#[tokio::test]
async fn all_streams_end_at_once_on_shutdown() {
    let server = GrpcTestServer::new().await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    let mut events = client.subscribe_sandbox_events(subscribe("demo", 0)).await.unwrap().into_inner();
    until(&mut events, EventType::SandboxReady).await;
    let mut api = server.carrel_v1().await;
    let watched = api.watch_sandboxes(carrel_api::carrel::v1::WatchSandboxesRequest::default());
    let mut watched = watched.await.unwrap().into_inner();
    let channel = carrel_api::connect(&server.socket).await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let mut health = health.watch(tonic_health::pb::HealthCheckRequest::default()).await.unwrap().into_inner();
    health.message().await.unwrap().unwrap();
    server.close();
    is_refused(end(&mut events).await, Code::Unavailable, "DAEMON_STOPPING", &[]);
    is_refused(end(&mut watched).await, Code::Unavailable, "DAEMON_STOPPING", &[]);
    is_refused(end(&mut health).await, Code::Unavailable, "DAEMON_STOPPING", &[]);
    server.served().await;
}
