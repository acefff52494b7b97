//! Turns: a prompt is queued, runs and ends. Its sender can follow it.

use tokio::sync::watch;

use crate::{agent::Prompt, log::LogPosition, session_store::QueuedPromptRecord};

/// State of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnState {
    /// End of the log before its turn started.
    pub started: Option<LogPosition>,
    /// End of the log after its turn; without a start it never ran.
    pub ended: Option<LogPosition>,
    /// Whether the agent waits for an answer.
    pub waiting: bool,
}

/// Follows a prompt.
pub type TurnHandle = watch::Receiver<TurnState>;

pub(super) struct QueuedPrompt {
    pub(super) prompt: Prompt,
    /// Whether its id is the client's.
    pub(super) has_client_id: bool,
    pub(super) state: watch::Sender<TurnState>,
}

/// The running turn.
pub(super) struct ActiveTurn {
    pub(super) id: String,
    /// `None` if the agent started it.
    pub(super) state: Option<watch::Sender<TurnState>>,
    /// When the interrupt was sent.
    pub(super) interrupted: Option<tokio::time::Instant>,
}

// === impl QueuedPrompt ===

impl QueuedPrompt {
    pub(super) fn new(prompt: Prompt, has_client_id: bool) -> Self {
        Self { prompt, has_client_id, state: watch::Sender::new(TurnState::default()) }
    }

    pub(super) fn record(&self) -> QueuedPromptRecord {
        QueuedPromptRecord { id: self.prompt.id.clone(), text: self.prompt.text.clone(), named: self.has_client_id }
    }
}

impl From<QueuedPromptRecord> for QueuedPrompt {
    fn from(record: QueuedPromptRecord) -> Self {
        Self::new(Prompt { id: record.id, text: record.text }, record.named)
    }
}
