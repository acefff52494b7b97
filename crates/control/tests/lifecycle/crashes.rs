//! A daemon that ends in the middle, and the one after it.

use carrel_control::Caller;
use carrel_control::fake::Call;
use carrel_control::provider::{EndCause, How};
use carrel_store::{EventType as Event, ExecState, SandboxState};

use super::support::{ME, World, kinds};

#[tokio::test]
async fn what_was_accepted_is_finished() {
    let mut world = World::new().await;
    world.provider.hold(Call::Start);
    world.create("box1").await;
    world.crash().await;
    world.provider.release(Call::Start);
    world.until("box1", SandboxState::Ready).await;
    assert_eq!(kinds(&world.events("box1").await).len(), 3, "it is prepared once");

    world.provider.hold(Call::Stop);
    world.control.stop(&ME, "box1").await.unwrap();
    world.crash().await;
    assert_eq!(world.exec("box1", "exec1").await.unwrap_err().reason, "SANDBOX_NOT_READY");
    world.provider.release(Call::Stop);
    world.until("box1", SandboxState::Stopped).await;

    world.provider.hold(Call::Start);
    world.control.resume(&ME, "box1").await.unwrap();
    world.crash().await;
    world.provider.release(Call::Start);
    world.until("box1", SandboxState::Ready).await;

    world.provider.hold(Call::Remove);
    world.control.delete(&ME, "box1").await.unwrap();
    world.crash().await;
    world.provider.release(Call::Remove);
    world.until("box1", SandboxState::Deleted).await;
    assert_eq!(world.provider.left(), (0, 0));
    assert_eq!(
        kinds(&world.events("box1").await),
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
    world.check().await;
}

#[tokio::test]
async fn commands_go_on_and_end_with_their_own_code_even_while_nobody_listens() {
    let mut world = World::ready("box1").await;
    for exec in ["exec1", "exec2", "exec3"] {
        world.exec("box1", exec).await.unwrap();
        world.until_running(exec).await;
    }
    let created = world.control.get(&ME, "box1").unwrap().created_at;
    world.control.shutdown().await;
    world.provider.end_exec("exec1", How::Exited(7));
    world.crash().await;
    world.provider.end_exec("exec2", How::Exited(0));
    assert_eq!(world.until_ended("exec1").await.exit_code, 7);
    assert_eq!(world.until_ended("exec2").await.state, ExecState::Finished);
    world.control.shutdown().await;
    world.provider.kill("box1", EndCause::SupervisorLost);
    world.crash().await;
    assert_eq!(world.until_ended("exec3").await.exit_code, 137);
    let stopped = world.until("box1", SandboxState::Stopped).await;
    assert_eq!((stopped.error_code.as_str(), stopped.created_at), ("CONTAINER_NOT_RUNNING", created));
    world.check().await;
}

#[tokio::test]
async fn an_exec_that_was_accepted_and_never_given_is_given_once() {
    let mut world = World::ready("box1").await;
    world.provider.hold(Call::Exec);
    world.exec("box1", "exec1").await.unwrap();
    world.crash().await;
    world.provider.release(Call::Exec);
    world.until_running("exec1").await;
    world.provider.hold(Call::Cancel);
    let control = world.control.clone();
    let cancel = tokio::spawn(async move { control.cancel_exec(&ME, "exec1").await });
    while !world.control.exec(&ME, "exec1").await.unwrap().0.cancelling {
        tokio::task::yield_now().await;
    }
    world.crash().await;
    // The answer may be lost with the daemon; what was asked is not.
    let _answer = cancel.await.unwrap();
    world.provider.release(Call::Cancel);
    assert_eq!(world.until_ended("exec1").await.state, ExecState::Cancelled);
    world.check().await;
}

#[tokio::test]
async fn what_an_older_store_does_not_know_is_kept_and_can_be_adopted() {
    let mut world = World::ready("box1").await;
    world.create("box2").await;
    let lost = world.until("box2", SandboxState::Ready).await;
    // A store from before the second one: as if its commit had never been.
    world.control.shutdown().await;
    world.store.purge(&lost.id).await.unwrap();
    world.crash().await;
    assert_eq!(world.provider.left(), (2, 2));
    let orphans = world.control.orphans(&ME).await.unwrap();
    let named: Vec<_> = orphans.iter().map(|orphan| (&orphan.disk, orphan.manifest.is_some())).collect();
    assert_eq!(named, [(&lost.disk, true)]);
    let stranger = Caller { trusted: false, ..ME };
    assert_eq!(world.control.orphans(&stranger).await.unwrap_err().reason, "ORPHANS_FORBIDDEN");
    let unknown = world.control.adopt_orphan(&ME, "another", None).await.unwrap_err();
    assert_eq!(unknown.reason, "ORPHAN_UNKNOWN");
    // Its id was used in this store, which one of before would not know.
    let taken = world.control.adopt_orphan(&ME, &lost.disk, None).await.unwrap_err();
    assert_eq!(taken.reason, "SANDBOX_ID_ALREADY_EXISTS");

    let adopted = world.control.adopt_orphan(&ME, "box2", Some("box3")).await.unwrap();
    assert_eq!((adopted.state, adopted.reason.as_str()), (SandboxState::Stopped, "adopted"));
    assert_eq!((&adopted.disk, &adopted.spec, adopted.created_at), (&lost.disk, &lost.spec, lost.created_at));
    assert!(world.control.orphans(&ME).await.unwrap().is_empty());
    world.control.resume(&ME, "box3").await.unwrap();
    world.until("box3", SandboxState::Ready).await;
    world.crash().await;
    assert_eq!(world.control.get(&ME, "box3").unwrap().state, SandboxState::Ready);
    world.check().await;
}

#[tokio::test]
async fn an_orphan_goes_when_a_person_removes_it() {
    let mut world = World::ready("box1").await;
    let lost = world.control.get(&ME, "box1").unwrap();
    world.control.shutdown().await;
    world.store.purge(&lost.id).await.unwrap();
    world.crash().await;
    world.control.remove_orphan(&ME, &lost.disk).await.unwrap();
    assert!(world.control.orphans(&ME).await.unwrap().is_empty());
    assert_eq!(world.provider.left().1, 0);
}
