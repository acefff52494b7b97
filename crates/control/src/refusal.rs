//! Why something that was asked for is not done: a kind, a word for programs, and a sentence for people.

use std::collections::BTreeMap;
use std::fmt;

use carrel_store::{Namespace, SandboxId};

use crate::text::bounded_text;
use crate::words::reason;

/// How many bytes a message may have, and a value of the metadata: with its details it has to fit into the headers that
/// every client takes.
const LONGEST: (usize, usize) = (1024, 256);

/// A request that is not carried out. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of refusal.
    pub code: Code,
    /// The word that programs go by; it never changes.
    pub reason: &'static str,
    /// What happened, and what to do about it.
    pub message: String,
    /// What it is about: `sandbox_id`, `exec_id`, `field`, …
    pub metadata: BTreeMap<&'static str, String>,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request itself is wrong.
    InvalidArgument,
    /// There is no such thing, or none that the caller may see.
    NotFound,
    /// The id was used before.
    AlreadyExists,
    /// The caller may not do that.
    PermissionDenied,
    /// It cannot be done now.
    FailedPrecondition,
    /// The place in the log is not there.
    OutOfRange,
    /// A limit of this machine is reached.
    ResourceExhausted,
    /// The daemon is going.
    Unavailable,
    /// Something here is broken.
    Internal,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal about nothing in particular. What a caller gave may be part of the message: it is cut to a length that
    /// can be answered, and shows no control characters.
    pub fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: bounded_text(message.into(), LONGEST.0), metadata: BTreeMap::new() }
    }

    /// A request that is wrong in one of its fields.
    pub fn invalid(field: &str, message: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, "INVALID_ARGUMENT", format!("{field}: {message}")).about("field", field)
    }

    /// Says what it is about.
    #[must_use]
    pub fn about(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.metadata.insert(key, bounded_text(value.into(), LONGEST.1));
        self
    }

    /// Whether it ends when there is room on the disk.
    pub(crate) fn is_disk_limit(&self) -> bool {
        self.reason == reason::LIMIT_REACHED && self.metadata.get("limit").is_some_and(|limit| limit == "disk")
    }

    /// The same with ids as callers of a namespace know them.
    #[must_use]
    pub(crate) fn seen_from(mut self, namespace: Namespace) -> Self {
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
