//! Services of a sandbox: each is reported once, and does not delay the sandbox.

use carrel_control::spec::DraftService;
use carrel_store::{Event, EventDetails, EventType, SandboxState};

use super::support::{ME, TestDaemon};

fn service(name: &str) -> DraftService {
    DraftService { name: name.to_owned(), image: "host".to_owned(), ..DraftService::default() }
}

fn service_events(events: &[std::sync::Arc<Event>]) -> Vec<(EventType, String, String)> {
    let events = events.iter().filter_map(|event| match &event.details {
        EventDetails::Service { name, error_code, .. } => Some((event.kind, name.clone(), error_code.clone())),
        _ => None,
    });
    let mut events: Vec<_> = events.collect();
    events.sort_by(|one, other| one.1.cmp(&other.1));
    events
}

//= control.events.third-kind-named-service
#[tokio::test]
async fn each_service_is_reported_once_per_start_even_after_a_crash() {
    let mut daemon = TestDaemon::new().await;
    let services = vec![service("database"), service("broken")];
    daemon.try_create("box1", |draft| draft.services = services).await.unwrap();
    let expected = [
        (EventType::ServiceFailed, "broken".to_owned(), "COMPANION_CONTAINER_FAILED".to_owned()),
        (EventType::ServiceReady, "database".to_owned(), String::new()),
    ];
    daemon.until_sequence("box1", 5).await;
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
    assert_eq!(service_events(&daemon.events("box1").await), expected);
    daemon.crash().await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    let before = daemon.events("box1").await;
    assert_eq!(service_events(&before), expected, "the next daemon reports nothing again");
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until_sequence("box1", before.len() as u64 + 4).await;
    assert_eq!(service_events(&daemon.events("box1").await[before.len()..]), expected);
    daemon.check().await;
}
