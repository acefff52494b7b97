//! Commands and errors of a session.

use std::time::Duration;

use tokio::sync::oneshot;

use super::TurnHandle;
use crate::{
    agent::{AgentError, AgentMode, PermissionMode, Prompt, UserAnswer},
    schema::SessionEnded,
};

/// A command for the actor, with the channel for its reply.
pub(super) enum SessionCommand {
    Prompt { prompt: Prompt, has_client_id: bool, reply: oneshot::Sender<Result<TurnHandle, SessionError>> },
    Abort { reply: oneshot::Sender<Result<(), SessionError>> },
    Answer { id: String, answer: UserAnswer, reply: oneshot::Sender<Result<(), SessionError>> },
    Update { update: SessionUpdate, reply: oneshot::Sender<Result<(), SessionError>> },
    Terminate { reply: oneshot::Sender<()> },
    Resume { reply: oneshot::Sender<Result<(), SessionError>> },
    Close { remove: bool, grace: Duration, reply: oneshot::Sender<()> },
}

/// Changes of a session. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionUpdate {
    /// Build or plan.
    pub agent_mode: Option<AgentMode>,
    /// What the agent may do without asking.
    pub permission_mode: Option<PermissionMode>,
    pub model: Option<String>,
    /// Variant of the model.
    pub variant: Option<String>,
    pub title: Option<String>,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The session is being removed, or the server is shutting down.
    #[error("the session has ended")]
    Gone,
    #[error("session terminated")]
    Terminated,
    /// Its agent exited.
    #[error("the agent's process has ended")]
    Ended(SessionEnded),
    /// Another prompt with a different text has this id.
    #[error("another message has the id {0}")]
    Conflict(String),
    #[error("{0} messages wait already")]
    QueueFull(usize),
    #[error("the session's log is full")]
    LogFull,
    /// No question of this id is pending.
    #[error("unknown question id: {0}")]
    UnknownQuestion(String),
    /// No permission request of this id is pending.
    #[error("unknown permission id: {0}")]
    UnknownPermission(String),
    /// The agent failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
}
