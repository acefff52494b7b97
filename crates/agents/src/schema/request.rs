//! Requests of an agent to the user: questions and permissions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The agent asks questions, and waits for the answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionRequest {
    /// The id of the request, by which it is answered.
    pub id: String,
    /// The id of the session, which the session sets itself.
    pub session_id: String,
    /// The questions.
    pub questions: Vec<Question>,
    /// The tool call that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolReference>,
}

/// A question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The text of the question.
    pub question: String,
    /// A short heading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The options.
    pub options: Vec<QuestionOption>,
    /// Whether several options may be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_select: Option<bool>,
    /// Whether a custom answer is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<bool>,
}

/// An option of a question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuestionOption {
    /// The label, by which it is chosen.
    pub label: String,
    /// A description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The agent requests a permission, and waits for the reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// The id of the request, by which it is answered.
    pub id: String,
    /// The id of the session, which the session sets itself.
    pub session_id: String,
    /// The action: the tool's name, or the agent's own name for it.
    pub permission: String,
    /// The objects of the action: commands, paths.
    pub patterns: Vec<String>,
    /// Further data of the agent.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// What the reply `always` permits from then on.
    pub always: Vec<String>,
    /// The tool call that needs the permission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolReference>,
}

/// A tool call, by the agent's own ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolReference {
    /// The id of the message.
    pub message_id: String,
    /// The id of the call.
    pub call_id: String,
}

/// The reply to a permission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PermissionReply {
    /// Permit it once.
    Once,
    /// Permit it for the rest of the session.
    Always,
    /// Reject it.
    Reject,
}
