//! A reload of the settings while sandboxes run, and a shortage of descriptors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use carrel_control::{Code, ControlSettings, Descriptors};
use carrel_store::SandboxState;

use super::support::{ME, TestDaemon};

#[tokio::test]
async fn a_shorter_idle_timeout_applies_to_a_running_sandbox() {
    let hour = Duration::from_secs(60 * 60);
    let daemon = TestDaemon::with(ControlSettings { idle_ttl: hour, ..ControlSettings::default() }).await;
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Ready).await;
    daemon.control.reload(ControlSettings { idle_ttl: Duration::from_millis(1), ..ControlSettings::default() });
    daemon.until("box1", SandboxState::Stopped).await;
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().reason, "idle_ttl");
}

#[tokio::test]
async fn a_changed_limit_applies_to_the_next_sandbox() {
    let daemon = TestDaemon::with(ControlSettings::default()).await;
    daemon.create("box1").await;
    daemon.control.reload(ControlSettings { max_sandboxes: Some(1), ..ControlSettings::default() });
    let refusal = daemon.try_create("box2", |_| {}).await.unwrap_err();
    assert_eq!(refusal.metadata["limit"], "sandboxes");
    daemon.control.reload(ControlSettings { max_sandboxes: Some(2), ..ControlSettings::default() });
    daemon.create("box2").await;
}

#[tokio::test]
async fn the_reaper_runs_when_the_settings_change() {
    let daemon = TestDaemon::with(ControlSettings::default()).await;
    daemon.until_reaped(1).await;
    daemon.control.reload(ControlSettings::default());
    daemon.until_reaped(2).await;
}

#[tokio::test]
async fn requests_are_refused_while_the_home_is_elsewhere() {
    let daemon = TestDaemon::ready("box1").await;
    daemon.provider.set_home_moved(true);
    for refusal in [
        daemon.try_create("box2", |_| {}).await.unwrap_err(),
        daemon.control.stop(&ME, "box1").await.unwrap_err(),
        daemon.control.delete(&ME, "box1").await.unwrap_err(),
        daemon.exec("box1", "exec1").await.unwrap_err(),
    ] {
        assert_eq!((refusal.code, refusal.reason), (Code::FailedPrecondition, "HOME_MOVED"), "{refusal}");
        assert_eq!(refusal.message, "the home was moved");
    }
    assert!(daemon.control.get(&ME, "box2").is_err());
    daemon.provider.set_home_moved(false);
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    daemon.provider.set_home_moved(true);
    let refusal = daemon.control.resume(&ME, "box1").await.unwrap_err();
    assert_eq!(refusal.reason, "HOME_MOVED");
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().state, SandboxState::Stopped);
}

#[tokio::test]
async fn without_descriptors_nothing_starts_and_everything_can_stop() {
    let open = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&open);
    let descriptors = Descriptors::new(|| 1024, move || counted.load(Ordering::Relaxed));
    let daemon =
        TestDaemon::with(ControlSettings { descriptors: descriptors.clone(), ..ControlSettings::default() }).await;
    daemon.create("box1").await;
    daemon.create("box2").await;
    for id in ["box1", "box2"] {
        daemon.until(id, SandboxState::Ready).await;
    }
    daemon.control.stop(&ME, "box2").await.unwrap();
    daemon.until("box2", SandboxState::Stopped).await;
    open.store(1000, Ordering::Relaxed);
    let full = tokio::task::spawn_blocking(move || {
        while descriptors.open() < 1000 {
            std::thread::yield_now()
        }
    });
    full.await.unwrap();

    let refusals = [
        daemon.try_create("box3", |_| {}).await.unwrap_err(),
        daemon.control.resume(&ME, "box2").await.unwrap_err(),
        daemon.exec("box1", "exec1").await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(refusal.metadata["limit"], "descriptors");
    }
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Deleted).await;
}
