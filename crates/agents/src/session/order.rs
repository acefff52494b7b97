//! What a session can be told to do, and why it may refuse.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Ticket;
use crate::{
    agent::{AgentError, AgentMode, Answer, PermissionMode, Prompt},
    schema::SessionEnded,
};

/// What the actor is told; each is answered.
pub(super) enum Order {
    Prompt { prompt: Prompt, named: bool, reply: oneshot::Sender<Result<Ticket, SessionError>> },
    Abort { reply: oneshot::Sender<Result<(), SessionError>> },
    Answer { id: String, answer: Answer, reply: oneshot::Sender<Result<(), SessionError>> },
    Change { change: Change, reply: oneshot::Sender<Result<(), SessionError>> },
    Terminate { reply: oneshot::Sender<()> },
    Resume { reply: oneshot::Sender<Result<(), SessionError>> },
    Close { remove: bool, farewell: Duration, reply: oneshot::Sender<()> },
}

/// What about a session is to be another from now on. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// How the agent works.
    pub agent_mode: Option<AgentMode>,
    /// What it may do unasked.
    pub permission_mode: Option<PermissionMode>,
    /// With which model.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// For people.
    pub title: Option<String>,
}

/// Why a session refuses.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It is being removed, or the server stops.
    #[error("the session is gone")]
    Gone,
    /// It was terminated.
    #[error("session terminated")]
    Terminated,
    /// Its agent ended.
    #[error("the agent's process has ended")]
    Ended(SessionEnded),
    /// Another prompt has this id.
    #[error("another message has the id {0}")]
    Conflict(String),
    /// Too many prompts wait already.
    #[error("{0} messages wait already")]
    QueueFull(usize),
    /// Nothing more can be written down.
    #[error("the session's log is full")]
    LogFull,
    /// Nobody asked that.
    #[error("unknown question id: {0}")]
    UnknownQuestion(String),
    /// Nobody asked for that.
    #[error("unknown permission id: {0}")]
    UnknownPermission(String),
    /// The agent could not.
    #[error(transparent)]
    Agent(#[from] AgentError),
}
