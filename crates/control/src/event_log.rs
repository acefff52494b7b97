//! Writes one line to the daemon's log for each lifecycle event of a sandbox.

use std::sync::Arc;

use carrel_store::{AllEvents, Event, EventDetails, EventType, SandboxState, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The maximum number of events that the store returns at a time.
const BATCH: usize = 256;
/// How many full batches in a row are logged. After that, events arrive faster than they can be written, and are
/// skipped.
const MAX_FULL_BATCHES: usize = 16;

/// How far the log is behind the events.
#[derive(Debug, Default)]
struct LogBacklog {
    /// How many batches in a row were full.
    full: usize,
    skipped: usize,
}

/// The task that logs committed events. It ends after those that are committed when this is dropped.
#[derive(Debug)]
pub(crate) struct EventLog {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

// === impl EventLog ===

impl EventLog {
    /// Logs the events that are committed from now on.
    pub(crate) fn start(store: Store) -> Self {
        let events = store.all_events(None);
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(log_events(store, events, stopped)) }
    }

    /// Logs the events that are committed by now, and ends.
    pub(crate) async fn finish(self) {
        drop(self.stop);
        // A panic has been logged.
        let _ended = self.task.await;
    }
}

async fn log_events(store: Store, mut events: AllEvents, mut stopped: oneshot::Receiver<()>) {
    let mut backlog = LogBacklog::default();
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
                tracing::warn!(%error, "events cannot be read and are no longer logged");
                return;
            }
        };
        if backlog.should_skip(batch.len()) {
            continue;
        }
        if let Some(skipped) = backlog.take_skipped() {
            tracing::warn!(skipped, "events were not logged: more arrived than could be written");
        }
        for event in &batch {
            log_event(event, owner(&store, event));
        }
        // Other tasks of this thread go first.
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
        EventDetails::None => tracing::info!(event = kind, sandbox, owner, state, sequence, "lifecycle"),
        EventDetails::Phase { phase, error_code, error_message, reason } => tracing::info!(
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
        EventDetails::Exec { exec, exit_code, error_code, .. } => tracing::info!(
            event = kind,
            sandbox,
            owner,
            state,
            sequence,
            exec = exec.as_str(),
            exit_code = (event.kind != EventType::ExecStarted).then_some(*exit_code),
            // The error message may contain parts of the command, which may be secret.
            error_code = some(error_code),
            "lifecycle"
        ),
        EventDetails::Service { name, error_code, .. } => tracing::info!(
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

/// The name of an event, as `carrel events` shows it.
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
        EventType::ServiceReady => "SERVICE_READY",
        EventType::ServiceFailed => "SERVICE_FAILED",
        EventType::SandboxPaused => "SANDBOX_PAUSED",
        EventType::SandboxUnpaused => "SANDBOX_UNPAUSED",
    }
}

fn state_name(state: SandboxState) -> String {
    format!("{state:?}").to_uppercase()
}

// === impl LogBacklog ===

impl LogBacklog {
    /// Whether a batch is skipped.
    fn should_skip(&mut self, length: usize) -> bool {
        self.full = if length < BATCH { 0 } else { self.full + 1 };
        let skip = self.full > MAX_FULL_BATCHES;
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
    fn a_log_that_falls_behind_skips_events_and_reports_how_many() {
        let mut backlog = LogBacklog::default();
        assert!((0..MAX_FULL_BATCHES).all(|_| !backlog.should_skip(BATCH)));
        assert!(backlog.should_skip(BATCH) && backlog.should_skip(BATCH));
        assert!(!backlog.should_skip(3));
        assert_eq!((backlog.take_skipped(), backlog.take_skipped()), (Some(2 * BATCH), None));
        assert!(!backlog.should_skip(BATCH));
    }

    #[test]
    fn an_event_is_logged_under_the_name_of_its_type() {
        for &kind in EventType::ALL {
            let words: String = format!("{kind:?}")
                .chars()
                .flat_map(|letter| {
                    letter.is_uppercase().then_some('_').into_iter().chain([letter.to_ascii_uppercase()])
                })
                .collect();
            assert_eq!(event_name(kind), words.trim_start_matches('_'));
        }
    }
}
