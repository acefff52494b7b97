//! Why a request is refused, in words and for programs.

use carrel_store::{Sandbox, SandboxId, Sequence, StoreError};

use super::MAKE_ROOM;
use crate::machine::Stage;
use crate::provider::DiskSpace;
use crate::refusal::{Code, Refusal};
use crate::text::bounded_text;
use crate::words::reason;

/// How many bytes are shown of an id that no sandbox and no exec has.
const LONGEST_ID: usize = 256;

pub(crate) fn sandbox_unknown(id: &str) -> Refusal {
    let id = bounded_text(id, LONGEST_ID);
    Refusal::new(Code::NotFound, reason::SANDBOX_NOT_FOUND, format!("there is no sandbox {id:?}"))
        .about("sandbox_id", id)
}

/// It was purged since it was found.
pub(crate) fn sandbox_gone(id: &SandboxId) -> Refusal {
    sandbox_unknown(id.local()).about("sandbox_id", id.as_str())
}

/// What follows a place in the log of a sandbox was removed by retention.
pub fn expired(id: &str, after: Sequence, oldest: Sequence) -> Refusal {
    let words = format!(
        "the events after {after} are no longer kept: the oldest is {oldest}; subscribe from 0 to get all that is kept"
    );
    out_of_range(id, after, oldest, words)
}

pub(super) fn out_of_range(id: &str, after: Sequence, oldest: Sequence, words: String) -> Refusal {
    Refusal::new(Code::OutOfRange, reason::SEQUENCE_EXPIRED, words)
        .about("sandbox_id", id)
        .about("from_sequence", after.to_string())
        .about("oldest_sequence", oldest.to_string())
}

pub(crate) fn exec_unknown(id: &str) -> Refusal {
    let id = bounded_text(id, LONGEST_ID);
    Refusal::new(Code::NotFound, reason::EXEC_NOT_FOUND, format!("there is no exec {id:?}")).about("exec_id", id)
}

pub(crate) fn not_ready(sandbox: &Sandbox) -> Refusal {
    let words = format!("the sandbox {} is {}: a command needs one that is ready", sandbox.id.local(), shown(sandbox));
    Refusal::new(Code::FailedPrecondition, reason::SANDBOX_NOT_READY, words).about("sandbox_id", sandbox.id.as_str())
}

/// The stage of a sandbox, for people.
pub(crate) fn shown(sandbox: &Sandbox) -> String {
    format!("{:?}", Stage::of(sandbox)).to_lowercase()
}

pub(super) fn stopping() -> Refusal {
    Refusal::new(
        Code::Unavailable,
        reason::DAEMON_STOPPING,
        "the daemon is going: try again when the next one is there",
    )
}

/// A change that was asked for could not be written down.
pub(crate) fn commit_failed(error: &StoreError) -> Refusal {
    match error {
        StoreError::Full => {
            let words = format!("the disk of the host is full, and nothing was changed: {MAKE_ROOM}");
            Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, words).about("limit", "disk")
        }
        error => store_failed(error),
    }
}

/// Less is free on the disk of the host than has to be.
pub(super) fn disk_low(space: &DiskSpace) -> Refusal {
    let words = format!("the disk of the host is low ({}): {MAKE_ROOM}", space.summary);
    Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, words)
        .about("limit", "disk")
        .about("free", space.free.to_string())
        .about("reserve", space.reserve.to_string())
}

pub(crate) fn store_failed(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "the store failed");
    Refusal::new(
        Code::Internal,
        reason::STORE_FAILED,
        format!("nothing was changed, since it could not be written down: {error}"),
    )
}

pub(crate) fn broken(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "something is broken");
    Refusal::new(Code::Internal, "INTERNAL", error.to_string())
}
