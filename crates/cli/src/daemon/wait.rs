//! Waits until a sandbox reaches a state: queries it, then follows its events and queries it after each.

#[cfg(test)]
pub(crate) mod scripted_daemon;
#[cfg(test)]
mod tests;

use carrel_api::agbox::v1::{SandboxEvent, SandboxHandle, SandboxState, SubscribeSandboxEventsRequest};
use tonic::{Code, Status, Streaming};

use super::{DaemonClient, is_unknown, status_failure};
use crate::failure::Failure;

/// How often a stream may break without an event in between.
const TRIES: u32 = 5;

/// Waits until a sandbox is in a state, from its last known handle. Returns how it is then; none if nothing is known of it
/// any more.
pub(crate) async fn until(
    daemon: &mut DaemonClient,
    handle: SandboxHandle,
    target: SandboxState,
) -> Result<Option<SandboxHandle>, Failure> {
    let (id, mut handle, mut broken) = (handle.sandbox_id.clone(), handle, 0);
    loop {
        if is_reached(&handle, target)? {
            return Ok(Some(handle));
        }
        let status = match follow(daemon, &mut handle, target).await {
            Ok(FollowOutcome::Reached) => return Ok(Some(handle)),
            Ok(FollowOutcome::Changed) => {
                broken = 0;
                continue;
            }
            Err(status) => status,
        };
        broken += 1;
        match status.code() {
            Code::NotFound if target == SandboxState::Deleted => return Ok(None),
            // The next daemon knows the same sandboxes. It is not started here, because that would conflict with an upgrade
            // that replaces the daemon.
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal if broken <= TRIES => {
                *daemon = DaemonClient::reconnect().await?;
                match daemon.get(&id).await {
                    Ok(current) => handle = current,
                    Err(status) if is_unknown(&status) && target == SandboxState::Deleted => return Ok(None),
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => return Err(status_failure(&status)),
                }
            }
            _ => return Err(status_failure(&status)),
        }
    }
}

/// What the events of a sandbox showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowOutcome {
    /// The sandbox was in the target state, whatever its state is now.
    Reached,
    /// Its state may have changed.
    Changed,
}

/// Follows the events of a sandbox, and queries it after each.
async fn follow(
    daemon: &mut DaemonClient,
    handle: &mut SandboxHandle,
    target: SandboxState,
) -> Result<FollowOutcome, Status> {
    let mut events = subscribe(daemon, &handle.sandbox_id, handle.last_event_sequence).await?;
    while let Some(event) = events.message().await? {
        if event.sequence <= handle.last_event_sequence {
            continue;
        }
        *handle = daemon.get(&handle.sandbox_id).await?;
        if let Some(followed) = followed(&event, handle, target) {
            return Ok(followed);
        }
    }
    Err(Status::unavailable("the daemon ended the stream"))
}

/// What an event and the state after it mean for the wait; none to continue waiting.
fn followed(event: &SandboxEvent, handle: &SandboxHandle, target: SandboxState) -> Option<FollowOutcome> {
    // The state may have changed since, but it was reached; a sandbox that has failed since is a failure.
    if event.sandbox_state() == target && handle.state() != SandboxState::Failed {
        return Some(FollowOutcome::Reached);
    }
    match is_reached(handle, target) {
        Ok(true) => Some(FollowOutcome::Reached),
        Err(_) => Some(FollowOutcome::Changed),
        Ok(false) => None,
    }
}

/// Subscribes to the events of a sandbox after a sequence.
pub(crate) async fn subscribe(
    daemon: &mut DaemonClient,
    id: &str,
    from_sequence: u64,
) -> Result<Streaming<SandboxEvent>, Status> {
    let request =
        SubscribeSandboxEventsRequest { sandbox_id: id.to_owned(), from_sequence, include_current_snapshot: false };
    daemon.sandboxes.subscribe_sandbox_events(request).await.map(tonic::Response::into_inner)
}

/// Whether a sandbox is in the target state; a failure if it cannot reach that any more.
fn is_reached(handle: &SandboxHandle, target: SandboxState) -> Result<bool, Failure> {
    use SandboxState::{Deleted, Deleting, Failed, Pending, Ready, Stopped, Unspecified};
    let (id, state) = (&handle.sandbox_id, handle.state());
    match (target, state) {
        _ if state == target => Ok(true),
        (_, Failed) => {
            let message = format!("the sandbox {id:?} failed: {}", handle.error_message);
            let reason = Some(handle.error_code.clone()).filter(|reason| !reason.is_empty());
            Err(Failure { reason, ..Failure::new("sandbox_failed", message) }.hint(format!("carrel events {id}")))
        }
        (Ready, Stopped | Deleting | Deleted) | (Stopped, Deleting | Deleted) => {
            let request = match state {
                Stopped => "was stopped",
                Deleting => "is being removed",
                _ => "was removed",
            };
            let message = format!("the sandbox {id:?} {request} by another request");
            Err(Failure::new("sandbox_changed", message).hint(format!("carrel events {id}")))
        }
        (_, Unspecified | Pending | Ready | Stopped | Deleting | Deleted) => Ok(false),
    }
}
