//! The universal schema: what happens in a session, in the same shapes whichever agent runs.

mod detail;
mod event;
mod message;
mod request;

pub use detail::{
    ItemCompleted, ItemDelta, ItemKind, ItemStarted, ItemStatus, Notice, PermissionOutcome, PermissionResolved,
    QuestionOutcome, QuestionResolved, SessionEnded, SessionResumed, TokenUsage, TurnEnded, TurnOutcome, TurnStarted,
};
pub use event::{ErrorEvent, EventData, StartedEvent};
pub use message::{AttachmentSource, MessagePart, ParsedMessage, UniversalMessage, UnparsedMessage};
pub use request::{PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest, ToolReference};
