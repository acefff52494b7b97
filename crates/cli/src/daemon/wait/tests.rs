//! Waits, against events and states.

use super::scripted_daemon::{Call, ScriptedDaemon};
use super::*;

/// A sandbox with a newest event.
fn at(sequence: u64, state: SandboxState) -> SandboxHandle {
    SandboxHandle { last_event_sequence: sequence, ..in_state(state) }
}

/// An event with the state that it announces.
fn event(sequence: u64, state: SandboxState) -> SandboxEvent {
    SandboxEvent { sequence, sandbox_state: state.into(), ..SandboxEvent::default() }
}

fn in_state(state: SandboxState) -> SandboxHandle {
    SandboxHandle {
        sandbox_id: "web1".to_owned(),
        state: state.into(),
        error_code: "CONTAINER_OOM".to_owned(),
        error_message: "no memory".to_owned(),
        ..SandboxHandle::default()
    }
}

#[test]
fn a_wait_ends_when_the_state_is_reached_or_cannot_be_reached() {
    use SandboxState::{Deleted, Deleting, Failed, Pending, Ready, Stopped};
    for (target, now, is) in [
        (Ready, Pending, Some(false)),
        (Ready, Ready, Some(true)),
        (Ready, Failed, None),
        (Ready, Deleting, None),
        (Stopped, Ready, Some(false)),
        (Stopped, Stopped, Some(true)),
        (Stopped, Deleted, None),
        (Deleted, Deleting, Some(false)),
        (Deleted, Stopped, Some(false)),
        (Deleted, Deleted, Some(true)),
        (Deleted, Failed, None),
    ] {
        assert_eq!(is_reached(&in_state(now), target).ok(), is, "{target:?} {now:?}");
    }
}

#[test]
fn a_state_that_was_reached_counts_even_if_it_has_changed_since() {
    use SandboxState::{Failed, Pending, Ready, Stopped};
    for (target, event, now, expected) in [
        (Ready, Pending, Pending, None),
        (Ready, Ready, Ready, Some(FollowOutcome::Reached)),
        (Ready, Pending, Ready, Some(FollowOutcome::Reached)),
        // It was resumed right after it stopped.
        (Stopped, Stopped, Ready, Some(FollowOutcome::Reached)),
        // Its command exited at once.
        (Ready, Ready, Stopped, Some(FollowOutcome::Reached)),
        (Ready, Pending, Stopped, Some(FollowOutcome::Changed)),
        (Ready, Ready, Failed, Some(FollowOutcome::Changed)),
    ] {
        let event = SandboxEvent { sandbox_state: event.into(), ..SandboxEvent::default() };
        assert_eq!(followed(&event, &in_state(now), target), expected, "{target:?} {event:?} {now:?}");
    }
}

#[test]
fn a_failed_sandbox_is_reported_with_its_reason() {
    let failure = is_reached(&in_state(SandboxState::Failed), SandboxState::Ready).unwrap_err();
    assert_eq!(failure.message, "the sandbox \"web1\" failed: no memory");
    assert_eq!(failure.reason.as_deref(), Some("CONTAINER_OOM"));
}

//= control.subscription.one-wait-one-subscription
//= control.order.clients-wait-baselines-drop
//= control.subscription.mechanism-wait-nothing-polls
#[tokio::test]
async fn a_wait_subscribes_once_from_its_baseline_and_reads_only_after_new_events() {
    use SandboxState::{Pending, Ready};
    let scripted = ScriptedDaemon::start(vec![at(5, Pending), at(6, Ready)]);
    let mut daemon = scripted.client().await;
    // The baseline covers the first two, and the read after the third covers the fourth: what they announce is past.
    for (sequence, state) in [(2, Ready), (3, Ready), (4, Pending), (5, Ready), (6, Ready), (7, Ready)] {
        scripted.emit(event(sequence, state));
    }
    let reached = until(&mut daemon, at(3, Pending), Ready).await.unwrap().unwrap();
    // The state that the daemon returned, not that of the event.
    assert_eq!(reached, at(6, Ready));
    assert_eq!(scripted.calls(), [Call::Subscribe(3), Call::Get(5), Call::Get(6)]);
}

//= control.subscription.mechanism-wait-nothing-polls
#[tokio::test(start_paused = true)]
async fn a_wait_calls_nothing_while_there_are_no_events() {
    use SandboxState::{Pending, Ready};
    let scripted = ScriptedDaemon::start(vec![at(4, Pending), at(5, Ready)]);
    let mut daemon = scripted.client().await;
    let waiting = tokio::spawn(async move { until(&mut daemon, at(3, Pending), Ready).await });
    scripted.emit(event(4, Pending));
    scripted.called(2).await;
    // A client that polls would be due many times: the clock advances while all tasks wait.
    tokio::time::sleep(std::time::Duration::from_secs(24 * 60 * 60)).await;
    scripted.emit(event(5, Ready));
    assert_eq!(waiting.await.unwrap().unwrap(), Some(at(5, Ready)));
    assert_eq!(scripted.calls(), [Call::Subscribe(3), Call::Get(4), Call::Get(5)]);
}

//= control.order.clients-wait-baselines-drop
#[tokio::test]
async fn a_baseline_in_the_target_state_needs_no_call() {
    let scripted = ScriptedDaemon::start(Vec::new());
    let mut daemon = scripted.client().await;
    let baseline = at(3, SandboxState::Ready);
    assert_eq!(until(&mut daemon, baseline.clone(), SandboxState::Ready).await.unwrap(), Some(baseline));
    assert_eq!(scripted.calls(), []);
}

//= control.order.clients-wait-baselines-drop
#[tokio::test]
async fn an_event_of_the_target_state_is_no_success_if_the_sandbox_has_failed_since() {
    let scripted = ScriptedDaemon::start(vec![at(5, SandboxState::Failed)]);
    let mut daemon = scripted.client().await;
    scripted.emit(event(4, SandboxState::Ready));
    let failure = until(&mut daemon, at(3, SandboxState::Pending), SandboxState::Ready).await.unwrap_err();
    assert_eq!(failure.reason.as_deref(), Some("CONTAINER_OOM"));
    assert_eq!(scripted.calls(), [Call::Subscribe(3), Call::Get(5)]);
}

#[test]
fn a_state_that_another_request_caused_is_reported_as_such() {
    use SandboxState::{Deleted, Deleting, Ready, Stopped};
    for (state, words) in [(Stopped, "was stopped"), (Deleting, "is being removed"), (Deleted, "was removed")] {
        let failure = is_reached(&in_state(state), Ready).unwrap_err();
        assert_eq!(failure.message, format!("the sandbox \"web1\" {words} by another request"));
    }
}
