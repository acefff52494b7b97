//! Turns: a prompt waits, runs, ends. Who sent it can follow it by its ticket.

use tokio::sync::watch;

use crate::{agent::Prompt, keep::WaitingRecord, log::Position};

/// Where a prompt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnState {
    /// The end of the log before its turn began.
    pub begun: Option<Position>,
    /// The end of the log when its turn was over; without a beginning it never ran.
    pub ended: Option<Position>,
    /// Whether the agent waits for an answer.
    pub waiting: bool,
}

/// Follows a prompt.
pub type Ticket = watch::Receiver<TurnState>;

/// A prompt that waits for its turn.
pub(super) struct Queued {
    pub(super) prompt: Prompt,
    /// Whether the client gave it its id.
    pub(super) named: bool,
    pub(super) state: watch::Sender<TurnState>,
}

/// The turn that is running.
pub(super) struct Turn {
    pub(super) id: String,
    /// Nobody follows a turn that nobody prompted.
    pub(super) state: Option<watch::Sender<TurnState>>,
    /// When it was told to stop.
    pub(super) interrupted: Option<tokio::time::Instant>,
}

// === impl Queued ===

impl Queued {
    pub(super) fn new(prompt: Prompt, named: bool) -> Self {
        Self { prompt, named, state: watch::Sender::new(TurnState::default()) }
    }

    pub(super) fn record(&self) -> WaitingRecord {
        WaitingRecord { id: self.prompt.id.clone(), text: self.prompt.text.clone(), named: self.named }
    }
}

impl From<WaitingRecord> for Queued {
    fn from(record: WaitingRecord) -> Self {
        Self::new(Prompt { id: record.id, text: record.text }, record.named)
    }
}
