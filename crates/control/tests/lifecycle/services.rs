//! Services beside a sandbox: told once each, and never in its way.

use carrel_control::spec::DraftService;
use carrel_store::{Details, Event, EventType, SandboxState};

use super::support::{ME, World};

fn service(name: &str) -> DraftService {
    DraftService { name: name.to_owned(), image: "host".to_owned(), ..DraftService::default() }
}

fn told(events: &[std::sync::Arc<Event>]) -> Vec<(EventType, String, String)> {
    let told = events.iter().filter_map(|event| match &event.details {
        Details::Service { name, error_code, .. } => Some((event.kind, name.clone(), error_code.clone())),
        _ => None,
    });
    let mut told: Vec<_> = told.collect();
    told.sort_by(|one, other| one.1.cmp(&other.1));
    told
}

//= control.events.third-kind-named-service
#[tokio::test]
async fn each_is_told_once_in_each_start_whatever_happens_to_the_daemon() {
    let mut world = World::new().await;
    let services = vec![service("database"), service("broken")];
    world.try_create("box1", |draft| draft.services = services).await.unwrap();
    let expected = [
        (EventType::ServiceFailed, "broken".to_owned(), "COMPANION_CONTAINER_FAILED".to_owned()),
        (EventType::ServiceReady, "database".to_owned(), String::new()),
    ];
    world.until_sequence("box1", 5).await;
    assert_eq!(world.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
    assert_eq!(told(&world.events("box1").await), expected);
    world.crash().await;
    world.exec("box1", "exec1").await.unwrap();
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    let before = world.events("box1").await;
    assert_eq!(told(&before), expected, "the next daemon tells nothing again");
    world.control.resume(&ME, "box1").await.unwrap();
    world.until_sequence("box1", before.len() as u64 + 4).await;
    assert_eq!(told(&world.events("box1").await[before.len()..]), expected);
    world.check().await;
}
