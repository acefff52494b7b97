//! The events of the view `full`: turns, items, usage, resolutions, ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A turn started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnStarted {
    /// The id of the turn: the session numbers them.
    pub turn_id: String,
    /// The client's id of the prompt, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// A turn ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnEnded {
    /// The id of the turn.
    pub turn_id: String,
    /// The outcome.
    pub outcome: TurnOutcome,
    /// The reason, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The token usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum TurnOutcome {
    /// The agent completed it.
    Completed,
    /// The client interrupted it.
    Interrupted,
    /// The agent failed.
    Failed,
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemKind {
    /// A message to the user.
    Message,
    /// The agent's reasoning.
    Reasoning,
    /// A tool call.
    Tool,
    /// A plan.
    Plan,
    /// Any other item.
    #[default]
    Other,
}

/// An item of the agent's work started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemStarted {
    /// The id of the item.
    pub item_id: String,
    /// The kind of the item.
    pub kind: ItemKind,
    /// The tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The input of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// An item has new content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemDelta {
    /// The id of the item.
    pub item_id: String,
    /// The kind of the item.
    pub kind: ItemKind,
    /// The new content.
    pub delta: String,
}

/// An item is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemCompleted {
    /// The id of the item.
    pub item_id: String,
    /// The kind of the item.
    pub kind: ItemKind,
    /// The tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The complete text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The output of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The status.
    pub status: ItemStatus,
}

/// The status of a completed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemStatus {
    /// It succeeded.
    Completed,
    /// It failed.
    Failed,
    /// It was not permitted.
    Declined,
    /// The turn ended first.
    Interrupted,
}

/// The token usage of a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Usage)]
pub struct TokenUsage {
    /// Input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Input tokens that were read from the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// The agent's estimate of the cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The size of the model's context window in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// Further data of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// A question needs no answer any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionResolved {
    /// The id of the question request.
    pub id: String,
    /// The outcome.
    pub outcome: QuestionOutcome,
    /// The answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<Vec<String>>>,
}

/// The outcome of a question request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum QuestionOutcome {
    /// The user answered it.
    Answered,
    /// The user rejected it.
    Rejected,
    /// The agent withdrew it.
    Withdrawn,
}

/// A permission request needs no reply any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionResolved {
    /// The id of the permission request.
    pub id: String,
    /// The outcome.
    pub outcome: PermissionOutcome,
}

/// The outcome of a permission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum PermissionOutcome {
    /// It was granted once.
    Once,
    /// It was granted for the session.
    Always,
    /// It was rejected.
    Reject,
    /// The agent withdrew it.
    Withdrawn,
}

/// A status message of the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// The subject.
    pub label: String,
    /// Further data of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// The session accepts no more prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionEnded {
    /// `terminated`, `exited` or `failed`.
    pub reason: String,
    /// The reason as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The exit code of the agent's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that killed the agent's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The end of its standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// The session accepts prompts again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionResumed {}
