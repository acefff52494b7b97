//! Whose turn it is: a prompt's, or one that the agent began by itself, as it does when a task in the background ends.

use serde_json::Value;

use super::native::{list, text};

/// The turn that is under way.
#[derive(Debug, Default)]
pub(super) enum Turn {
    /// None.
    #[default]
    Idle,
    /// A prompt's.
    Prompted {
        /// The prompt's id.
        id: String,
        /// Whether the agent has begun with it. A turn of its own may be under way until it does.
        began: bool,
        /// Whether it was told to stop.
        interrupted: bool,
    },
    /// One of the agent's own.
    Own {
        /// Whether it was told to stop.
        interrupted: bool,
    },
}

// === impl Turn ===

impl Turn {
    pub(super) fn prompted(id: impl Into<String>) -> Self {
        Self::Prompted { id: id.into(), began: false, interrupted: false }
    }

    /// The agent introduces itself to a turn. Says whether that is a turn of its own.
    pub(super) fn introduced(&mut self, init: &Value) -> bool {
        match self {
            Self::Idle => {
                *self = Self::Own { interrupted: false };
                true
            }
            Self::Prompted { id, began, .. } => {
                *began |= names(init, id);
                false
            }
            Self::Own { .. } => false,
        }
    }

    /// The agent begins with a prompt.
    pub(super) fn began(&mut self, prompt: &str) {
        if let Self::Prompted { id, began, .. } = self {
            *began |= id == prompt;
        }
    }

    /// The agent will not begin with a prompt. Says whether that ends the turn.
    pub(super) fn cancelled(&self, prompt: &str) -> bool {
        matches!(self, Self::Prompted { id, began: false, .. } if id == prompt)
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

    /// Whether this result ends the turn. That of a turn of the agent's own does not end a prompt's that waits behind it.
    pub(super) fn is_ended_by(&self, result: &Value) -> bool {
        match self {
            Self::Idle => false,
            Self::Own { .. } | Self::Prompted { began: true, .. } => true,
            Self::Prompted { id, began: false, .. } => names(result, id) || !is_unprompted(result),
        }
    }
}

/// Whether a message says that it belongs to this prompt.
fn names(message: &Value, prompt: &str) -> bool {
    list(message, "user_message_uuids").iter().any(|id| id == prompt)
}

/// Whether a result says that nobody prompted its turn.
fn is_unprompted(result: &Value) -> bool {
    result.get("origin").and_then(|origin| text(origin, "kind")).is_some_and(|kind| kind != "human")
}
