//! What an agent asks of a person: questions and permissions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The agent waits for answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionRequest {
    /// By which it is answered.
    pub id: String,
    /// Of which session; the session itself writes it.
    pub session_id: String,
    /// What is asked.
    pub questions: Vec<Question>,
    /// Which use of a tool asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolReference>,
}

/// One question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// It.
    pub question: String,
    /// In a word or two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// What may be chosen.
    pub options: Vec<QuestionOption>,
    /// Whether more than one may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_select: Option<bool>,
    /// Whether an answer of one's own is welcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<bool>,
}

/// What may be chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuestionOption {
    /// By which it is chosen.
    pub label: String,
    /// What it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The agent waits for a permission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// By which it is answered.
    pub id: String,
    /// Of which session; the session itself writes it.
    pub session_id: String,
    /// To do what: the tool's name, or the agent's word for it.
    pub permission: String,
    /// On what: commands, paths.
    pub patterns: Vec<String>,
    /// What else the agent said about it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// What `always` would allow from then on.
    pub always: Vec<String>,
    /// Which use of a tool asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolReference>,
}

/// A use of a tool, in the agent's own ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolReference {
    /// In which message.
    pub message_id: String,
    /// Which use.
    pub call_id: String,
}

/// How a permission is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PermissionReply {
    /// This time.
    Once,
    /// And whenever it is asked again in this session.
    Always,
    /// No.
    Reject,
}
