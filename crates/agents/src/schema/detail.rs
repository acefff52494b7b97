//! What clients see that ask for everything: turns, pieces of work as they grow, usage, answers, ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The agent began to work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnStarted {
    /// Which turn; the session numbers them.
    pub turn_id: String,
    /// The prompt that it works on, if the client named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// The agent stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnEnded {
    /// Which turn.
    pub turn_id: String,
    /// How.
    pub outcome: TurnOutcome,
    /// Why, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What it used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum TurnOutcome {
    /// The agent completed it.
    Completed,
    /// The client interrupted it.
    Interrupted,
    /// It could not continue.
    Failed,
}

/// What a piece of work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemKind {
    /// Words for the user.
    Message,
    /// The agent's thoughts.
    Reasoning,
    /// A tool at work.
    Tool,
    /// What the agent means to do.
    Plan,
    /// Something else.
    #[default]
    Other,
}

/// A piece of work began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemStarted {
    /// Which.
    pub item_id: String,
    /// What.
    pub kind: ItemKind,
    /// The tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the tool works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// A piece of work grew.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemDelta {
    /// Which.
    pub item_id: String,
    /// What.
    pub kind: ItemKind,
    /// By this.
    pub delta: String,
}

/// A piece of work is whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemCompleted {
    /// Which.
    pub item_id: String,
    /// What.
    pub kind: ItemKind,
    /// The tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All of its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What the tool gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How it ended.
    pub status: ItemStatus,
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemStatus {
    /// As it should.
    Completed,
    /// It failed.
    Failed,
    /// It was not permitted.
    Declined,
    /// The turn ended before it did.
    Interrupted,
}

/// What was used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Usage)]
pub struct TokenUsage {
    /// Tokens that the model read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens that it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Of the tokens that it read, those that it knew already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// What the agent thinks that it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// How much the model can hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// What else the agent said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// A question waits no longer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionResolved {
    /// Which.
    pub id: String,
    /// Why.
    pub outcome: QuestionOutcome,
    /// What was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<Vec<String>>>,
}

/// Why a question waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum QuestionOutcome {
    /// It was answered.
    Answered,
    /// It was refused.
    Rejected,
    /// The agent no longer asks.
    Withdrawn,
}

/// A permission waits no longer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionResolved {
    /// Which.
    pub id: String,
    /// Why.
    pub outcome: PermissionOutcome,
}

/// Why a permission waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum PermissionOutcome {
    /// Given this time.
    Once,
    /// Given for the session.
    Always,
    /// Refused.
    Reject,
    /// The agent no longer asks.
    Withdrawn,
}

/// The agent's small talk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// What about.
    pub label: String,
    /// What it said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// The session takes no more prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionEnded {
    /// `terminated`, `exited` or `failed`.
    pub reason: String,
    /// Why, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The code with which the agent's process exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The last of what it said on its standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// The session takes prompts again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionResumed {}
