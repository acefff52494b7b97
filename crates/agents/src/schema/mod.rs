//! The universal schema: what happens in a session, in the same shapes whichever agent runs.

mod detail;
mod event;
mod message;
mod request;

pub use detail::{
    ItemCompleted, ItemDelta, ItemKind, ItemStarted, ItemStatus, Notice, PermissionOutcome, PermissionResolved,
    QuestionOutcome, QuestionResolved, SessionEnded, SessionResumed, TurnEnded, TurnOutcome, TurnStarted, Usage,
};
pub use event::{ErrorEvent, EventData, Started};
pub use message::{AttachmentSource, Message, ParsedMessage, Part, UnparsedMessage};
pub use request::{PermissionReply, PermissionRequest, Question, QuestionOption, QuestionRequest, ToolReference};
