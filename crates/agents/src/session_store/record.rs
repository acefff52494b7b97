//! The stored record of a session.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    agent::{AgentId, AgentMode, PermissionMode},
    schema::SessionEnded,
};

/// What is stored about a session besides its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// Id, chosen by the client.
    pub session_id: String,
    pub agent: AgentId,
    /// Build or plan.
    pub agent_mode: AgentMode,
    /// What the agent may do without asking.
    pub permission_mode: PermissionMode,
    pub model: Option<String>,
    /// Variant of the model.
    pub variant: Option<String>,
    /// The agent's own id of the conversation.
    pub native_id: Option<String>,
    /// Whether the agent has ever received a prompt.
    pub begun: bool,
    /// How it ended.
    pub end: Option<SessionEnded>,
    /// Creation time in milliseconds.
    pub created_at: u64,
    /// Time of the last event.
    pub updated_at: u64,
    /// Working directory.
    pub directory: PathBuf,
    pub title: Option<String>,
    /// Number of turns.
    pub turns: u64,
    /// Whether a turn was running.
    pub running: bool,
    pub queue: Vec<QueuedPromptRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedPromptRecord {
    pub id: String,
    /// Text of the user.
    pub text: String,
    /// Whether its id is the client's.
    pub named: bool,
}
