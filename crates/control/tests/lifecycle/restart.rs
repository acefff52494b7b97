//! A host that shuts down or restarts, and what the next daemon resumes.

use std::time::Duration;

use carrel_control::fake::Call;
use carrel_control::provider::{DiskSpace, EndCause};
use carrel_control::spec::RestartPolicy;
use carrel_control::{Caller, Clock, Code, Settings};
use carrel_store::{EventType as Event, SandboxState};

use super::support::{ME, World, kinds};

const NAMES: [&str; 2] = ["never", "on-boot"];

/// A daemon with a sandbox of each policy, which run.
async fn world() -> World {
    let world = World::new().await;
    for (name, policy) in NAMES.into_iter().zip([RestartPolicy::No, RestartPolicy::OnBoot]) {
        world.try_create(name, |draft| draft.restart = Some(policy)).await.unwrap();
        world.until(name, SandboxState::Ready).await;
    }
    world
}

#[tokio::test]
async fn after_a_restart_of_the_host_those_that_ran_are_resumed_by_their_policy() {
    for cause in [EndCause::HostRestarted, EndCause::HostShutdown] {
        let mut world = world().await;
        world.control.shutdown().await;
        for name in NAMES {
            world.provider.kill(name, cause);
        }
        world.crash().await;
        world.until_sequence("on-boot", 7).await;
        let told = [Event::SandboxStopRequested, Event::SandboxStopped, Event::SandboxAccepted, Event::SandboxReady];
        assert_eq!(kinds(&world.events("on-boot").await)[3..], told);
        world.until("never", SandboxState::Stopped).await;
        // The next daemon finds one that runs, and one that is not to be resumed.
        world.crash().await;
        world.control.stop(&ME, "on-boot").await.unwrap();
        world.until("on-boot", SandboxState::Stopped).await;
        assert_eq!(kinds(&world.events("never").await)[3..], told[..2]);
        world.check().await;
    }
}

#[tokio::test]
async fn a_resume_at_boot_that_a_full_disk_prevented_is_made_up_for_when_there_is_room() {
    let mut world = world().await;
    world.control.stop_for_shutdown(&ME).await.unwrap();
    for name in NAMES {
        world.until(name, SandboxState::Stopped).await;
    }
    let space = |is_low| {
        let (summary, pause_summary) = ("nothing free".to_owned(), String::new());
        Some(DiskSpace { free: if is_low { 0 } else { 2 }, reserve: 1, is_low, summary, pause_summary })
    };
    world.provider.set_disk_space(space(true));
    let asked = world.provider.disk_space_asked();
    world.crash().await;
    // It was refused at least once.
    world.until_disk_space_asked(asked + 1).await;
    assert_eq!(world.control.get(&ME, "on-boot").unwrap().state, SandboxState::Stopped);
    world.provider.set_disk_space(space(false));
    world.until("on-boot", SandboxState::Ready).await;
    assert_eq!(world.control.get(&ME, "never").unwrap().state, SandboxState::Stopped);
    world.check().await;
}

#[tokio::test]
async fn one_of_which_nothing_is_left_was_lost_with_the_host_if_it_was_ready_before_the_host_booted() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (uptime, reason) in [(Duration::ZERO, "host_restarted"), (day, "supervisor_lost")] {
        let clock = Clock::default().with_uptime(move || uptime);
        let mut world = World::with(Settings { clock, ..Settings::default() }).await;
        world.create("box1").await;
        world.until("box1", SandboxState::Ready).await;
        world.control.shutdown().await;
        world.provider.lose_machines();
        world.crash().await;
        assert_eq!(world.until("box1", SandboxState::Stopped).await.reason, reason);
        world.check().await;
    }
}

#[tokio::test]
async fn all_that_run_are_stopped_for_a_shutdown_and_resumed_by_the_next_daemon_alone() {
    let mut world = world().await;
    world.create("idle").await;
    world.until("idle", SandboxState::Ready).await;
    world.control.stop(&ME, "idle").await.unwrap();
    world.until("idle", SandboxState::Stopped).await;
    let stopping = world.control.stop_for_shutdown(&ME).await.unwrap();
    assert_eq!(stopping.iter().map(|sandbox| sandbox.id.as_str()).collect::<Vec<_>>(), NAMES);
    for name in NAMES {
        let stopped = world.until(name, SandboxState::Stopped).await;
        assert_eq!((stopped.reason.as_str(), stopped.error_code.as_str()), ("host_shutdown", ""));
    }
    assert_eq!(world.provider.running(), [""; 0]);
    world.crash().await;
    world.until("on-boot", SandboxState::Ready).await;
    assert_eq!(world.provider.running(), ["on-boot"]);
    assert_eq!(world.control.get(&ME, "never").unwrap().state, SandboxState::Stopped);
    world.check().await;
}

#[tokio::test]
async fn one_that_a_user_stopped_or_whose_supervisor_died_is_not_resumed() {
    let mut world = world().await;
    world.control.stop(&ME, "on-boot").await.unwrap();
    world.until("on-boot", SandboxState::Stopped).await;
    world.try_create("died", |draft| draft.restart = Some(RestartPolicy::OnBoot)).await.unwrap();
    world.until("died", SandboxState::Ready).await;
    world.control.shutdown().await;
    world.provider.kill("died", EndCause::SupervisorLost);
    world.provider.kill("never", EndCause::HostRestarted);
    world.crash().await;
    for name in ["died", "never"] {
        world.until(name, SandboxState::Stopped).await;
    }
    // Whatever this daemon resumes by itself is under way before the next one finds everything settled.
    world.crash().await;
    for name in ["died", "never", "on-boot"] {
        assert_eq!(world.until(name, SandboxState::Stopped).await.last_sequence, 5, "{name}");
    }
    world.check().await;
}

#[tokio::test]
async fn a_resume_at_boot_that_fails_is_not_repeated_and_keeps_nobody_from_theirs() {
    let mut world = World::new().await;
    let names: Vec<_> = (0..9).map(|number| format!("box{number}")).collect();
    for name in &names {
        world.try_create(name, |draft| draft.restart = Some(RestartPolicy::OnBoot)).await.unwrap();
        world.until(name, SandboxState::Ready).await;
    }
    world.control.stop_for_shutdown(&ME).await.unwrap();
    for name in &names {
        world.until(name, SandboxState::Stopped).await;
    }
    world.provider.fail(Call::Start, 5);
    world.crash().await;
    let mut states = Vec::new();
    for name in &names {
        world.until_sequence(name, 7).await;
        states.push(world.control.get(&ME, name).unwrap().state);
    }
    assert_eq!(states.iter().filter(|state| **state == SandboxState::Failed).count(), 5, "{states:?}");
    assert_eq!(states.iter().filter(|state| **state == SandboxState::Ready).count(), 4, "{states:?}");
    world.check().await;
}

//= promises.control-plane.sandboxes-resumed-boot
#[tokio::test]
async fn few_are_resumed_at_a_time_and_a_delete_takes_nobodys_turn() {
    let mut world = World::new().await;
    let names: Vec<_> = (0..6).map(|number| format!("box{number}")).collect();
    for name in &names {
        world.try_create(name, |draft| draft.restart = Some(RestartPolicy::OnBoot)).await.unwrap();
        world.until(name, SandboxState::Ready).await;
    }
    world.control.stop_for_shutdown(&ME).await.unwrap();
    for name in &names {
        world.until(name, SandboxState::Stopped).await;
    }
    world.provider.hold(Call::Start);
    world.crash().await;
    let count = |state| names.iter().filter(|name| world.control.get(&ME, name).unwrap().state == state).count();
    while count(SandboxState::Pending) < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!((count(SandboxState::Pending), count(SandboxState::Stopped)), (4, 2));
    let pending: Vec<_> =
        names.iter().filter(|name| world.control.get(&ME, name).unwrap().state == SandboxState::Pending).collect();
    for name in &pending {
        world.control.delete(&ME, name).await.unwrap();
        world.until(name, SandboxState::Deleted).await;
    }
    world.provider.release(Call::Start);
    for name in names.iter().filter(|name| !pending.contains(name)) {
        world.until(name, SandboxState::Ready).await;
    }
    world.check().await;
}

#[tokio::test]
async fn only_the_daemons_own_user_stops_the_sandboxes_of_all() {
    let world = world().await;
    let other = Caller { user: 1234, group: 1234, trusted: false };
    let refusal = world.control.stop_for_shutdown(&other).await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::PermissionDenied, "SHUTDOWN_FORBIDDEN"));
    assert_eq!(world.provider.running(), NAMES);
}
