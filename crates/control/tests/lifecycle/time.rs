//! Timers: idle sandboxes stop, old ones are deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use carrel_control::fake::FakeCall;
use carrel_control::provider::How;
use carrel_control::spec::DraftDuration;
use carrel_control::{Clock, ControlSettings};
use carrel_store::{EventDetails, EventType as Event, Events, SandboxState, Timestamp};

use super::support::{ME, TestDaemon, kinds};

/// A short timeout, which does not slow a test down.
const SOON: Duration = Duration::from_millis(30);

/// By how much the clock is changed, in nanoseconds: a day.
const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;

/// A clock that can be changed, and its offset.
fn clock() -> (Clock, Arc<AtomicI64>) {
    let offset = Arc::new(AtomicI64::new(0));
    let by = Arc::clone(&offset);
    let now = move || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Timestamp(i64::try_from(since.as_nanos()).unwrap() + by.load(Ordering::Relaxed))
    };
    (Clock::new(now), offset)
}

fn settings() -> ControlSettings {
    ControlSettings { idle_ttl: SOON, ..ControlSettings::default() }
}

#[tokio::test]
async fn an_idle_sandbox_is_stopped_and_a_resume_restarts_its_timer() {
    let daemon = TestDaemon::with(settings()).await;
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Stopped).await;
    for event in &daemon.events("box1").await[3..] {
        assert!(matches!(&event.details, EventDetails::Phase { reason, .. } if reason == "idle_ttl"), "{event:?}");
    }
    let stopped = daemon.control.get(&ME, "box1").unwrap();
    daemon.control.resume(&ME, "box1").await.unwrap();
    let ready = daemon.until("box1", SandboxState::Ready).await;
    assert!(ready.active_at > stopped.active_at);
    let again = daemon.until("box1", SandboxState::Stopped).await;
    let rested = again.state_changed_at.0 - ready.state_changed_at.0;
    assert!(rested >= i64::try_from(SOON.as_nanos()).unwrap(), "{rested}");
}

#[tokio::test]
async fn a_command_or_a_viewer_is_activity() {
    let daemon = TestDaemon::with(settings()).await;
    daemon.provider.set_active(true);
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Ready).await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.until_running("exec1").await;
    daemon.provider.set_active(false);
    // It does nothing for several times its idle timeout; meanwhile idle sandboxes stop.
    for id in ["box2", "box3", "box4"] {
        daemon.create(id).await;
        daemon.until(id, SandboxState::Stopped).await;
    }
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().last_sequence, 4);
    // An exec that failed is activity too.
    daemon.provider.end_exec("exec1", How::Exited(1));
    daemon.until("box1", SandboxState::Stopped).await;
    let events = daemon.events("box1").await;
    let waited = events[5].at.0 - daemon.control.get(&ME, "box1").unwrap().active_at.0;
    assert!(waited >= i64::try_from(SOON.as_nanos()).unwrap(), "{waited}");
}

#[tokio::test]
async fn a_sandbox_without_an_idle_timeout_runs_until_it_gets_one() {
    let daemon = TestDaemon::with(settings()).await;
    let forever = Some(DraftDuration::default());
    daemon.try_create("box1", |draft| draft.idle_ttl = forever).await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    daemon.create("box2").await;
    daemon.until("box2", SandboxState::Stopped).await;
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
    daemon.control.set_idle_ttl(&ME, "box1", None).await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
}

/// All events. A stream ends without an error when its sandbox is purged.
async fn all_events(mut stream: Events) -> Vec<Arc<carrel_store::Event>> {
    let mut events = Vec::new();
    while let Some(batch) = stream.next().await.unwrap() {
        events.extend(batch);
    }
    events
}

#[tokio::test]
async fn old_sandboxes_are_deleted_and_purged_including_failed_ones() {
    let daemon = TestDaemon::with(ControlSettings { cleanup_ttl: SOON, ..ControlSettings::default() }).await;
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Ready).await;
    daemon.control.stop(&ME, "box1").await.unwrap();
    let events = daemon.control.events(&ME, "box1", 0).unwrap();
    daemon.provider.fail(FakeCall::Start, 1);
    daemon.create("box2").await;
    let failed = daemon.control.events(&ME, "box2", 0).unwrap();
    // Both concurrently, because the events of a purged sandbox are lost.
    let (events, other) = tokio::join!(all_events(events), all_events(failed));
    let [.., request, end] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!([request.kind, end.kind], [Event::SandboxDeleteRequested, Event::SandboxDeleted]);
    assert!(matches!(&end.details, EventDetails::Phase { reason, .. } if reason == "cleanup_ttl"), "{end:?}");
    assert_eq!(kinds(&other).last(), Some(&Event::SandboxDeleted));
    assert_eq!(daemon.provider.remaining(), (0, 0));
    // Its id cannot be reused.
    assert_eq!(daemon.try_create("box1", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");
    assert_eq!(daemon.control.get(&ME, "box1").unwrap_err().reason, "SANDBOX_NOT_FOUND");
}

#[tokio::test]
async fn a_command_that_exits_repeatedly_fails_its_sandbox() {
    let daemon = TestDaemon::new().await;
    daemon.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    let ready = daemon.control.get(&ME, "box1").unwrap().state_changed_at;
    for second in 0..6 {
        daemon.provider.end_command("box1", Timestamp(ready.0 + second * 1_000_000_000));
    }
    let failed = daemon.until("box1", SandboxState::Failed).await;
    assert_eq!(failed.error_code, "CONTAINER_CRASHLOOP");
    let words = "the command exited 6 times in a row within 10 s of its start: exit code 1";
    assert_eq!(failed.error_message, words);
    daemon.control.delete(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Deleted).await;
    assert_eq!(daemon.provider.remaining(), (0, 0));
}

#[tokio::test]
async fn a_command_that_exits_before_its_start_is_reported_is_restarted_once_more() {
    let daemon = TestDaemon::new().await;
    daemon.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    let ready = daemon.until("box1", SandboxState::Ready).await.state_changed_at;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.until_running("exec1").await;
    daemon.provider.hold(FakeCall::Command);
    daemon.provider.end_command("box1", ready);
    let first = daemon.provider.restarts(1).await;
    daemon.provider.end_command("box1", ready);
    // Facts before the end of the exec have been handled when that is.
    daemon.provider.end_exec("exec1", How::Exited(0));
    daemon.until_ended("exec1").await;
    daemon.provider.release(FakeCall::Command);
    let second = daemon.provider.restarts(2).await;
    assert!(first[0] < second[1] && second[1] < u32::MAX, "{second:?}");
    assert_eq!(second.len(), 2, "{second:?}");
}

#[tokio::test]
async fn an_exit_after_a_long_run_is_no_early_exit() {
    let daemon = TestDaemon::new().await;
    daemon.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    let ready = daemon.control.get(&ME, "box1").unwrap().state_changed_at;
    for second in 60..67 {
        daemon.provider.end_command("box1", Timestamp(ready.0 + second * 1_000_000_000));
    }
    let failed = daemon.until("box1", SandboxState::Failed).await;
    assert!(failed.error_message.starts_with("the command exited 6 times in a row"), "{}", failed.error_message);
}

#[tokio::test]
async fn a_command_whose_program_is_missing_fails_its_sandbox_at_once() {
    let daemon = TestDaemon::new().await;
    daemon.try_create("box1", |draft| draft.command = vec!["nosuch".into()]).await.unwrap();
    let ready = daemon.until("box1", SandboxState::Ready).await.state_changed_at;
    daemon.provider.end_command_as("box1", ready, &How::NeverRan(127, "nosuch: not found".to_owned()));
    let failed = daemon.until("box1", SandboxState::Failed).await;
    let error = (failed.error_code.as_str(), failed.error_message.as_str());
    assert_eq!(error, ("CONTAINER_CRASHLOOP", "the command cannot be started: nosuch: not found"));
    // Published clients receive the same events as before: first ready, then failed.
    let [.., ready, failed] = &kinds(&daemon.events("box1").await)[..] else { panic!("no events") };
    assert_eq!([*ready, *failed], [Event::SandboxReady, Event::SandboxFailed]);
}

#[tokio::test]
async fn a_clock_change_makes_no_sandbox_idle() {
    let (clock, offset) = clock();
    let mut daemon = TestDaemon::with(ControlSettings {
        idle_ttl: Duration::from_secs(60 * 60),
        clock,
        ..ControlSettings::default()
    })
    .await;
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Ready).await;
    let soon = Some(DraftDuration { seconds: 0, nanos: 30_000_000 });
    for (id, by) in [("box2", DAY), ("box3", -DAY)] {
        offset.store(by, Ordering::Relaxed);
        // An idle sandbox stops, whatever the clock says, and the other one does not.
        daemon.try_create(id, |draft| draft.idle_ttl = soon).await.unwrap();
        daemon.until(id, SandboxState::Stopped).await;
        assert_eq!(daemon.control.get(&ME, "box1").unwrap().last_sequence, 3);
    }
    // The next daemon, for which the last activity is in the future, does not stop it either.
    daemon.crash().await;
    daemon.try_create("box4", |draft| draft.idle_ttl = soon).await.unwrap();
    daemon.until("box4", SandboxState::Stopped).await;
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().last_sequence, 3);
    daemon.control.set_idle_ttl(&ME, "box1", Some(SOON)).await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    daemon.check().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_removes_nothing_and_one_that_is_set_forward_removes_old_sandboxes() {
    let (clock, offset) = clock();
    let (idle_ttl, cleanup_ttl) = (Duration::ZERO, Duration::from_secs(60));
    let mut daemon =
        TestDaemon::with(ControlSettings { idle_ttl, cleanup_ttl, clock, ..ControlSettings::default() }).await;
    daemon.create("box1").await;
    daemon.until("box1", SandboxState::Ready).await;
    daemon.control.stop(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Stopped).await;
    offset.store(-DAY, Ordering::Relaxed);
    daemon.crash().await;
    // Requests are carried out, with earlier timestamps.
    daemon.control.resume(&ME, "box1").await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    daemon.control.stop(&ME, "box1").await.unwrap();
    let stopped = daemon.until("box1", SandboxState::Stopped).await;
    offset.store(-2 * DAY, Ordering::Relaxed);
    daemon.crash().await;
    daemon.create("box2").await;
    daemon.until("box2", SandboxState::Ready).await;
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().last_sequence, stopped.last_sequence);
    offset.store(DAY, Ordering::Relaxed);
    daemon.crash().await;
    daemon.until("box1", SandboxState::Deleted).await;
    assert_eq!(daemon.control.get(&ME, "box2").unwrap().state, SandboxState::Ready);
    daemon.check().await;
}

#[tokio::test]
async fn exits_of_long_ago_are_replayed_and_are_no_crashes() {
    let mut daemon = TestDaemon::new().await;
    daemon.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    daemon.until("box1", SandboxState::Ready).await;
    daemon.exec("box1", "exec1").await.unwrap();
    daemon.until_running("exec1").await;
    let ready = daemon.control.get(&ME, "box1").unwrap().state_changed_at;
    daemon.control.shutdown().await;
    // Each run was long.
    for number in 1..20 {
        daemon.provider.end_command("box1", Timestamp(ready.0 + number * 11_000_000_000));
    }
    daemon.crash().await;
    daemon.provider.end_exec("exec1", How::Exited(0));
    assert_eq!(daemon.until_ended("exec1").await.exit_code, 0);
    assert_eq!(daemon.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
}
