//! A shutdown or a restart of the host, and what the next daemon resumes.

use std::time::Duration;

use carrel_control::fake::FakeCall;
use carrel_control::provider::{DiskSpace, EndCause};
use carrel_control::spec::RestartPolicy;
use carrel_control::{Caller, Clock, Code, ControlSettings};
use carrel_store::{EventType as Event, SandboxState};

use super::support::{ME, TestDaemon, kinds};

const NAMES: [&str; 2] = ["never", "on-boot"];

/// A daemon with a running sandbox of each restart policy.
async fn daemon() -> TestDaemon {
    let daemon = TestDaemon::new().await;
    for (name, policy) in NAMES.into_iter().zip([RestartPolicy::No, RestartPolicy::OnBoot]) {
        daemon.try_create(name, |draft| draft.restart = Some(policy)).await.unwrap();
        daemon.until(name, SandboxState::Ready).await;
    }
    daemon
}

#[tokio::test]
async fn after_a_reboot_sandboxes_are_resumed_by_their_restart_policy() {
    for cause in [EndCause::HostRestarted, EndCause::HostShutdown] {
        let mut daemon = daemon().await;
        daemon.control.shutdown().await;
        for name in NAMES {
            daemon.provider.kill(name, cause);
        }
        daemon.crash().await;
        daemon.until_sequence("on-boot", 7).await;
        let events = [Event::SandboxStopRequested, Event::SandboxStopped, Event::SandboxAccepted, Event::SandboxReady];
        assert_eq!(kinds(&daemon.events("on-boot").await)[3..], events);
        daemon.until("never", SandboxState::Stopped).await;
        // The next daemon finds a running sandbox, and one that is not resumed.
        daemon.crash().await;
        daemon.control.stop(&ME, "on-boot").await.unwrap();
        daemon.until("on-boot", SandboxState::Stopped).await;
        assert_eq!(kinds(&daemon.events("never").await)[3..], events[..2]);
        daemon.check().await;
    }
}

#[tokio::test]
async fn a_resume_at_boot_is_retried_until_there_is_disk_space() {
    let mut daemon = daemon().await;
    daemon.control.stop_for_shutdown(&ME).await.unwrap();
    for name in NAMES {
        daemon.until(name, SandboxState::Stopped).await;
    }
    let space = |is_low| {
        let (summary, pause_summary) = ("nothing free".to_owned(), String::new());
        Some(DiskSpace { free: if is_low { 0 } else { 2 }, reserve: 1, is_low, summary, pause_summary })
    };
    daemon.provider.set_disk_space(space(true));
    let requested = daemon.provider.disk_space_calls();
    daemon.crash().await;
    // It was refused at least once.
    daemon.until_disk_space_calls(requested + 1).await;
    assert_eq!(daemon.control.get(&ME, "on-boot").unwrap().state, SandboxState::Stopped);
    daemon.provider.set_disk_space(space(false));
    daemon.until("on-boot", SandboxState::Ready).await;
    assert_eq!(daemon.control.get(&ME, "never").unwrap().state, SandboxState::Stopped);
    daemon.check().await;
}

#[tokio::test]
async fn a_lost_sandbox_that_was_ready_before_the_boot_was_lost_with_the_host() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (uptime, reason) in [(Duration::ZERO, "host_restarted"), (day, "supervisor_lost")] {
        let clock = Clock::default().with_uptime(move || uptime);
        let mut daemon = TestDaemon::with(ControlSettings { clock, ..ControlSettings::default() }).await;
        daemon.create("box1").await;
        daemon.until("box1", SandboxState::Ready).await;
        daemon.control.shutdown().await;
        daemon.provider.drop_running_sandboxes();
        daemon.crash().await;
        assert_eq!(daemon.until("box1", SandboxState::Stopped).await.reason, reason);
        daemon.check().await;
    }
}

#[tokio::test]
async fn running_sandboxes_are_stopped_for_a_shutdown_and_resumed_by_the_next_daemon() {
    let mut daemon = daemon().await;
    daemon.create("idle").await;
    daemon.until("idle", SandboxState::Ready).await;
    daemon.control.stop(&ME, "idle").await.unwrap();
    daemon.until("idle", SandboxState::Stopped).await;
    let stopping = daemon.control.stop_for_shutdown(&ME).await.unwrap();
    assert_eq!(stopping.iter().map(|sandbox| sandbox.id.as_str()).collect::<Vec<_>>(), NAMES);
    for name in NAMES {
        let stopped = daemon.until(name, SandboxState::Stopped).await;
        assert_eq!((stopped.reason.as_str(), stopped.error_code.as_str()), ("host_shutdown", ""));
    }
    assert_eq!(daemon.provider.running(), [""; 0]);
    daemon.crash().await;
    daemon.until("on-boot", SandboxState::Ready).await;
    assert_eq!(daemon.provider.running(), ["on-boot"]);
    assert_eq!(daemon.control.get(&ME, "never").unwrap().state, SandboxState::Stopped);
    daemon.check().await;
}

#[tokio::test]
async fn a_sandbox_that_a_user_stopped_or_whose_supervisor_died_is_not_resumed() {
    let mut daemon = daemon().await;
    daemon.control.stop(&ME, "on-boot").await.unwrap();
    daemon.until("on-boot", SandboxState::Stopped).await;
    daemon.try_create("died", |draft| draft.restart = Some(RestartPolicy::OnBoot)).await.unwrap();
    daemon.until("died", SandboxState::Ready).await;
    daemon.control.shutdown().await;
    daemon.provider.kill("died", EndCause::SupervisorLost);
    daemon.provider.kill("never", EndCause::HostRestarted);
    daemon.crash().await;
    for name in ["died", "never"] {
        daemon.until(name, SandboxState::Stopped).await;
    }
    // A resume by this daemon would have started before the next daemon finds all sandboxes stopped.
    daemon.crash().await;
    for name in ["died", "never", "on-boot"] {
        assert_eq!(daemon.until(name, SandboxState::Stopped).await.last_sequence, 5, "{name}");
    }
    daemon.check().await;
}

#[tokio::test]
async fn a_failed_resume_at_boot_is_not_retried_and_does_not_block_others() {
    let mut daemon = TestDaemon::new().await;
    let names: Vec<_> = (0..9).map(|number| format!("box{number}")).collect();
    for name in &names {
        daemon.try_create(name, |draft| draft.restart = Some(RestartPolicy::OnBoot)).await.unwrap();
        daemon.until(name, SandboxState::Ready).await;
    }
    daemon.control.stop_for_shutdown(&ME).await.unwrap();
    for name in &names {
        daemon.until(name, SandboxState::Stopped).await;
    }
    daemon.provider.fail(FakeCall::Start, 5);
    daemon.crash().await;
    let mut states = Vec::new();
    for name in &names {
        daemon.until_sequence(name, 7).await;
        states.push(daemon.control.get(&ME, name).unwrap().state);
    }
    assert_eq!(states.iter().filter(|state| **state == SandboxState::Failed).count(), 5, "{states:?}");
    assert_eq!(states.iter().filter(|state| **state == SandboxState::Ready).count(), 4, "{states:?}");
    daemon.check().await;
}

//= promises.control-plane.sandboxes-resumed-boot
#[tokio::test]
async fn few_sandboxes_are_resumed_concurrently_and_a_delete_releases_its_permit() {
    let mut daemon = TestDaemon::new().await;
    let names: Vec<_> = (0..6).map(|number| format!("box{number}")).collect();
    for name in &names {
        daemon.try_create(name, |draft| draft.restart = Some(RestartPolicy::OnBoot)).await.unwrap();
        daemon.until(name, SandboxState::Ready).await;
    }
    daemon.control.stop_for_shutdown(&ME).await.unwrap();
    for name in &names {
        daemon.until(name, SandboxState::Stopped).await;
    }
    daemon.provider.hold(FakeCall::Start);
    daemon.crash().await;
    let count = |state| names.iter().filter(|name| daemon.control.get(&ME, name).unwrap().state == state).count();
    while count(SandboxState::Pending) < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!((count(SandboxState::Pending), count(SandboxState::Stopped)), (4, 2));
    let pending: Vec<_> =
        names.iter().filter(|name| daemon.control.get(&ME, name).unwrap().state == SandboxState::Pending).collect();
    for name in &pending {
        daemon.control.delete(&ME, name).await.unwrap();
        daemon.until(name, SandboxState::Deleted).await;
    }
    daemon.provider.release(FakeCall::Start);
    for name in names.iter().filter(|name| !pending.contains(name)) {
        daemon.until(name, SandboxState::Ready).await;
    }
    daemon.check().await;
}

#[tokio::test]
async fn only_the_daemons_own_user_stops_the_sandboxes_of_all_users() {
    let daemon = daemon().await;
    let other = Caller { user: 1234, group: 1234, trusted: false };
    let refusal = daemon.control.stop_for_shutdown(&other).await.unwrap_err();
    assert_eq!((refusal.code, refusal.reason), (Code::PermissionDenied, "SHUTDOWN_FORBIDDEN"));
    assert_eq!(daemon.provider.running(), NAMES);
}
