//! The traits that a database backend implements for the store.
//!
//! SQLite is the only backend; PostgreSQL could be another. The store in front of it caches rows, running execs and
//! recent events, batches changes, and wakes listeners; everything else is below. A backend guarantees:
//!
//! - **One writer.** One thread calls [`Backend`], and no other process writes while it is open.
//! - **Atomicity.** A batch is committed as a whole or not at all; a refused change in it leaves no trace and does not
//!   affect the others. When `commit` fails, nothing of the batch is stored, and the next batch is independent of it.
//! - **Durability.** What `commit` returned survives the death of this process; if the batch has a change that is
//!   `synced`, also a power cut.
//! - **Sequences** of a sandbox count from 1 without gaps, and one that a client can have seen is never reused, not even
//!   after a power cut took the event: then the next is higher, and the gap is recorded.
//! - **Positions** rise in commit order, over all sandboxes, and are never reused either.
//! - **Ids** of sandboxes and execs stay reserved forever.
//! - **A [`Reader`]** sees whole batches only; it and the writer never block each other. What it reads may be
//!   newer than what the store has published; the store limits what it requests.

use std::sync::Arc;

use crate::{Change, Event, Exec, ExecId, RetentionLimit, Sandbox, SandboxId, Sequence, StoreError};

/// The interface of the only writer.
pub(crate) trait Backend: Send {
    /// Loads everything that the store caches.
    fn load(&mut self) -> Result<LoadedRows, StoreError>;

    /// Commits changes in order, each of them atomically.
    fn commit(&mut self, batch: Vec<Change>) -> Result<CommittedBatch, StoreError>;

    /// Removes a sandbox with its execs and events. The ids stay reserved.
    fn purge(&mut self, sandbox: &SandboxId) -> Result<(), StoreError>;

    /// Removes the oldest events of a sandbox up to a sequence, never its newest, limited by the range; returns how
    /// many. It announces the new start of the history before a reader can miss the events.
    fn trim_events(
        &mut self,
        sandbox: &SandboxId,
        range: EventRange,
        announce: &mut dyn FnMut(Sequence),
    ) -> Result<usize, StoreError>;

    /// Removes ended execs of a sandbox; returns how many. The ids stay reserved.
    fn trim_execs(&mut self, sandbox: &SandboxId, execs: &[ExecId]) -> Result<usize, StoreError>;

    /// Checkpoints the log, and records a clean shutdown.
    fn close(&mut self) -> Result<(), StoreError>;
}

/// The interface of concurrent readers. Calls block.
pub(crate) trait Reader: Send + Sync {
    fn exec(&self, id: &ExecId) -> Result<Option<Exec>, StoreError>;

    /// All execs of a sandbox, in creation order.
    fn execs(&self, sandbox: &SandboxId) -> Result<Vec<Exec>, StoreError>;

    /// The oldest events of a sandbox in a range of sequences.
    fn events(&self, sandbox: &SandboxId, range: EventRange) -> Result<Vec<Event>, StoreError>;

    /// The oldest events of all sandboxes in a range of positions.
    fn all_events(&self, range: EventRange) -> Result<Vec<Event>, StoreError>;

    /// The sandboxes whose events exceed a limit, each with the last sequence to remove.
    fn overdue_events(&self, keep: RetentionLimit) -> Result<Vec<(SandboxId, Sequence)>, StoreError>;

    /// Ended execs that exceed a limit, oldest first, at most `most`.
    fn overdue_execs(&self, keep: RetentionLimit, most: usize) -> Result<Vec<(SandboxId, ExecId)>, StoreError>;
}

/// A range of sequences or positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventRange {
    /// Exclusive lower bound.
    pub(crate) after: u64,
    /// Inclusive upper bound.
    pub(crate) until: u64,
    /// The maximum number of events.
    pub(crate) most: usize,
}

/// Everything that the store caches.
#[derive(Debug, Default)]
pub(crate) struct LoadedRows {
    /// The sandboxes, with the bounds of their sequences.
    pub(crate) sandboxes: Vec<(Sandbox, SequenceBounds)>,
    /// The execs that have not ended.
    pub(crate) running: Vec<Exec>,
    /// The newest position, whether its event still exists or not.
    pub(crate) position: u64,
}

/// The bounds of the sequences of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SequenceBounds {
    /// No new event gets a sequence up to this one.
    pub(crate) floor: Sequence,
    /// Retention removed the events up to this one.
    pub(crate) trimmed: Sequence,
}

/// The result of a batch.
#[derive(Debug)]
pub(crate) struct CommittedBatch {
    /// The result of each change, in order.
    pub(crate) changes: Vec<Result<AppliedChange, StoreError>>,
    /// Whether the batch was fsynced.
    pub(crate) synced: bool,
}

/// The result of an applied change.
#[derive(Clone, Debug)]
pub(crate) struct AppliedChange {
    /// The new row of the sandbox.
    pub(crate) sandbox: Arc<Sandbox>,
    /// The new rows of the execs.
    pub(crate) execs: Vec<Arc<Exec>>,
    /// The new events.
    pub(crate) events: Vec<Arc<Event>>,
}
