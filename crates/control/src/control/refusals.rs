//! Constructors of refusals.

use carrel_store::{Sandbox, SandboxId, Sequence, StoreError};

use super::FREE_SPACE_HINT;
use crate::codes::reason;
use crate::provider::DiskSpace;
use crate::refusal::{Code, Refusal};
use crate::stage::SandboxStage;
use crate::text::bounded_text;

/// How many bytes of an unknown id are shown.
const MAX_ID_BYTES: usize = 256;

pub(crate) fn sandbox_unknown(id: &str) -> Refusal {
    let id = bounded_text(id, MAX_ID_BYTES);
    Refusal::new(Code::NotFound, reason::SANDBOX_NOT_FOUND, format!("there is no sandbox {id:?}"))
        .about("sandbox_id", id)
}

/// The sandbox was purged meanwhile.
pub(crate) fn sandbox_gone(id: &SandboxId) -> Refusal {
    sandbox_unknown(id.local()).about("sandbox_id", id.as_str())
}

/// Retention removed the events after a sequence.
pub fn expired(id: &str, after: Sequence, oldest: Sequence) -> Refusal {
    let message = format!(
        "events after {after} are no longer retained; the oldest is {oldest}; subscribe from 0 to get all retained events"
    );
    out_of_range(id, after, oldest, message)
}

pub(super) fn out_of_range(id: &str, after: Sequence, oldest: Sequence, message: String) -> Refusal {
    Refusal::new(Code::OutOfRange, reason::SEQUENCE_EXPIRED, message)
        .about("sandbox_id", id)
        .about("from_sequence", after.to_string())
        .about("oldest_sequence", oldest.to_string())
}

pub(crate) fn exec_unknown(id: &str) -> Refusal {
    let id = bounded_text(id, MAX_ID_BYTES);
    Refusal::new(Code::NotFound, reason::EXEC_NOT_FOUND, format!("there is no exec {id:?}")).about("exec_id", id)
}

pub(crate) fn not_ready(sandbox: &Sandbox) -> Refusal {
    let message =
        format!("sandbox {} is {}; a command needs a sandbox that is ready", sandbox.id.local(), stage_name(sandbox));
    Refusal::new(Code::FailedPrecondition, reason::SANDBOX_NOT_READY, message).about("sandbox_id", sandbox.id.as_str())
}

/// The stage of a sandbox, for people.
pub(crate) fn stage_name(sandbox: &Sandbox) -> String {
    format!("{:?}", SandboxStage::of(sandbox)).to_lowercase()
}

pub(super) fn shutting_down() -> Refusal {
    Refusal::new(Code::Unavailable, reason::DAEMON_STOPPING, "the daemon is shutting down; retry in a moment")
}

/// The change of a request could not be committed.
pub(crate) fn commit_failed(error: &StoreError) -> Refusal {
    match error {
        StoreError::Full => {
            let message = format!("the disk of the host is full, and nothing was changed; {FREE_SPACE_HINT}");
            Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, message).about("limit", "disk")
        }
        error => store_failed(error),
    }
}

/// Less of the host's disk is free than the reserve.
pub(super) fn disk_low(space: &DiskSpace) -> Refusal {
    let message = format!("the disk of the host is low ({}); {FREE_SPACE_HINT}", space.summary);
    Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, message)
        .about("limit", "disk")
        .about("free", space.free.to_string())
        .about("reserve", space.reserve.to_string())
}

pub(crate) fn store_failed(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "the store failed");
    Refusal::new(Code::Internal, reason::STORE_FAILED, format!("nothing was changed: {error}"))
}

pub(crate) fn internal(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "internal error");
    Refusal::new(Code::Internal, "INTERNAL", error.to_string())
}
