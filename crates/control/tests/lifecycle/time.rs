//! What time does: idle sandboxes stop, old ones go.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use carrel_control::fake::Call;
use carrel_control::provider::How;
use carrel_control::spec::DraftDuration;
use carrel_control::{Clock, Settings};
use carrel_store::{Details, EventType as Event, Events, SandboxState, Timestamp};

use super::support::{ME, World, kinds};

/// So short that a test does not notice it.
const SOON: Duration = Duration::from_millis(30);

/// How far somebody sets the clock, in nanoseconds: a day.
const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;

/// A clock that can be set, and by how much it is wrong.
fn clock() -> (Clock, Arc<AtomicI64>) {
    let wrong = Arc::new(AtomicI64::new(0));
    let by = Arc::clone(&wrong);
    let now = move || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Timestamp(i64::try_from(since.as_nanos()).unwrap() + by.load(Ordering::Relaxed))
    };
    (Clock::new(now), wrong)
}

fn settings() -> Settings {
    Settings { idle_ttl: SOON, ..Settings::default() }
}

#[tokio::test]
async fn an_idle_one_is_stopped_and_says_why_and_a_resume_restarts_the_clock() {
    let world = World::with(settings()).await;
    world.create("box1").await;
    world.until("box1", SandboxState::Stopped).await;
    for event in &world.events("box1").await[3..] {
        assert!(matches!(&event.details, Details::Phase { reason, .. } if reason == "idle_ttl"), "{event:?}");
    }
    let stopped = world.control.get(&ME, "box1").unwrap();
    world.control.resume(&ME, "box1").await.unwrap();
    let ready = world.until("box1", SandboxState::Ready).await;
    assert!(ready.active_at > stopped.active_at);
    let again = world.until("box1", SandboxState::Stopped).await;
    let rested = again.state_changed_at.0 - ready.state_changed_at.0;
    assert!(rested >= i64::try_from(SOON.as_nanos()).unwrap(), "{rested}");
}

#[tokio::test]
async fn a_command_or_a_viewer_is_activity() {
    let world = World::with(settings()).await;
    world.provider.set_active(true);
    world.create("box1").await;
    world.until("box1", SandboxState::Ready).await;
    world.exec("box1", "exec1").await.unwrap();
    world.until_running("exec1").await;
    world.provider.set_active(false);
    // Nothing else happens to it for several times as long as it may be idle: an idle one beside it stops meanwhile.
    for id in ["box2", "box3", "box4"] {
        world.create(id).await;
        world.until(id, SandboxState::Stopped).await;
    }
    assert_eq!(world.control.get(&ME, "box1").unwrap().last_sequence, 4);
    // One that failed counts as well.
    world.provider.end_exec("exec1", How::Exited(1));
    world.until("box1", SandboxState::Stopped).await;
    let events = world.events("box1").await;
    let waited = events[5].at.0 - world.control.get(&ME, "box1").unwrap().active_at.0;
    assert!(waited >= i64::try_from(SOON.as_nanos()).unwrap(), "{waited}");
}

#[tokio::test]
async fn one_that_may_be_idle_for_ever_is_and_that_can_be_changed() {
    let world = World::with(settings()).await;
    let forever = Some(DraftDuration::default());
    world.try_create("box1", |draft| draft.idle_ttl = forever).await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    world.create("box2").await;
    world.until("box2", SandboxState::Stopped).await;
    assert_eq!(world.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
    world.control.set_idle_ttl(&ME, "box1", None).await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
}

/// All that is told. A stream ends well when what is known of its sandbox is forgotten.
async fn to_the_end(mut events: Events) -> Vec<Arc<carrel_store::Event>> {
    let mut told = Vec::new();
    while let Some(some) = events.next().await.unwrap() {
        told.extend(some);
    }
    told
}

#[tokio::test]
async fn old_ones_are_deleted_and_then_forgotten_failed_ones_too() {
    let world = World::with(Settings { cleanup_ttl: SOON, ..Settings::default() }).await;
    world.create("box1").await;
    world.until("box1", SandboxState::Ready).await;
    world.control.stop(&ME, "box1").await.unwrap();
    let events = world.control.events(&ME, "box1", 0).unwrap();
    world.provider.fail(Call::Start, 1);
    world.create("box2").await;
    let failed = world.control.events(&ME, "box2", 0).unwrap();
    // Both at once: whoever does not listen in time finds nothing of what is forgotten.
    let (told, other) = tokio::join!(to_the_end(events), to_the_end(failed));
    let [.., asked, over] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!([asked.kind, over.kind], [Event::SandboxDeleteRequested, Event::SandboxDeleted]);
    assert!(matches!(&over.details, Details::Phase { reason, .. } if reason == "cleanup_ttl"), "{over:?}");
    assert_eq!(kinds(&other).last(), Some(&Event::SandboxDeleted));
    assert_eq!(world.provider.left(), (0, 0));
    // Its id is not used again.
    assert_eq!(world.try_create("box1", |_| {}).await.unwrap_err().reason, "SANDBOX_ID_ALREADY_EXISTS");
    assert_eq!(world.control.get(&ME, "box1").unwrap_err().reason, "SANDBOX_NOT_FOUND");
}

#[tokio::test]
async fn a_command_of_its_own_that_ends_again_and_again_is_a_failure() {
    let world = World::new().await;
    world.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    let ready = world.control.get(&ME, "box1").unwrap().state_changed_at;
    for second in 0..6 {
        world.provider.end_command("box1", Timestamp(ready.0 + second * 1_000_000_000));
    }
    let failed = world.until("box1", SandboxState::Failed).await;
    assert_eq!(failed.error_code, "CONTAINER_CRASHLOOP");
    let words = "the command exited 6 times in a row within 10 s of its start: exit code 1";
    assert_eq!(failed.error_message, words);
    world.control.delete(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Deleted).await;
    assert_eq!(world.provider.left(), (0, 0));
}

#[tokio::test]
async fn a_command_that_exits_before_its_start_is_reported_is_restarted_once_more() {
    let world = World::new().await;
    world.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    let ready = world.until("box1", SandboxState::Ready).await.state_changed_at;
    world.exec("box1", "exec1").await.unwrap();
    world.until_running("exec1").await;
    world.provider.hold(Call::Command);
    world.provider.end_command("box1", ready);
    let first = world.provider.restarts(1).await;
    world.provider.end_command("box1", ready);
    // What happened before the end of the exec has been received when that is.
    world.provider.end_exec("exec1", How::Exited(0));
    world.until_ended("exec1").await;
    world.provider.release(Call::Command);
    let second = world.provider.restarts(2).await;
    assert!(first[0] < second[1] && second[1] < u32::MAX, "{second:?}");
    assert_eq!(second.len(), 2, "{second:?}");
}

#[tokio::test]
async fn an_exit_after_a_long_run_is_not_counted_as_an_early_one() {
    let world = World::new().await;
    world.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    let ready = world.control.get(&ME, "box1").unwrap().state_changed_at;
    for second in 60..67 {
        world.provider.end_command("box1", Timestamp(ready.0 + second * 1_000_000_000));
    }
    let failed = world.until("box1", SandboxState::Failed).await;
    assert!(failed.error_message.starts_with("the command exited 6 times in a row"), "{}", failed.error_message);
}

#[tokio::test]
async fn a_command_whose_program_is_not_there_fails_its_sandbox_at_once() {
    let world = World::new().await;
    world.try_create("box1", |draft| draft.command = vec!["nosuch".into()]).await.unwrap();
    let ready = world.until("box1", SandboxState::Ready).await.state_changed_at;
    world.provider.end_command_as("box1", ready, &How::NeverRan(127, "nosuch: not found".to_owned()));
    let failed = world.until("box1", SandboxState::Failed).await;
    let told = (failed.error_code.as_str(), failed.error_message.as_str());
    assert_eq!(told, ("CONTAINER_CRASHLOOP", "the command cannot be started: nosuch: not found"));
    // Published clients are told what they were told before: that it was ready, then that it failed.
    let [.., ready, failed] = &kinds(&world.events("box1").await)[..] else { panic!("no events") };
    assert_eq!([*ready, *failed], [Event::SandboxReady, Event::SandboxFailed]);
}

#[tokio::test]
async fn a_clock_that_is_set_does_not_make_one_idle_that_is_not() {
    let (clock, wrong) = clock();
    let mut world =
        World::with(Settings { idle_ttl: Duration::from_secs(60 * 60), clock, ..Settings::default() }).await;
    world.create("box1").await;
    world.until("box1", SandboxState::Ready).await;
    let soon = Some(DraftDuration { seconds: 0, nanos: 30_000_000 });
    for (id, by) in [("box2", DAY), ("box3", -DAY)] {
        wrong.store(by, Ordering::Relaxed);
        // One that is idle stops, whatever the clock says, and the other does not.
        world.try_create(id, |draft| draft.idle_ttl = soon).await.unwrap();
        world.until(id, SandboxState::Stopped).await;
        assert_eq!(world.control.get(&ME, "box1").unwrap().last_sequence, 3);
    }
    // Nor does it for the next daemon, to which it seems that the last sign of it is still to come.
    world.crash().await;
    world.try_create("box4", |draft| draft.idle_ttl = soon).await.unwrap();
    world.until("box4", SandboxState::Stopped).await;
    assert_eq!(world.control.get(&ME, "box1").unwrap().last_sequence, 3);
    world.control.set_idle_ttl(&ME, "box1", Some(SOON)).await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    world.check().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_removes_nothing_and_one_that_is_set_forward_what_is_old() {
    let (clock, wrong) = clock();
    let (idle_ttl, cleanup_ttl) = (Duration::ZERO, Duration::from_secs(60));
    let mut world = World::with(Settings { idle_ttl, cleanup_ttl, clock, ..Settings::default() }).await;
    world.create("box1").await;
    world.until("box1", SandboxState::Ready).await;
    world.control.stop(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Stopped).await;
    wrong.store(-DAY, Ordering::Relaxed);
    world.crash().await;
    // What is asked for is done, at a time that was before.
    world.control.resume(&ME, "box1").await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    world.control.stop(&ME, "box1").await.unwrap();
    let stopped = world.until("box1", SandboxState::Stopped).await;
    wrong.store(-2 * DAY, Ordering::Relaxed);
    world.crash().await;
    world.create("box2").await;
    world.until("box2", SandboxState::Ready).await;
    assert_eq!(world.control.get(&ME, "box1").unwrap().last_sequence, stopped.last_sequence);
    wrong.store(DAY, Ordering::Relaxed);
    world.crash().await;
    world.until("box1", SandboxState::Deleted).await;
    assert_eq!(world.control.get(&ME, "box2").unwrap().state, SandboxState::Ready);
    world.check().await;
}

#[tokio::test]
async fn ends_of_long_ago_are_told_to_the_next_daemon_and_are_no_crashes() {
    let mut world = World::new().await;
    world.try_create("box1", |draft| draft.command = vec!["serve".into()]).await.unwrap();
    world.until("box1", SandboxState::Ready).await;
    world.exec("box1", "exec1").await.unwrap();
    world.until_running("exec1").await;
    let ready = world.control.get(&ME, "box1").unwrap().state_changed_at;
    world.control.shutdown().await;
    // Each time it ran for a while.
    for number in 1..20 {
        world.provider.end_command("box1", Timestamp(ready.0 + number * 11_000_000_000));
    }
    world.crash().await;
    world.provider.end_exec("exec1", How::Exited(0));
    assert_eq!(world.until_ended("exec1").await.exit_code, 0);
    assert_eq!(world.control.get(&ME, "box1").unwrap().state, SandboxState::Ready);
}
