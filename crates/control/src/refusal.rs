//! Why a request is refused: a code, a reason for programs, and a message for people.

use std::collections::BTreeMap;
use std::fmt;

use carrel_store::{IdNamespace, SandboxId};

use crate::codes::reason;
use crate::text::bounded_text;

/// The longest message. With its details it must fit into the headers that every client accepts.
const MAX_MESSAGE_BYTES: usize = 1024;
/// The longest metadata value.
const MAX_METADATA_BYTES: usize = 256;

/// A request that is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of refusal, as in gRPC.
    pub code: Code,
    /// The reason for programs; it never changes.
    pub reason: &'static str,
    /// What happened, and a hint.
    pub message: String,
    /// Metadata: `sandbox_id`, `exec_id`, `field`, …
    pub metadata: BTreeMap<&'static str, String>,
}

/// The gRPC status codes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request is invalid.
    InvalidArgument,
    /// The object does not exist, or the caller may not see it.
    NotFound,
    /// The id was used before.
    AlreadyExists,
    /// The caller is not allowed to do it.
    PermissionDenied,
    /// The current state does not allow it.
    FailedPrecondition,
    /// The sequence is not in the log.
    OutOfRange,
    /// A limit is reached.
    ResourceExhausted,
    /// The daemon is shutting down.
    Unavailable,
    /// An internal error.
    Internal,
}

// === impl Refusal ===

impl Refusal {
    /// Creates a refusal without metadata. The message may contain text of the caller, so it is truncated, and control
    /// characters are escaped.
    pub fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: bounded_text(message.into(), MAX_MESSAGE_BYTES), metadata: BTreeMap::new() }
    }

    /// Refuses a request because of an invalid field.
    pub fn invalid(field: &str, message: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, "INVALID_ARGUMENT", format!("{field}: {message}")).about("field", field)
    }

    /// Adds metadata.
    #[must_use]
    pub fn about(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.metadata.insert(key, bounded_text(value.into(), MAX_METADATA_BYTES));
        self
    }

    /// Whether it ends when there is disk space.
    pub(crate) fn is_disk_limit(&self) -> bool {
        self.reason == reason::LIMIT_REACHED && self.metadata.get("limit").is_some_and(|limit| limit == "disk")
    }

    /// Shows ids as callers of a namespace know them.
    #[must_use]
    pub(crate) fn seen_from(mut self, namespace: IdNamespace) -> Self {
        for key in ["sandbox_id", "exec_id"] {
            if let Some(text) = self.metadata.get_mut(key)
                && let Ok(id) = SandboxId::qualified(text.as_str())
            {
                *text = id.seen_from(namespace).to_owned();
            }
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
