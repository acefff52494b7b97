//! The data of an event: an object with one key, which is the kind of event.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    ItemCompleted, ItemDelta, ItemStarted, Notice, PermissionRequest, PermissionResolved, QuestionRequest,
    QuestionResolved, SessionEnded, SessionResumed, TokenUsage, TurnEnded, TurnStarted, UniversalMessage,
};

/// The kinds of events. The first six are in every view of a session's log; the others only in the view `full`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum EventData {
    /// A message of the user, the agent or a tool.
    Message(UniversalMessage),
    /// The session, or something in it, started.
    Started(StartedEvent),
    /// An error.
    Error(ErrorEvent),
    /// The agent asks questions, and waits for answers.
    QuestionAsked(QuestionRequest),
    /// The agent requests a permission, and waits for the reply.
    PermissionAsked(PermissionRequest),
    /// Output of the agent that is none of the other kinds.
    Raw(Value),

    /// A turn started: the agent works on a prompt, or on its own initiative.
    TurnStarted(TurnStarted),
    /// The turn ended.
    TurnEnded(TurnEnded),
    /// An item of the agent's work started.
    ItemStarted(ItemStarted),
    /// An item has new content.
    ItemDelta(ItemDelta),
    /// An item is complete.
    ItemCompleted(ItemCompleted),
    /// Token usage.
    Usage(TokenUsage),
    /// A question needs no answer any more.
    QuestionResolved(QuestionResolved),
    /// A permission request needs no reply any more.
    PermissionResolved(PermissionResolved),
    /// A status message of the agent, such as a state, a retry or a notification.
    Notice(Notice),
    /// The session accepts no more prompts.
    SessionEnded(SessionEnded),
    /// The session accepts prompts again.
    SessionResumed(SessionResumed),
}

/// The session, or something in it, started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Started)]
pub struct StartedEvent {
    /// What started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Further data of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// An error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorEvent {
    /// The error message.
    pub message: String,
    /// The kind of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Further data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

// === impl EventData ===

impl EventData {
    /// Whether the event is only in the view `full`.
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

    /// A text of the agent.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Message(UniversalMessage::of("assistant", vec![super::MessagePart::text(text)]))
    }

    /// Something that began, by its name.
    pub fn started(message: impl Into<String>, details: Option<Value>) -> Self {
        Self::Started(StartedEvent { message: Some(message.into()), details })
    }

    pub fn error(kind: impl Into<String>, message: impl Into<String>, details: Option<Value>) -> Self {
        Self::Error(ErrorEvent { message: message.into(), kind: Some(kind.into()), details })
    }

    /// A message that cannot be parsed, with its raw content.
    pub fn unparsed(raw: Value, error: impl Into<String>) -> Self {
        Self::Message(UniversalMessage::Unparsed(super::UnparsedMessage { raw, error: Some(error.into()) }))
    }
}
