//! The state of a session's conversation.

use std::{future::Future, pin::Pin};

use crate::agent::{AgentError, AgentEvent, Conversation};

pub(super) type OpenResult = Result<Box<dyn Conversation>, AgentError>;

#[derive(Default)]
pub(super) enum ConversationState {
    #[default]
    Closed,
    Opening(Pin<Box<dyn Future<Output = OpenResult> + Send>>),
    Open(Box<dyn Conversation>),
}

/// What the conversation reports.
pub(super) enum ConversationEvent {
    Opened(OpenResult),
    Facts,
}

// === impl ConversationState ===

impl ConversationState {
    /// Waits for the next events; for ever if it is closed. Cancel-safe.
    pub(super) async fn next_event(&mut self, events: &mut Vec<AgentEvent>) -> ConversationEvent {
        match self {
            Self::Closed => std::future::pending().await,
            Self::Opening(opening) => ConversationEvent::Opened(opening.await),
            Self::Open(conversation) => {
                conversation.next(events).await;
                ConversationEvent::Facts
            }
        }
    }

    pub(super) fn open(&mut self) -> Option<&mut Box<dyn Conversation>> {
        match self {
            Self::Open(conversation) => Some(conversation),
            _ => None,
        }
    }
}
