//! One line of the daemon's log for each step in the life of a sandbox.

use std::sync::Arc;

use carrel_store::{AllEvents, Details, Event, EventType, SandboxState, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How many events the store gives at once, at most.
const BATCH: usize = 256;
/// How many full batches are logged in a row before the rest is skipped: more arrives than can be written.
const BEHIND: usize = 16;

/// How far the log is behind the events.
#[derive(Debug, Default)]
struct Backlog {
    /// How many batches in a row were full.
    full: usize,
    skipped: usize,
}

/// The task that logs events as they are committed. It ends when this is dropped, after what is committed by then.
#[derive(Debug)]
pub(crate) struct EventLog {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

// === impl EventLog ===

impl EventLog {
    /// Logs whatever is committed from now on.
    pub(crate) fn start(store: Store) -> Self {
        let events = store.all_events(None);
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(log_events(store, events, stopped)) }
    }

    /// Logs what is committed by now, and ends.
    pub(crate) async fn finish(self) {
        drop(self.stop);
        // One that panicked has said so.
        let _ended = self.task.await;
    }
}

async fn log_events(store: Store, mut events: AllEvents, mut stopped: oneshot::Receiver<()>) {
    let mut backlog = Backlog::default();
    loop {
        let batch = tokio::select! {
            biased;
            batch = events.next() => batch,
            _ = &mut stopped => return,
        };
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "events cannot be read, and are not logged from now on");
                return;
            }
        };
        if backlog.is_to_skip(batch.len()) {
            continue;
        }
        if let Some(skipped) = backlog.take_skipped() {
            tracing::warn!(skipped, "events were not logged: more happened than could be written");
        }
        for event in &batch {
            log_event(event, owner(&store, event));
        }
        // Whoever waits for this thread goes first.
        tokio::task::yield_now().await;
    }
}

fn owner(store: &Store, event: &Arc<Event>) -> Option<u32> {
    store.sandbox(&event.sandbox).map(|sandbox| sandbox.owner)
}

fn log_event(event: &Event, owner: Option<u32>) {
    let (kind, state, sequence) = (event_name(event.kind), state_name(event.state), event.sequence);
    let sandbox = event.sandbox.as_str();
    let owner = owner.filter(|owner| *owner != u32::MAX).map(u64::from);

    match &event.details {
        Details::None => tracing::info!(event = kind, sandbox, owner, state, sequence, "lifecycle"),
        Details::Phase { phase, error_code, error_message, reason } => tracing::info!(
            event = kind,
            sandbox,
            owner,
            state,
            sequence,
            phase = some(phase),
            reason = some(reason),
            error_code = some(error_code),
            error = some(error_message),
            "lifecycle"
        ),
        Details::Exec { exec, exit_code, error_code, .. } => tracing::info!(
            event = kind,
            sandbox,
            owner,
            state,
            sequence,
            exec = exec.as_str(),
            exit_code = (event.kind != EventType::ExecStarted).then_some(*exit_code),
            // What failed in words may have words of the command in it, and those may be secret.
            error_code = some(error_code),
            "lifecycle"
        ),
        Details::Service { name, error_code, .. } => tracing::info!(
            event = kind,
            sandbox,
            owner,
            state,
            sequence,
            service = name.as_str(),
            error_code = some(error_code),
            "lifecycle"
        ),
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// As the API calls them.
fn event_name(kind: EventType) -> &'static str {
    match kind {
        EventType::SandboxAccepted => "SANDBOX_ACCEPTED",
        EventType::SandboxPreparing => "SANDBOX_PREPARING",
        EventType::SandboxReady => "SANDBOX_READY",
        EventType::SandboxFailed => "SANDBOX_FAILED",
        EventType::SandboxStopRequested => "SANDBOX_STOP_REQUESTED",
        EventType::SandboxStopped => "SANDBOX_STOPPED",
        EventType::SandboxDeleteRequested => "SANDBOX_DELETE_REQUESTED",
        EventType::SandboxDeleted => "SANDBOX_DELETED",
        EventType::ExecStarted => "EXEC_STARTED",
        EventType::ExecFinished => "EXEC_FINISHED",
        EventType::ExecFailed => "EXEC_FAILED",
        EventType::ExecCancelled => "EXEC_CANCELLED",
        EventType::ServiceReady => "COMPANION_CONTAINER_READY",
        EventType::ServiceFailed => "COMPANION_CONTAINER_FAILED",
        EventType::SandboxPaused => "SANDBOX_PAUSED",
        EventType::SandboxUnpaused => "SANDBOX_UNPAUSED",
    }
}

fn state_name(state: SandboxState) -> String {
    format!("{state:?}").to_uppercase()
}

// === impl Backlog ===

impl Backlog {
    /// Whether a batch is left out.
    fn is_to_skip(&mut self, length: usize) -> bool {
        self.full = if length < BATCH { 0 } else { self.full + 1 };
        let skip = self.full > BEHIND;
        self.skipped += if skip { length } else { 0 };
        skip
    }

    fn take_skipped(&mut self) -> Option<usize> {
        Some(std::mem::take(&mut self.skipped)).filter(|skipped| *skipped > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_falls_behind_skips_and_says_how_many() {
        let mut backlog = Backlog::default();
        assert!((0..BEHIND).all(|_| !backlog.is_to_skip(BATCH)));
        assert!(backlog.is_to_skip(BATCH) && backlog.is_to_skip(BATCH));
        assert!(!backlog.is_to_skip(3));
        assert_eq!((backlog.take_skipped(), backlog.take_skipped()), (Some(2 * BATCH), None));
        assert!(!backlog.is_to_skip(BATCH));
    }
}
