//! What an event is about: one key, and under it the fact.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    ItemCompleted, ItemDelta, ItemStarted, Notice, PermissionRequest, PermissionResolved, QuestionRequest,
    QuestionResolved, SessionEnded, SessionResumed, TokenUsage, TurnEnded, TurnStarted, UniversalMessage,
};

/// What happened. The first six kinds are in every view of a session's log; the others are for clients that ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum EventData {
    /// Something was said, by the user, the agent or a tool.
    Message(UniversalMessage),
    /// The session, or something in it, began.
    Started(StartedEvent),
    /// Something went wrong.
    Error(ErrorEvent),
    /// The agent waits for answers.
    QuestionAsked(QuestionRequest),
    /// The agent waits for a permission.
    PermissionAsked(PermissionRequest),
    /// What the agent said, where it fits nothing else.
    Raw(Value),

    /// The agent began to work on a prompt, or on something of its own.
    TurnStarted(TurnStarted),
    /// It stopped.
    TurnEnded(TurnEnded),
    /// A piece of the agent's work began.
    ItemStarted(ItemStarted),
    /// It grew.
    ItemDelta(ItemDelta),
    /// It is whole.
    ItemCompleted(ItemCompleted),
    /// What was used.
    Usage(TokenUsage),
    /// A question waits no longer.
    QuestionResolved(QuestionResolved),
    /// A permission waits no longer.
    PermissionResolved(PermissionResolved),
    /// The agent's small talk: states, retries, notifications.
    Notice(Notice),
    /// The session takes no more prompts.
    SessionEnded(SessionEnded),
    /// It takes them again.
    SessionResumed(SessionResumed),
}

/// The session, or something in it, began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Started)]
pub struct StartedEvent {
    /// What began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the agent said about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// Something went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorEvent {
    /// What.
    pub message: String,
    /// Which sort of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

// === impl EventData ===

impl EventData {
    /// Whether only clients that ask for everything see it.
    pub const fn is_detail(&self) -> bool {
        !matches!(
            self,
            Self::Message(_)
                | Self::Started(_)
                | Self::Error(_)
                | Self::QuestionAsked(_)
                | Self::PermissionAsked(_)
                | Self::Raw(_)
        )
    }

    /// Text that the agent said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Message(UniversalMessage::of("assistant", vec![super::MessagePart::text(text)]))
    }

    /// Something that began, by its name.
    pub fn started(message: impl Into<String>, details: Option<Value>) -> Self {
        Self::Started(StartedEvent { message: Some(message.into()), details })
    }

    /// An error of a kind.
    pub fn error(kind: impl Into<String>, message: impl Into<String>, details: Option<Value>) -> Self {
        Self::Error(ErrorEvent { message: message.into(), kind: Some(kind.into()), details })
    }

    /// A message that cannot be parsed, with its raw content.
    pub fn unparsed(raw: Value, error: impl Into<String>) -> Self {
        Self::Message(UniversalMessage::Unparsed(super::UnparsedMessage { raw, error: Some(error.into()) }))
    }
}
