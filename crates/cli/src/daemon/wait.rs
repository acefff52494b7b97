//! Waiting until a sandbox is as it was asked to be: a look, then the log from there on, and a look at every event.

use carrel_api::agbox::v1::{SandboxEvent, SandboxHandle, SandboxState, SubscribeSandboxEventsRequest};
use tonic::{Code, Status, Streaming};

use super::{Daemon, is_unknown, refused, told};
use crate::failure::Failure;

/// How often a stream may break before anything was heard on it.
const TRIES: u32 = 5;

/// Waits until a sandbox is in a state, from how it was seen last. Returns how it is then; none if nothing is known of it
/// any more.
pub(crate) async fn until(
    daemon: &mut Daemon,
    seen: SandboxHandle,
    target: SandboxState,
) -> Result<Option<SandboxHandle>, Failure> {
    let (id, mut seen, mut broken) = (seen.sandbox_id.clone(), seen, 0);
    loop {
        if is_there(&seen, target)? {
            return Ok(Some(seen));
        }
        let status = match follow(daemon, &mut seen, target).await {
            Ok(Followed::Reached) => return Ok(Some(seen)),
            Ok(Followed::Changed) => {
                broken = 0;
                continue;
            }
            Err(status) => status,
        };
        broken += 1;
        match status.code() {
            Code::NotFound if target == SandboxState::Deleted => return Ok(None),
            // Whoever serves next knows everything that this one did. It is not for us to start it: one that is replaced
            // has a successor, which ours would be in the way of.
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal if broken <= TRIES => {
                *daemon = Daemon::returned().await?;
                match daemon.get(&id).await {
                    Ok(handle) => seen = handle,
                    Err(status) if is_unknown(&status) && target == SandboxState::Deleted => return Ok(None),
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => return Err(refused(&status)),
                }
            }
            _ => return Err(refused(&status)),
        }
    }
}

/// What the log of a sandbox said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followed {
    /// It was in the state, whatever it is in by now.
    Reached,
    /// It is worth another look.
    Changed,
}

/// Follows the log from where a sandbox was seen, and sees how it is after each event.
async fn follow(daemon: &mut Daemon, seen: &mut SandboxHandle, target: SandboxState) -> Result<Followed, Status> {
    let mut events = subscribe(daemon, &seen.sandbox_id, seen.last_event_sequence).await?;
    while let Some(event) = events.message().await? {
        if event.sequence <= seen.last_event_sequence {
            continue;
        }
        *seen = daemon.get(&seen.sandbox_id).await?;
        if let Some(followed) = followed(&event, seen, target) {
            return Ok(followed);
        }
    }
    Err(Status::unavailable("the daemon ended the stream"))
}

/// What an event, and how the sandbox is seen after it, mean for whoever waits; none is to wait on.
fn followed(event: &SandboxEvent, seen: &SandboxHandle, target: SandboxState) -> Option<Followed> {
    // It may be something else by now: it was what was asked for. One that has failed since is of no use to anybody.
    if event.sandbox_state() == target && seen.state() != SandboxState::Failed {
        return Some(Followed::Reached);
    }
    match is_there(seen, target) {
        Ok(true) => Some(Followed::Reached),
        Err(_) => Some(Followed::Changed),
        Ok(false) => None,
    }
}

/// What happens to a sandbox after an event.
pub(crate) async fn subscribe(
    daemon: &mut Daemon,
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
            let words = format!("the sandbox {id:?} is {} by now: somebody else asked for it", told::state(state));
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
    fn a_state_that_was_reached_counts_although_the_sandbox_is_in_another_by_now() {
        use SandboxState::{Failed, Pending, Ready, Stopped};
        for (target, event, now, expected) in [
            (Ready, Pending, Pending, None),
            (Ready, Ready, Ready, Some(Followed::Reached)),
            (Ready, Pending, Ready, Some(Followed::Reached)),
            // It was resumed right after it stopped.
            (Stopped, Stopped, Ready, Some(Followed::Reached)),
            // Its command exited at once.
            (Ready, Ready, Stopped, Some(Followed::Reached)),
            (Ready, Pending, Stopped, Some(Followed::Changed)),
            (Ready, Ready, Failed, Some(Followed::Changed)),
        ] {
            let event = SandboxEvent { sandbox_state: event.into(), ..SandboxEvent::default() };
            assert_eq!(followed(&event, &seen(now), target), expected, "{target:?} {event:?} {now:?}");
        }
    }

    #[test]
    fn a_failed_one_is_told_with_its_reason() {
        let failure = is_there(&seen(SandboxState::Failed), SandboxState::Ready).unwrap_err();
        assert_eq!(failure.message, "the sandbox \"web1\" failed: no memory");
        assert_eq!(failure.reason.as_deref(), Some("CONTAINER_OOM"));
    }
}
