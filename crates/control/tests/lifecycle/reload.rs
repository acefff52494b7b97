//! Settings that are replaced while sandboxes run, and descriptors that run out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use carrel_control::{Code, Descriptors, Settings};
use carrel_store::SandboxState;

use super::support::{ME, World};

#[tokio::test]
async fn a_shorter_idle_time_counts_for_a_sandbox_that_waits_already() {
    let hour = Duration::from_secs(60 * 60);
    let world = World::with(Settings { idle_ttl: hour, ..Settings::default() }).await;
    world.create("box1").await;
    world.until("box1", SandboxState::Ready).await;
    world.control.reload(Settings { idle_ttl: Duration::from_millis(1), ..Settings::default() });
    world.until("box1", SandboxState::Stopped).await;
    assert_eq!(world.control.get(&ME, "box1").unwrap().reason, "idle_ttl");
}

#[tokio::test]
async fn a_limit_that_is_changed_counts_for_the_next_sandbox() {
    let world = World::with(Settings::default()).await;
    world.create("box1").await;
    world.control.reload(Settings { most_sandboxes: Some(1), ..Settings::default() });
    let refusal = world.try_create("box2", |_| {}).await.unwrap_err();
    assert_eq!(refusal.metadata["limit"], "sandboxes");
    world.control.reload(Settings { most_sandboxes: Some(2), ..Settings::default() });
    world.create("box2").await;
}

#[tokio::test]
async fn what_no_sandbox_has_is_looked_for_again_when_the_settings_change() {
    let world = World::with(Settings::default()).await;
    world.reaped(1).await;
    world.control.reload(Settings::default());
    world.reaped(2).await;
}

#[tokio::test]
async fn while_the_home_is_elsewhere_nothing_changes_and_it_is_said_why() {
    let world = World::ready("box1").await;
    world.provider.set_home_moved(true);
    for refusal in [
        world.try_create("box2", |_| {}).await.unwrap_err(),
        world.control.stop(&ME, "box1").await.unwrap_err(),
        world.control.delete(&ME, "box1").await.unwrap_err(),
        world.exec("box1", "exec1").await.unwrap_err(),
    ] {
        assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "HOME_MOVED"), "{refusal}");
        assert_eq!(refusal.message, "the home was moved");
    }
    assert!(world.control.get(&ME, "box2").is_err());
    world.provider.set_home_moved(false);
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    world.provider.set_home_moved(true);
    let refusal = world.control.resume(&ME, "box1").await.unwrap_err();
    assert_eq!(refusal.reason, "HOME_MOVED");
    assert_eq!(world.control.get(&ME, "box1").unwrap().state, SandboxState::Stopped);
}

#[tokio::test]
async fn without_descriptors_nothing_begins_and_everything_can_be_ended() {
    let open = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&open);
    let descriptors = Descriptors::new(|| 1024, move || counted.load(Ordering::Relaxed));
    let world = World::with(Settings { descriptors: descriptors.clone(), ..Settings::default() }).await;
    world.create("box1").await;
    world.create("box2").await;
    for id in ["box1", "box2"] {
        world.until(id, SandboxState::Ready).await;
    }
    world.control.stop(&ME, "box2").await.unwrap();
    world.until("box2", SandboxState::Stopped).await;
    open.store(1000, Ordering::Relaxed);
    let full = tokio::task::spawn_blocking(move || {
        while descriptors.open() < 1000 {
            std::thread::yield_now()
        }
    });
    full.await.unwrap();

    let refusals = [
        world.try_create("box3", |_| {}).await.unwrap_err(),
        world.control.resume(&ME, "box2").await.unwrap_err(),
        world.exec("box1", "exec1").await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(refusal.metadata["limit"], "descriptors");
    }
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    world.control.delete(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Deleted).await;
}
