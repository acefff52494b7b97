//! What requests and answers look like.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    agent::{AgentId, Capabilities},
    schema::{PermissionReply, SessionEnded},
    session::{AgentSession, SessionStatus},
};

/// The server is well.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: &'static str,
}

/// All agents.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentList {
    /// They.
    pub agents: Vec<AgentInfo>,
}

/// An agent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentInfo {
    /// Its name.
    pub id: AgentId,
    /// Whether it is here.
    pub installed: bool,
    /// Which version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether it would find credentials.
    pub credentials_available: bool,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// How it is installed.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct InstallAgent {
    /// Even if it is here.
    #[serde(default)]
    pub reinstall: bool,
    /// Another version than the one that this server was made for.
    pub version: Option<String>,
}

/// What an agent's modes are.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModeList {
    /// They.
    pub modes: Vec<Mode>,
}

/// A way in which an agent works.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Mode {
    /// By which it is chosen.
    pub id: &'static str,
    /// For people.
    pub name: &'static str,
    /// What it means.
    pub description: &'static str,
}

/// A session, as it is listed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// The client's id of it.
    pub session_id: String,
    /// Who runs in it.
    pub agent: String,
    /// How.
    pub agent_mode: String,
    /// What it may do unasked.
    pub permission_mode: String,
    /// With which model.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// The agent's own id of it.
    pub agent_session_id: Option<String>,
    /// Whether it takes no more prompts.
    pub ended: bool,
    /// How many events its default view has.
    pub event_count: u64,
    /// When it was made, in milliseconds.
    pub created_at: u64,
    /// When something last happened in it.
    pub updated_at: u64,
    /// Where the agent works.
    pub directory: String,
    /// For people.
    pub title: Option<String>,
    /// `idle`, `running`, `waiting` or `ended`.
    pub status: String,
    /// How many prompts wait.
    pub queued: usize,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<SessionEnded>,
}

/// All sessions.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionList {
    /// The newest first.
    pub sessions: Vec<SessionInfo>,
}

/// What a session is made of.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateSession {
    /// Who is to run in it.
    pub agent: String,
    /// `build` or `plan`.
    pub agent_mode: Option<String>,
    /// `default`, `plan`, `acceptEdits` or `bypass`.
    pub permission_mode: Option<String>,
    /// The model, or the agent's own choice.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// The version of the agent to install if it is not there.
    pub agent_version: Option<String>,
    /// Where the agent works; the server's own directory unless it is given.
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// For people.
    pub title: Option<String>,
}

/// A session was made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// Always true: what is not healthy is an error.
    pub healthy: bool,
    /// The agent's own id of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_session_id: Option<String>,
}

/// What is to be another from now on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeSession {
    /// `build` or `plan`.
    pub agent_mode: Option<String>,
    /// `default`, `plan`, `acceptEdits` or `bypass`.
    pub permission_mode: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// For people.
    pub title: Option<String>,
}

/// A prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostMessage {
    /// What the user says.
    pub message: String,
    /// The client's id of it. The same id and message again change nothing.
    pub message_id: Option<String>,
}

/// Answers to questions.
#[derive(Debug, Deserialize, ToSchema)]
pub struct QuestionAnswers {
    /// For each question, the labels that were chosen, or words of one's own.
    pub answers: Vec<Vec<String>>,
}

/// An answer to a permission.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PermissionAnswer {
    /// Yes, yes from now on, or no.
    pub reply: PermissionReply,
    /// Words for the agent with a no.
    pub message: Option<String>,
}

// === impl SessionInfo ===

impl SessionInfo {
    pub(super) fn of(session: &AgentSession) -> Self {
        let snapshot = session.snapshot();
        let record = snapshot.record;
        Self {
            session_id: record.session_id,
            agent: record.agent.to_string(),
            agent_mode: record.agent_mode.as_str().into(),
            permission_mode: record.permission_mode.as_str().into(),
            model: record.model,
            variant: record.variant,
            agent_session_id: record.native_id,
            ended: record.end.is_some(),
            event_count: session.log.last().default,
            created_at: record.created_at,
            updated_at: snapshot.updated_at,
            directory: record.directory.display().to_string(),
            title: record.title,
            status: match snapshot.status {
                SessionStatus::Idle => "idle",
                SessionStatus::Running => "running",
                SessionStatus::Waiting => "waiting",
                SessionStatus::Ended => "ended",
            }
            .into(),
            queued: snapshot.queued,
            exit: record.end,
        }
    }
}
