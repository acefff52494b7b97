//! Sandboxes from their beginning to their end, over machines in memory and a real store.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod admission;
mod crashes;
mod disk;
mod execs;
mod history;
mod pause;
mod reload;
mod restart;
mod services;
mod support;
mod time;

use carrel_control::fake::Call;
use carrel_control::provider::EndCause;
use carrel_control::{Caller, Code, ExecRequest};
use carrel_store::EventType as Event;
use carrel_store::{Details, SandboxState};

use self::support::{ME, World, kinds};

//= control.accepted-completed.slow-operations-return-after
#[tokio::test]
async fn a_create_is_accepted_at_once_and_told_in_order() {
    let world = World::new().await;
    world.provider.hold(Call::Start);
    let accepted = world.create("box1").await;
    assert_eq!((accepted.state, accepted.last_sequence), (SandboxState::Pending, 1));
    world.provider.release(Call::Start);
    let ready = world.until("box1", SandboxState::Ready).await;
    assert_eq!(ready.created_at, accepted.created_at);
    let events = world.events("box1").await;
    assert_eq!(kinds(&events), [Event::SandboxAccepted, Event::SandboxPreparing, Event::SandboxReady]);
    assert_eq!(events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(&events[1].details, Details::Phase { phase, .. } if phase == "materialize"));
    assert_eq!(world.provider.running(), ["box1"]);
}

//= promises.control-plane.delete-during-create
#[tokio::test]
async fn a_delete_during_a_create_really_deletes() {
    let world = World::new().await;
    world.provider.hold(Call::Start);
    world.create("box1").await;
    world.control.delete(&ME, "box1").await.unwrap();
    world.control.delete(&ME, "box1").await.unwrap();
    // Nobody waits for a start that takes its time.
    world.until("box1", SandboxState::Deleted).await;
    world.provider.release(Call::Start);
    world.control.delete(&ME, "box1").await.unwrap();
    let expected =
        [Event::SandboxAccepted, Event::SandboxPreparing, Event::SandboxDeleteRequested, Event::SandboxDeleted];
    assert_eq!(kinds(&world.events("box1").await), expected);
    assert_eq!(world.provider.left(), (0, 0));
}

//= control.accepted-completed.slow-operations-return-after
//= promises.control-plane.stops-once
#[tokio::test]
async fn concurrent_stops_give_one_pair_of_events_and_no_exec_begins_meanwhile() {
    let world = World::ready("box1").await;
    world.provider.hold(Call::Stop);
    for stop in (0..10).map(|_| world.control.stop(&ME, "box1")) {
        stop.await.unwrap();
    }
    let refusal = world.exec("box1", "exec1").await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "SANDBOX_NOT_READY"));
    world.provider.release(Call::Stop);
    world.until("box1", SandboxState::Stopped).await;
    let events = world.events("box1").await;
    assert_eq!(kinds(&events)[3..], [Event::SandboxStopRequested, Event::SandboxStopped]);
    assert!(
        events[3..]
            .iter()
            .all(|event| { matches!(&event.details, Details::Phase { reason, .. } if reason == "stop_requested") })
    );
    assert_eq!(events[3].state, SandboxState::Ready, "there is no state for it");
    assert_eq!(world.control.stop(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
}

#[tokio::test]
async fn what_is_stopped_is_resumed_with_its_disk() {
    let world = World::ready("box1").await;
    assert_eq!(world.control.resume(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
    let first = world.control.get(&ME, "box1").unwrap();
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    assert_eq!(world.provider.running(), [""; 0]);
    world.control.resume(&ME, "box1").await.unwrap();
    let second = world.until("box1", SandboxState::Ready).await;
    assert_eq!(second.disk, first.disk);
    assert_ne!(second.incarnation, first.incarnation);
    assert_eq!(kinds(&world.events("box1").await)[5..], [Event::SandboxAccepted, Event::SandboxReady]);
}

#[tokio::test]
async fn a_failure_is_told_with_its_word_and_can_only_be_deleted() {
    let world = World::new().await;
    world.provider.fail(Call::Start, 1);
    world.create("box1").await;
    let failed = world.until("box1", SandboxState::Failed).await;
    assert_eq!((failed.error_code.as_str(), failed.error_message.as_str()), ("SANDBOX_CREATE_FAILED", "Start fails"));
    assert_eq!(world.control.resume(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
    assert_eq!(world.control.stop(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
    world.provider.fail(Call::Remove, 1);
    world.control.delete(&ME, "box1").await.unwrap();
    assert_eq!(world.until("box1", SandboxState::Failed).await.error_code, "SANDBOX_DELETE_FAILED");
    world.control.delete(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Deleted).await;
    assert_eq!(world.provider.left(), (0, 0));
}

#[tokio::test]
async fn one_that_exits_by_itself_is_stopped_with_the_reason_and_can_be_resumed() {
    for (cause, reason, code) in [
        (EndCause::Stopped, "shut_down", ""),
        (EndCause::GuestExited, "guest_exited", "CONTAINER_NOT_RUNNING"),
        (EndCause::OutOfMemory, "out_of_memory", "CONTAINER_OOM"),
        (EndCause::Misbehaved, "misbehaved", "CONTAINER_NOT_RUNNING"),
        (EndCause::SupervisorLost, "supervisor_lost", "CONTAINER_NOT_RUNNING"),
        (EndCause::HostShutdown, "host_shutdown", ""),
        (EndCause::HostRestarted, "host_restarted", "CONTAINER_NOT_RUNNING"),
    ] {
        let world = World::ready("box1").await;
        world.exec("box1", "exec1").await.unwrap();
        world.until_running("exec1").await;
        assert!(world.provider.kill("box1", cause));
        let stopped = world.until("box1", SandboxState::Stopped).await;
        assert_eq!((stopped.reason.as_str(), stopped.error_code.as_str()), (reason, code));
        let events = world.events("box1").await;
        assert_eq!(kinds(&events)[4..], [Event::SandboxStopRequested, Event::ExecFailed, Event::SandboxStopped]);
        assert_eq!(world.control.exec(&ME, "exec1").await.unwrap().0.exit_code, 137);
        for index in [4, 6] {
            assert!(matches!(&events[index].details, Details::Phase { reason: told, .. } if told == reason));
        }
        assert!(matches!(&events[6].details, Details::Phase { error_code, .. } if error_code == code));
        world.control.resume(&ME, "box1").await.unwrap();
        let ready = world.until("box1", SandboxState::Ready).await;
        assert_eq!((ready.disk.as_str(), ready.error_code.as_str()), (stopped.disk.as_str(), ""));
        world.check().await;
    }
}

#[tokio::test]
async fn one_that_exits_without_a_disk_has_failed_and_no_resume_makes_another_disk() {
    let world = World::ready("box1").await;
    world.provider.lose_disks();
    assert!(world.provider.kill("box1", EndCause::SupervisorLost));
    let failed = world.until("box1", SandboxState::Failed).await;
    assert_eq!(failed.error_code, "CONTAINER_NOT_RUNNING");
    assert_eq!(failed.error_message, "killed; its disk is missing");
    world.control.resume(&ME, "box1").await.unwrap();
    let failed = world.until("box1", SandboxState::Failed).await;
    assert_eq!(
        (failed.error_code.as_str(), failed.error_message.as_str()),
        ("SANDBOX_RESUME_FAILED", "its disk is missing")
    );
    assert_eq!(world.provider.left().1, 0);
    world.check().await;
}

#[tokio::test]
async fn a_resume_that_failed_can_be_retried() {
    let world = World::ready("box1").await;
    world.control.stop(&ME, "box1").await.unwrap();
    let stopped = world.until("box1", SandboxState::Stopped).await;
    world.provider.fail(Call::Start, 1);
    world.control.resume(&ME, "box1").await.unwrap();
    assert_eq!(world.until("box1", SandboxState::Failed).await.error_code, "SANDBOX_RESUME_FAILED");
    world.control.resume(&ME, "box1").await.unwrap();
    let ready = world.until("box1", SandboxState::Ready).await;
    assert_eq!((ready.disk.as_str(), ready.error_code.as_str()), (stopped.disk.as_str(), ""));
    let expected = [Event::SandboxAccepted, Event::SandboxFailed, Event::SandboxAccepted, Event::SandboxReady];
    assert_eq!(kinds(&world.events("box1").await)[5..], expected);
    world.check().await;
}

#[tokio::test]
async fn an_id_is_used_once() {
    let world = World::ready("box1").await;
    world.control.delete(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Deleted).await;
    let refusal = world.try_create("box1", |_| {}).await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::AlreadyExists, "SANDBOX_ID_ALREADY_EXISTS"));
    assert_eq!(refusal.metadata["sandbox_id"], "box1");
    let generated = world.control.create(&ME, support::request(None, |_| {})).await.unwrap();
    assert_eq!(generated.id.as_str().len(), 36);
}

#[tokio::test]
async fn another_user_sees_nothing_and_gets_nothing() {
    let world = World::ready("box1").await;
    world.exec("box1", "exec1").await.unwrap();
    let other = Caller { user: 1234, group: 1234, trusted: false };
    let unknown = |refusal: carrel_control::Refusal| assert_eq!(refusal.code, Code::NotFound, "{refusal}");
    unknown(world.control.get(&other, "box1").unwrap_err());
    unknown(world.control.stop(&other, "box1").await.unwrap_err());
    unknown(world.control.delete(&other, "box1").await.unwrap_err());
    unknown(world.control.exec(&other, "exec1").await.unwrap_err());
    unknown(world.control.cancel_exec(&other, "exec1").await.unwrap_err());
    unknown(world.control.events(&other, "box1", 0).map(drop).unwrap_err());
    assert!(world.control.list(&other, true, &carrel_store::Pairs::new()).is_empty());
    assert!(world.control.active_execs(&other, None).unwrap().is_empty());
    // The daemon's own user sees all; each sees what is theirs.
    let root = Caller { user: 0, group: 0, trusted: true };
    world.control.get(&root, "box1").unwrap();
    let own = Caller { user: ME.user, group: ME.group, trusted: false };
    world.control.get(&own, "box1").unwrap();
}

//= promises.control-plane.ids-caller-chooses
#[tokio::test]
async fn an_id_that_somebody_else_uses_is_free() {
    let world = World::ready("box1").await;
    world.exec("box1", "exec1").await.unwrap();
    let others = [Caller { user: 1234, group: 1234, trusted: false }, Caller::KEY];
    for (other, stored) in others.iter().zip(["u1234~box1", "key~box1"]) {
        // The daemon's own user alone may have what is on the host.
        let request = || support::request(Some("box1"), |draft| "registry.example/image".clone_into(&mut draft.image));
        let theirs = world.control.create(other, request()).await.unwrap();
        assert_eq!((theirs.id.as_str(), theirs.id.seen_from(other.namespace())), (stored, "box1"));
        world.until(stored, SandboxState::Ready).await;
        assert_eq!(world.control.get(other, "box1").unwrap().id, theirs.id);
        let again = world.control.create(other, request()).await.unwrap_err();
        assert_eq!((again.code, again.metadata["sandbox_id"].as_str()), (Code::AlreadyExists, "box1"));
        let request = ExecRequest {
            id: Some("exec1".into()),
            sandbox: "box1".into(),
            command: vec!["true".into()],
            ..ExecRequest::default()
        };
        let exec = world.control.create_exec(other, request.clone()).await.unwrap();
        assert_eq!((exec.sandbox.as_str(), exec.id.seen_from(other.namespace())), (stored, "exec1"));
        let again = world.control.create_exec(other, request).await.unwrap_err();
        assert_eq!((again.code, again.metadata["exec_id"].as_str()), (Code::AlreadyExists, "exec1"));
        assert_eq!(world.control.exec(other, "exec1").await.unwrap().0.id, exec.id);
        let refusal = world.control.resume(other, "box1").await.unwrap_err();
        assert_eq!((refusal.metadata["sandbox_id"].as_str(), refusal.message.contains('~')), ("box1", false));
    }
    assert_eq!(world.control.exec(&ME, "exec1").await.unwrap().0.sandbox.as_str(), "box1");
}

//= promises.control-plane.ids-caller-chooses
#[tokio::test]
async fn what_was_there_before_namespaces_keeps_its_id() {
    let world = World::ready("box1").await;
    world.exec("box1", "exec1").await.unwrap();
    // Its owner is no longer the daemon's own user.
    let owner = Caller { user: ME.user, group: ME.group, trusted: false };
    assert_eq!(world.control.exec(&owner, "exec1").await.unwrap().0.sandbox.as_str(), "box1");
    let request = support::request(Some("box1"), |draft| "registry.example/image".clone_into(&mut draft.image));
    let refusal = world.control.create(&owner, request).await.unwrap_err();
    assert_eq!(refusal.code, Code::AlreadyExists);
    world.control.delete(&owner, "box1").await.unwrap();
    world.until("box1", SandboxState::Deleted).await;
}

#[tokio::test]
async fn all_with_a_label_are_deleted_and_named() {
    let world = World::new().await;
    for (id, team) in [("box1", "red"), ("box2", "blue"), ("box3", "red")] {
        world.try_create(id, |draft| drop(draft.labels.insert("team".into(), team.into()))).await.unwrap();
        world.until(id, SandboxState::Ready).await;
    }
    let selector = [("team".to_owned(), "red".to_owned())].into();
    let deleted = world.control.delete_matching(&ME, &selector).await.unwrap();
    assert_eq!(deleted.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["box1", "box3"]);
    world.until("box3", SandboxState::Deleted).await;
    world.until("box1", SandboxState::Deleted).await;
    assert_eq!(world.control.delete_matching(&ME, &selector).await.unwrap(), []);
    let refusal = world.control.delete_matching(&ME, &carrel_store::Pairs::new()).await.unwrap_err();
    assert_eq!((refusal.code, refusal.metadata["field"].as_str()), (Code::InvalidArgument, "label_selector"));
    assert_eq!(world.provider.running(), ["box2"]);
}

#[tokio::test]
async fn a_place_that_is_not_there_yet_is_refused_with_the_oldest() {
    let world = World::ready("box1").await;
    let refusal = world.control.events(&ME, "box1", 4).map(drop).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED"));
    assert_eq!((refusal.metadata["from_sequence"].as_str(), refusal.metadata["oldest_sequence"].as_str()), ("4", "1"));
    assert!(world.control.events(&ME, "box1", 3).is_ok());
}
