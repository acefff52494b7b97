//! Waiting until a sandbox is as it was asked to be: a look, then the log from there on, and a look at every event.

use carrel_api::agbox::v1::{SandboxEvent, SandboxHandle, SandboxState, SubscribeSandboxEventsRequest};
use tonic::{Code, Status, Streaming};

use super::{DaemonClient, is_unknown, render, status_failure};
use crate::failure::Failure;

/// How often a stream may break without an event in between.
const TRIES: u32 = 5;

/// Waits until a sandbox is in a state, from how it was seen last. Returns how it is then; none if nothing is known of it
/// any more.
pub(crate) async fn until(
    daemon: &mut DaemonClient,
    seen: SandboxHandle,
    target: SandboxState,
) -> Result<Option<SandboxHandle>, Failure> {
    let (id, mut seen, mut broken) = (seen.sandbox_id.clone(), seen, 0);
    loop {
        if is_there(&seen, target)? {
            return Ok(Some(seen));
        }
        let status = match follow(daemon, &mut seen, target).await {
            Ok(changed) => {
                broken = if changed { 0 } else { broken };
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
                    Ok(handle) => seen = handle,
                    Err(status) if is_unknown(&status) && target == SandboxState::Deleted => return Ok(None),
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => return Err(status_failure(&status)),
                }
            }
            _ => return Err(status_failure(&status)),
        }
    }
}

/// Follows the log from where a sandbox was seen; returns whether an event may have changed the result.
async fn follow(daemon: &mut DaemonClient, seen: &mut SandboxHandle, target: SandboxState) -> Result<bool, Status> {
    let mut events = subscribe(daemon, &seen.sandbox_id, seen.last_event_sequence).await?;
    while let Some(event) = events.message().await? {
        if event.sequence <= seen.last_event_sequence {
            continue;
        }
        let reached = event.sandbox_state() == target;
        *seen = daemon.get(&seen.sandbox_id).await?;
        // It may be something else by now: it was what was asked for.
        if reached {
            seen.set_state(target);
        }
        if reached || is_there(seen, target).unwrap_or(true) {
            return Ok(true);
        }
    }
    Err(Status::unavailable("the daemon ended the stream"))
}

/// What happens to a sandbox after an event.
pub(crate) async fn subscribe(
    daemon: &mut DaemonClient,
    id: &str,
    from_sequence: u64,
) -> Result<Streaming<SandboxEvent>, Status> {
    let request =
        SubscribeSandboxEventsRequest { sandbox_id: id.to_owned(), from_sequence, include_current_snapshot: false };
    daemon.sandboxes.subscribe_sandbox_events(request).await.map(tonic::Response::into_inner)
}

/// Whether a sandbox is as it was asked to be; a failure, if it cannot become so any more.
fn is_there(seen: &SandboxHandle, target: SandboxState) -> Result<bool, Failure> {
    use SandboxState::{Deleted, Deleting, Failed, Pending, Ready, Stopped, Unspecified};
    let (id, state) = (&seen.sandbox_id, seen.state());
    match (target, state) {
        _ if state == target => Ok(true),
        (_, Failed) => {
            let words = format!("the sandbox {id:?} failed: {}", seen.error_message);
            let reason = Some(seen.error_code.clone()).filter(|reason| !reason.is_empty());
            Err(Failure { reason, ..Failure::new("sandbox_failed", words) }.hint(format!("carrel events {id}")))
        }
        (Ready, Stopped | Deleting | Deleted) | (Stopped, Deleting | Deleted) => {
            let words = format!("the sandbox {id:?} is {} by now: by another request", render::state(state));
            Err(Failure::new("sandbox_changed", words).hint(format!("carrel events {id}")))
        }
        (_, Unspecified | Pending | Ready | Stopped | Deleting | Deleted) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(state: SandboxState) -> SandboxHandle {
        SandboxHandle {
            sandbox_id: "web1".to_owned(),
            state: state.into(),
            error_code: "CONTAINER_OOM".to_owned(),
            error_message: "no memory".to_owned(),
            ..SandboxHandle::default()
        }
    }

    #[test]
    fn a_wait_ends_where_it_was_asked_to_or_where_that_cannot_be_any_more() {
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
            assert_eq!(is_there(&seen(now), target).ok(), is, "{target:?} {now:?}");
        }
    }

    #[test]
    fn a_failed_sandbox_is_reported_with_its_reason() {
        let failure = is_there(&seen(SandboxState::Failed), SandboxState::Ready).unwrap_err();
        assert_eq!(failure.message, "the sandbox \"web1\" failed: no memory");
        assert_eq!(failure.reason.as_deref(), Some("CONTAINER_OOM"));
    }
}
