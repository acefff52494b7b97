//! The bodies of requests and responses.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    agent::{AgentId, Capabilities},
    schema::{PermissionReply, SessionEnded},
    session::{AgentSession, SessionStatus},
};

/// The server is healthy.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: &'static str,
}

/// The agents.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentList {
    /// The agents.
    pub agents: Vec<AgentInfo>,
}

/// An agent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentInfo {
    /// The name of the agent.
    pub id: AgentId,
    /// Whether it is installed.
    pub installed: bool,
    /// The installed version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The path of its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether it has credentials.
    pub credentials_available: bool,
    /// Its capabilities.
    pub capabilities: Capabilities,
}

/// Options of an installation.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct InstallAgent {
    /// Whether to reinstall an installed version.
    #[serde(default)]
    pub reinstall: bool,
    /// The version; by default the one that this server is made for.
    pub version: Option<String>,
}

/// The modes of an agent.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModeList {
    /// The modes.
    pub modes: Vec<Mode>,
}

/// A mode of an agent.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Mode {
    /// The id, by which it is chosen.
    pub id: &'static str,
    /// The name for display.
    pub name: &'static str,
    /// A description.
    pub description: &'static str,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// The client's id of the session.
    pub session_id: String,
    /// The agent.
    pub agent: String,
    /// The agent mode.
    pub agent_mode: String,
    /// The permission mode.
    pub permission_mode: String,
    /// The model.
    pub model: Option<String>,
    /// The variant of the model.
    pub variant: Option<String>,
    /// The agent's own id of the session.
    pub agent_session_id: Option<String>,
    /// Whether it accepts no more prompts.
    pub ended: bool,
    /// The number of events in the default view.
    pub event_count: u64,
    /// The creation time, in milliseconds.
    pub created_at: u64,
    /// The time of the last event.
    pub updated_at: u64,
    /// The working directory of the agent.
    pub directory: String,
    /// The title for display.
    pub title: Option<String>,
    /// `idle`, `running`, `waiting` or `ended`.
    pub status: String,
    /// The number of queued prompts.
    pub queued: usize,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<SessionEnded>,
}

/// The sessions.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionList {
    /// The sessions, newest first.
    pub sessions: Vec<SessionInfo>,
}

/// The parameters of a new session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateSession {
    /// The agent.
    pub agent: String,
    /// `build` or `plan`.
    pub agent_mode: Option<String>,
    /// `default`, `plan`, `acceptEdits` or `bypass`.
    pub permission_mode: Option<String>,
    /// The model; by default the agent's choice.
    pub model: Option<String>,
    /// The variant of the model.
    pub variant: Option<String>,
    /// The version of the agent to install if it is not installed.
    pub agent_version: Option<String>,
    /// The working directory of the agent; by default that of the server.
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// The title for display.
    pub title: Option<String>,
}

/// The session was created.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// Always true: a failure is an error response.
    pub healthy: bool,
    /// The agent's own id of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_session_id: Option<String>,
}

/// The settings to change.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeSession {
    /// `build` or `plan`.
    pub agent_mode: Option<String>,
    /// `default`, `plan`, `acceptEdits` or `bypass`.
    pub permission_mode: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The variant of the model.
    pub variant: Option<String>,
    /// The title for display.
    pub title: Option<String>,
}

/// A prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostMessage {
    /// The text of the prompt.
    pub message: String,
    /// The client's id of the prompt. A request with the same id and message is idempotent.
    pub message_id: Option<String>,
}

/// Answers to questions.
#[derive(Debug, Deserialize, ToSchema)]
pub struct QuestionAnswers {
    /// For each question, the chosen labels or a custom answer.
    pub answers: Vec<Vec<String>>,
}

/// A reply to a permission request.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PermissionAnswer {
    /// The reply.
    pub reply: PermissionReply,
    /// A message to the agent with a rejection.
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
