//! The lifecycle of sandboxes, with a fake provider and a real store.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

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

use carrel_control::fake::FakeCall;
use carrel_control::provider::EndCause;
use carrel_control::{Caller, Code, ExecRequest};
use carrel_store::EventType as Event;
use carrel_store::{EventDetails, SandboxState};

use self::support::{ME, TestDaemon, kinds};

//= control.accepted-completed.slow-operations-return-after
#[tokio::test]
async fn a_create_is_accepted_at_once_and_its_events_are_in_order() {
    let daemon = TestDaemon::new().await;
    daemon.provider.hold(FakeCall::Start);
    let accepted = daemon.create("box1").await;
    assert_eq!((accepted.state, accepted.last_sequence), (SandboxState::Pending, 1));
    daemon.provider.release(FakeCall::Start);
    let ready = daemon.until("box1", SandboxState::Ready).await;
    assert_eq!(ready.created_at, accepted.created_at);
    let events = daemon.events("box1").await;
    assert_eq!(kinds(&events), [Event::SandboxAccepted, Event::SandboxPreparing, Event::SandboxReady]);
    assert_eq!(events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(&events[1].details, EventDetails::Phase { phase, .. } if phase == "materialize"));
    assert_eq!(daemon.provider.running(), ["box1"]);
}

//= promises.control-plane.delete-during-create
#[tokio::test]
async fn a_delete_during_a_create_really_deletes() {
    let daemon = TestDaemon::new().await;
    daemon.provider.hold(FakeCall::Start);
    daemon.create("box1").await;
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.control.delete(&ME, "box1").await.unwrap();
    // The deletion does not wait for the start.
    daemon.until("box1", SandboxState::Deleted).await;
    daemon.provider.release(FakeCall::Start);
    daemon.control.delete(&ME, "box1").await.unwrap();
    let expected =
        [Event::SandboxAccepted, Event::SandboxPreparing, Event::SandboxDeleteRequested, Event::SandboxDeleted];
    assert_eq!(kinds(&daemon.events("box1").await), expected);
    assert_eq!(daemon.provider.remaining(), (0, 0));
}

//= control.accepted-completed.slow-operations-return-after
//= promises.control-plane.stops-once
#[tokio::test]
async fn concurrent_stops_emit_one_pair_of_events_and_no_exec_starts_meanwhile() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.hold(FakeCall::Stop);
    for stop in (0..10).map(|_| daemon.control.stop(&ME, "box1")) {
        stop.await.unwrap();
    }
    let refusal = daemon.exec("box1", "exec1").await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "SANDBOX_NOT_READY"));
    daemon.provider.release(FakeCall::Stop);
    daemon.until("box1", SandboxState::Stopped).await;
    let events = daemon.events("box1").await;
    assert_eq!(kinds(&events)[3..], [Event::SandboxStopRequested, Event::SandboxStopped]);
    assert!(
        events[3..].iter().all(|event| {
            matches!(&event.details, EventDetails::Phase { reason, .. } if reason == "stop_requested")
        })
    );
    assert_eq!(events[3].state, SandboxState::Ready, "there is no state for stopping");
    assert_eq!(daemon.control.stop(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
}

#[tokio::test]
async fn a_stopped_sandbox_is_resumed_with_its_disk() {
    let daemon = TestDaemon::ready("box1").await;
    assert_eq!(daemon.control.resume(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
    let first = daemon.control.get(&ME, "box1").unwrap();
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    assert_eq!(daemon.provider.running(), [""; 0]);
    daemon.control.resume(&ME, "box1").await.unwrap();
    let second = daemon.until("box1", SandboxState::Ready).await;
    assert_eq!(second.disk, first.disk);
    assert_ne!(second.incarnation, first.incarnation);
    assert_eq!(kinds(&daemon.events("box1").await)[5..], [Event::SandboxAccepted, Event::SandboxReady]);
}

#[tokio::test]
async fn a_failed_create_has_an_error_code_and_can_only_be_deleted() {
    let daemon = TestDaemon::new().await;
    daemon.provider.fail(FakeCall::Start, 1);
    daemon.create("box1").await;
    let failed = daemon.until("box1", SandboxState::Failed).await;
    assert_eq!((failed.error_code.as_str(), failed.error_message.as_str()), ("SANDBOX_CREATE_FAILED", "Start fails"));
    assert_eq!(daemon.control.resume(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
    assert_eq!(daemon.control.stop(&ME, "box1").await.unwrap_err().reason, "SANDBOX_INVALID_STATE");
    daemon.provider.fail(FakeCall::Remove, 1);
    daemon.control.delete(&ME, "box1").await.unwrap();
    assert_eq!(daemon.until("box1", SandboxState::Failed).await.error_code, "SANDBOX_DELETE_FAILED");
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Deleted).await;
    assert_eq!(daemon.provider.remaining(), (0, 0));
}

//= control.events.details-sandbox-phase
#[tokio::test]
async fn a_sandbox_that_exits_is_stopped_with_the_reason_and_can_be_resumed() {
    for (cause, reason, code) in [
        (EndCause::Stopped, "shut_down", ""),
        (EndCause::GuestExited, "guest_exited", "CONTAINER_NOT_RUNNING"),
        (EndCause::OutOfMemory, "out_of_memory", "CONTAINER_OOM"),
        (EndCause::Misbehaved, "misbehaved", "CONTAINER_NOT_RUNNING"),
        (EndCause::SupervisorLost, "supervisor_lost", "CONTAINER_NOT_RUNNING"),
        (EndCause::HostShutdown, "host_shutdown", ""),
        (EndCause::HostRestarted, "host_restarted", "CONTAINER_NOT_RUNNING"),
    ] {
        let daemon = TestDaemon::ready("box1").await;
        daemon.exec("box1", "exec1").await.unwrap();
        daemon.until_running("exec1").await;
        assert!(daemon.provider.kill("box1", cause));
        let stopped = daemon.until("box1", SandboxState::Stopped).await;
        assert_eq!((stopped.reason.as_str(), stopped.error_code.as_str()), (reason, code));
        let events = daemon.events("box1").await;
        assert_eq!(kinds(&events)[4..], [Event::SandboxStopRequested, Event::ExecFailed, Event::SandboxStopped]);
        assert_eq!(daemon.control.exec(&ME, "exec1").await.unwrap().0.exit_code, 137);
        for index in [4, 6] {
            assert!(matches!(&events[index].details, EventDetails::Phase { reason: emitted, .. } if emitted == reason));
        }
        assert!(matches!(&events[6].details, EventDetails::Phase { error_code, .. } if error_code == code));
        daemon.control.resume(&ME, "box1").await.unwrap();
        let ready = daemon.until("box1", SandboxState::Ready).await;
        assert_eq!((ready.disk.as_str(), ready.error_code.as_str()), (stopped.disk.as_str(), ""));
        daemon.check().await;
    }
}

#[tokio::test]
async fn a_sandbox_that_exits_without_a_disk_fails_and_a_resume_creates_no_disk() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.lose_disks();
    assert!(daemon.provider.kill("box1", EndCause::SupervisorLost));
    let failed = daemon.until("box1", SandboxState::Failed).await;
    assert_eq!(failed.error_code, "CONTAINER_NOT_RUNNING");
    assert_eq!(failed.error_message, "killed; its disk is missing");
    daemon.control.resume(&ME, "box1").await.unwrap();
    let failed = daemon.until("box1", SandboxState::Failed).await;
    assert_eq!(
        (failed.error_code.as_str(), failed.error_message.as_str()),
        ("SANDBOX_RESUME_FAILED", "its disk is missing")
    );
    assert_eq!(daemon.provider.remaining().1, 0);
    daemon.check().await;
}

#[tokio::test]
async fn a_resume_that_failed_can_be_retried() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.control.stop(&ME, "box1").await.unwrap();
    let stopped = daemon.until("box1", SandboxState::Stopped).await;
    daemon.provider.fail(FakeCall::Start, 1);
    daemon.control.resume(&ME, "box1").await.unwrap();
    assert_eq!(daemon.until("box1", SandboxState::Failed).await.error_code, "SANDBOX_RESUME_FAILED");
    daemon.control.resume(&ME, "box1").await.unwrap();
    let ready = daemon.until("box1", SandboxState::Ready).await;
    assert_eq!((ready.disk.as_str(), ready.error_code.as_str()), (stopped.disk.as_str(), ""));
    let expected = [Event::SandboxAccepted, Event::SandboxFailed, Event::SandboxAccepted, Event::SandboxReady];
    assert_eq!(kinds(&daemon.events("box1").await)[5..], expected);
    daemon.check().await;
}

#[tokio::test]
async fn an_id_is_used_once() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Deleted).await;
    let refusal = daemon.try_create("box1", |_| {}).await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::AlreadyExists, "SANDBOX_ID_ALREADY_EXISTS"));
    assert_eq!(refusal.metadata["sandbox_id"], "box1");
    let generated = daemon.control.create(&ME, support::request(None, |_| {})).await.unwrap();
    assert_eq!(generated.id.as_str().len(), 36);
}

#[tokio::test]
async fn another_user_can_neither_see_nor_use_a_sandbox() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.exec("box1", "exec1").await.unwrap();
    let other = Caller { user: 1234, group: 1234, trusted: false };
    let unknown = |refusal: carrel_control::Refusal| assert_eq!(refusal.code, Code::NotFound, "{refusal}");
    unknown(daemon.control.get(&other, "box1").unwrap_err());
    unknown(daemon.control.stop(&other, "box1").await.unwrap_err());
    unknown(daemon.control.delete(&other, "box1").await.unwrap_err());
    unknown(daemon.control.exec(&other, "exec1").await.unwrap_err());
    unknown(daemon.control.cancel_exec(&other, "exec1").await.unwrap_err());
    unknown(daemon.control.events(&other, "box1", 0).map(drop).unwrap_err());
    assert!(daemon.control.list(&other, true, &carrel_store::Pairs::new()).is_empty());
    assert!(daemon.control.active_execs(&other, None).unwrap().is_empty());
    // The daemon's own user sees all sandboxes; other users see their own.
    let root = Caller { user: 0, group: 0, trusted: true };
    daemon.control.get(&root, "box1").unwrap();
    let own = Caller { user: ME.user, group: ME.group, trusted: false };
    daemon.control.get(&own, "box1").unwrap();
}

//= promises.control-plane.ids-caller-chooses
#[tokio::test]
async fn an_id_of_another_user_is_free() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.exec("box1", "exec1").await.unwrap();
    let others = [Caller { user: 1234, group: 1234, trusted: false }, Caller::KEY];
    for (other, stored) in others.iter().zip(["u1234~box1", "key~box1"]) {
        // Only the daemon's own user may use the image `host`.
        let request = || support::request(Some("box1"), |draft| "registry.example/image".clone_into(&mut draft.image));
        let theirs = daemon.control.create(other, request()).await.unwrap();
        assert_eq!((theirs.id.as_str(), theirs.id.seen_from(other.namespace())), (stored, "box1"));
        daemon.until(stored, SandboxState::Ready).await;
        assert_eq!(daemon.control.get(other, "box1").unwrap().id, theirs.id);
        let again = daemon.control.create(other, request()).await.unwrap_err();
        assert_eq!((again.code, again.metadata["sandbox_id"].as_str()), (Code::AlreadyExists, "box1"));
        let request = ExecRequest {
            id: Some("exec1".into()),
            sandbox: "box1".into(),
            command: vec!["true".into()],
            ..ExecRequest::default()
        };
        let exec = daemon.control.create_exec(other, request.clone()).await.unwrap();
        assert_eq!((exec.sandbox.as_str(), exec.id.seen_from(other.namespace())), (stored, "exec1"));
        let again = daemon.control.create_exec(other, request).await.unwrap_err();
        assert_eq!((again.code, again.metadata["exec_id"].as_str()), (Code::AlreadyExists, "exec1"));
        assert_eq!(daemon.control.exec(other, "exec1").await.unwrap().0.id, exec.id);
        let refusal = daemon.control.resume(other, "box1").await.unwrap_err();
        assert_eq!((refusal.metadata["sandbox_id"].as_str(), refusal.message.contains('~')), ("box1", false));
    }
    assert_eq!(daemon.control.exec(&ME, "exec1").await.unwrap().0.sandbox.as_str(), "box1");
}

//= promises.control-plane.ids-caller-chooses
#[tokio::test]
async fn a_sandbox_from_before_namespaces_keeps_its_id() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.exec("box1", "exec1").await.unwrap();
    // Its owner is no longer the daemon's own user.
    let owner = Caller { user: ME.user, group: ME.group, trusted: false };
    assert_eq!(daemon.control.exec(&owner, "exec1").await.unwrap().0.sandbox.as_str(), "box1");
    let request = support::request(Some("box1"), |draft| "registry.example/image".clone_into(&mut draft.image));
    let refusal = daemon.control.create(&owner, request).await.unwrap_err();
    assert_eq!(refusal.code, Code::AlreadyExists);
    daemon.control.delete(&owner, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Deleted).await;
}

#[tokio::test]
async fn a_delete_by_label_returns_the_deleted_ids() {
    let daemon = TestDaemon::new().await;
    for (id, team) in [("box1", "red"), ("box2", "blue"), ("box3", "red")] {
        daemon.try_create(id, |draft| drop(draft.labels.insert("team".into(), team.into()))).await.unwrap();
        daemon.until(id, SandboxState::Ready).await;
    }
    let selector = [("team".to_owned(), "red".to_owned())].into();
    let deleted = daemon.control.delete_matching(&ME, &selector).await.unwrap();
    assert_eq!(deleted.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["box1", "box3"]);
    daemon.until("box3", SandboxState::Deleted).await;
    daemon.until("box1", SandboxState::Deleted).await;
    assert_eq!(daemon.control.delete_matching(&ME, &selector).await.unwrap(), []);
    let refusal = daemon.control.delete_matching(&ME, &carrel_store::Pairs::new()).await.unwrap_err();
    assert_eq!((refusal.code, refusal.metadata["field"].as_str()), (Code::InvalidArgument, "label_selector"));
    assert_eq!(daemon.provider.running(), ["box2"]);
}

#[tokio::test]
async fn a_future_sequence_is_refused_with_the_oldest() {
    let daemon = TestDaemon::ready("box1").await;
    let refusal = daemon.control.events(&ME, "box1", 4).map(drop).unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED"));
    assert_eq!((refusal.metadata["from_sequence"].as_str(), refusal.metadata["oldest_sequence"].as_str()), ("4", "1"));
    assert!(daemon.control.events(&ME, "box1", 3).is_ok());
}
