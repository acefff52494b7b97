//! The conversation of a session: there is none, it is being opened, or it is open.

use std::{future::Future, pin::Pin};

use crate::agent::{AgentError, Conversation, Fact};

pub(super) type Opened = Result<Box<dyn Conversation>, AgentError>;

/// The conversation with the agent.
#[derive(Default)]
pub(super) enum Talk {
    #[default]
    None,
    Opening(Pin<Box<dyn Future<Output = Opened> + Send>>),
    Open(Box<dyn Conversation>),
}

/// What came of waiting for it.
pub(super) enum Happened {
    Opened(Opened),
    Facts,
}

// === impl Talk ===

impl Talk {
    /// Waits for what happens; for ever if there is nobody to talk to. May be dropped and called again.
    pub(super) async fn happens(&mut self, facts: &mut Vec<Fact>) -> Happened {
        match self {
            Self::None => std::future::pending().await,
            Self::Opening(opening) => Happened::Opened(opening.await),
            Self::Open(conversation) => {
                conversation.next(facts).await;
                Happened::Facts
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
