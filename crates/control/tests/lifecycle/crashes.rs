//! A daemon that crashes, and the next one.

use carrel_control::Caller;
use carrel_control::fake::FakeCall;
use carrel_control::provider::{EndCause, How};
use carrel_store::{EventType as Event, ExecState, SandboxState};

use super::support::{ME, TestDaemon, kinds};

//= control.accepted-completed.slow-operations-return-after
#[tokio::test]
async fn accepted_requests_are_completed_after_a_crash() {
    let mut daemon = TestDaemon::new().await;
    daemon.provider.hold(FakeCall::Start);
    daemon.create("box1").await;
    daemon.crash().await;
    daemon.provider.release(FakeCall::Start);
    daemon.until("box1", SandboxState::Ready).await;
    assert_eq!(kinds(&daemon.events("box1").await).len(), 3, "it is prepared once");

    daemon.provider.hold(FakeCall::Stop);
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.crash().await;
    assert_eq!(daemon.exec("box1", "exec1").await.unwrap_err().reason, "SANDBOX_NOT_READY");
    daemon.provider.release(FakeCall::Stop);
    daemon.until("box1", SandboxState::Stopped).await;

    daemon.provider.hold(FakeCall::Start);
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.crash().await;
    daemon.provider.release(FakeCall::Start);
    daemon.until("box1", SandboxState::Ready).await;

    daemon.provider.hold(FakeCall::Remove);
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.crash().await;
    daemon.provider.release(FakeCall::Remove);
    daemon.until("box1", SandboxState::Deleted).await;
    assert_eq!(daemon.provider.remaining(), (0, 0));
    assert_eq!(
        kinds(&daemon.events("box1").await),
        [
            Event::SandboxAccepted,
            Event::SandboxPreparing,
            Event::SandboxReady,
            Event::SandboxStopRequested,
            Event::SandboxStopped,
            Event::SandboxAccepted,
            Event::SandboxReady,
            Event::SandboxDeleteRequested,
            Event::SandboxDeleted,
        ]
    );
    daemon.check().await;
}

#[tokio::test]
async fn execs_continue_without_a_daemon_and_keep_their_exit_codes() {
    let mut daemon = TestDaemon::ready("box1").await;
    for exec in ["exec1", "exec2", "exec3"] {
        daemon.exec("box1", exec).await.unwrap();
        daemon.until_running(exec).await;
    }
    let created = daemon.control.get(&ME, "box1").unwrap().created_at;
    daemon.control.shutdown().await;
    daemon.provider.end_exec("exec1", How::Exited(7));
    daemon.crash().await;
    daemon.provider.end_exec("exec2", How::Exited(0));
    assert_eq!(daemon.until_ended("exec1").await.exit_code, 7);
    assert_eq!(daemon.until_ended("exec2").await.state, ExecState::Finished);
    daemon.control.shutdown().await;
    daemon.provider.kill("box1", EndCause::SupervisorLost);
    daemon.crash().await;
    assert_eq!(daemon.until_ended("exec3").await.exit_code, 137);
    let stopped = daemon.until("box1", SandboxState::Stopped).await;
    assert_eq!((stopped.error_code.as_str(), stopped.created_at), ("CONTAINER_NOT_RUNNING", created));
    daemon.check().await;
}

#[tokio::test]
async fn an_accepted_exec_is_started_once_after_a_crash() {
    let mut daemon = TestDaemon::ready("box1").await;
    daemon.provider.hold(FakeCall::Exec);
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.crash().await;
    daemon.provider.release(FakeCall::Exec);
    daemon.until_running("exec1").await;
    daemon.provider.hold(FakeCall::Cancel);
    let control = daemon.control.clone();
    let cancel = tokio::spawn(async move { control.cancel_exec(&ME, "exec1").await });
    while !daemon.control.exec(&ME, "exec1").await.unwrap().0.cancelling {
        tokio::task::yield_now().await;
    }
    daemon.crash().await;
    // The answer may be lost with the daemon; the request is not.
    let _answer = cancel.await.unwrap();
    daemon.provider.release(FakeCall::Cancel);
    assert_eq!(daemon.until_ended("exec1").await.state, ExecState::Cancelled);
    daemon.check().await;
}

#[tokio::test]
async fn a_disk_that_an_older_store_does_not_know_can_be_adopted() {
    let mut daemon = TestDaemon::ready("box1").await;
    daemon.create("box2").await;
    let lost = daemon.until("box2", SandboxState::Ready).await;
    // A store from before the second sandbox: as if it had never been committed.
    daemon.control.shutdown().await;
    daemon.store.purge(&lost.id).await.unwrap();
    daemon.crash().await;
    assert_eq!(daemon.provider.remaining(), (2, 2));
    let orphans = daemon.control.orphans(&ME).await.unwrap();
    let named: Vec<_> = orphans.iter().map(|orphan| (&orphan.disk, orphan.manifest.is_some())).collect();
    assert_eq!(named, [(&lost.disk, true)]);
    let untrusted = Caller { trusted: false, ..ME };
    assert_eq!(daemon.control.orphans(&untrusted).await.unwrap_err().reason, "ORPHANS_FORBIDDEN");
    let unknown = daemon.control.adopt_orphan(&ME, "another", None).await.unwrap_err();
    assert_eq!(unknown.reason, "ORPHAN_UNKNOWN");
    let taken = daemon.control.adopt_orphan(&ME, &lost.disk, Some("box1")).await.unwrap_err();
    assert_eq!(taken.reason, "SANDBOX_ID_ALREADY_EXISTS");
    // The store lost its row, and kept its id.
    assert_eq!(daemon.try_create("box2", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");

    let adopted = daemon.control.adopt_orphan(&ME, "box2", None).await.unwrap();
    assert_eq!(adopted.id.as_str(), "box2");
    assert_eq!((adopted.state, adopted.reason.as_str()), (SandboxState::Stopped, "adopted"));
    assert_eq!((&adopted.disk, &adopted.spec, adopted.created_at), (&lost.disk, &lost.spec, lost.created_at));
    assert!(daemon.control.orphans(&ME).await.unwrap().is_empty());
    daemon.control.resume(&ME, "box2").await.unwrap();
    daemon.until("box2", SandboxState::Ready).await;
    daemon.crash().await;
    assert_eq!(daemon.control.get(&ME, "box2").unwrap().state, SandboxState::Ready);
    daemon.check().await;
}

#[tokio::test]
async fn an_orphan_is_removed_on_request() {
    let mut daemon = TestDaemon::ready("box1").await;
    let lost = daemon.control.get(&ME, "box1").unwrap();
    daemon.control.shutdown().await;
    daemon.store.purge(&lost.id).await.unwrap();
    daemon.crash().await;
    daemon.control.remove_orphan(&ME, &lost.disk).await.unwrap();
    assert!(daemon.control.orphans(&ME).await.unwrap().is_empty());
    assert_eq!(daemon.provider.remaining().1, 0);
}

#[tokio::test]
async fn the_manifest_of_a_sandbox_that_is_being_deleted_is_not_saved_by_the_next_daemon() {
    let mut daemon = TestDaemon::ready("box1").await;
    daemon.provider.hold(FakeCall::Remove);
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.provider.hold(FakeCall::SaveManifest);
    daemon.crash().await;
    daemon.provider.release(FakeCall::Remove);
    daemon.until("box1", SandboxState::Deleted).await;
    daemon.provider.release(FakeCall::SaveManifest);
    run_other_tasks().await;
    assert_eq!(daemon.provider.manifests(), 0);
    daemon.check().await;
}

/// Lets the other tasks of this runtime, which has one thread, run as far as they can.
async fn run_other_tasks() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
