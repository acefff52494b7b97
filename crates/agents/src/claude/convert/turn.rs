//! The running turn: a prompt's, or one that the agent started itself, such as after a background task.

use serde_json::Value;

use super::native::{list, text};

#[derive(Debug, Default)]
pub(super) enum ClaudeTurn {
    /// No turn.
    #[default]
    Idle,
    Prompted {
        /// The prompt's id.
        id: String,
        /// Whether the agent has started it. Until then, a turn of its own may be running.
        started: bool,
        /// Whether an interrupt was sent.
        interrupted: bool,
    },
    /// Turn that the agent started itself.
    Own {
        /// Whether an interrupt was sent.
        interrupted: bool,
    },
}

// === impl ClaudeTurn ===

impl ClaudeTurn {
    pub(super) fn prompted(id: impl Into<String>) -> Self {
        Self::Prompted { id: id.into(), started: false, interrupted: false }
    }

    /// Handles `init`. Returns whether it starts a turn of the agent's own.
    pub(super) fn started(&mut self, init: &Value) -> bool {
        match self {
            Self::Idle => {
                *self = Self::Own { interrupted: false };
                true
            }
            Self::Prompted { id, started, .. } => {
                *started |= names_prompt(init, id);
                false
            }
            Self::Own { .. } => false,
        }
    }

    /// The agent started a prompt.
    pub(super) fn prompt_started(&mut self, prompt: &str) {
        if let Self::Prompted { id, started, .. } = self {
            *started |= id == prompt;
        }
    }

    /// The agent dropped a prompt. Returns whether that ends the turn.
    pub(super) fn cancelled(&self, prompt: &str) -> bool {
        matches!(self, Self::Prompted { id, started: false, .. } if id == prompt)
    }

    pub(super) const fn interrupt(&mut self) {
        match self {
            Self::Idle => {}
            Self::Prompted { interrupted, .. } | Self::Own { interrupted } => *interrupted = true,
        }
    }

    pub(super) const fn is_interrupted(&self) -> bool {
        matches!(self, Self::Prompted { interrupted: true, .. } | Self::Own { interrupted: true })
    }

    /// Whether this result ends the turn. The result of the agent's own turn does not end that of a queued prompt.
    pub(super) fn is_ended_by(&self, result: &Value) -> bool {
        match self {
            Self::Idle => false,
            Self::Own { .. } | Self::Prompted { started: true, .. } => true,
            Self::Prompted { id, started: false, .. } => names_prompt(result, id) || !is_unprompted(result),
        }
    }
}

/// Whether a message names this prompt.
fn names_prompt(message: &Value, prompt: &str) -> bool {
    list(message, "user_message_uuids").iter().any(|id| id == prompt)
}

/// Whether a result belongs to a turn without a prompt.
fn is_unprompted(result: &Value) -> bool {
    result.get("origin").and_then(|origin| text(origin, "kind")).is_some_and(|kind| kind != "human")
}
