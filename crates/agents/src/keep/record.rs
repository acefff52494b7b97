//! What is written down about a session beside its log.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    agent::{AgentId, AgentMode, PermissionMode},
    schema::SessionEnded,
};

/// A session, as far as its log does not say it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The client's id of it.
    pub session_id: String,
    /// Who runs in it.
    pub agent: AgentId,
    /// How.
    pub agent_mode: AgentMode,
    /// What it may do unasked.
    pub permission_mode: PermissionMode,
    /// With which model.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// The agent's own id of it.
    pub native_id: Option<String>,
    /// Whether a prompt was ever given to the agent.
    pub begun: bool,
    /// How it ended.
    pub end: Option<SessionEnded>,
    /// When it was made, in milliseconds.
    pub created_at: u64,
    /// When something last happened in it.
    pub updated_at: u64,
    /// Where the agent works.
    pub directory: PathBuf,
    /// For people.
    pub title: Option<String>,
    /// How many turns it has had.
    pub turns: u64,
    /// Whether a turn was running.
    pub running: bool,
    /// Prompts that were taken and have not had their turn.
    pub queue: Vec<WaitingRecord>,
}

/// A prompt that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRecord {
    /// Its id.
    pub id: String,
    /// What the user says.
    pub text: String,
    /// Whether the client gave it its id.
    pub named: bool,
}
