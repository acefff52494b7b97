//! What a database has to do for the store.
//!
//! SQLite is one; PostgreSQL could be another. The store in front of it remembers rows, running execs and recent events,
//! gathers changes, and wakes those who wait; all that it leaves to a backend is below. A backend guarantees:
//!
//! - **One writer.** [`Backend`] is called by one thread, and nobody else writes while it is open.
//! - **All or nothing.** A batch becomes true as a whole or not at all; a change in it that is refused leaves no trace and
//!   does not touch the others. When `commit` fails, nothing of the batch is true, and the next batch is tried anew.
//! - **Durability.** What `commit` returned survives the death of this process; when the batch has a change that is
//!   `synced`, also a power cut.
//! - **Sequences** of a sandbox rise by 1 from 1, and one that anybody can have seen is never given again, not even
//!   after a power cut took the event: then the next is higher, and the gap is on record.
//! - **Positions** rise in the order of commits, over all sandboxes, and are never given again either.
//! - **Ids** of sandboxes and execs stay taken for ever.
//! - **A [`Reader`]** sees whole batches only, never waits for the writer, and nobody waits for it. What it reads may be
//!   ahead of what the store has published; the store bounds what it asks for.

use std::sync::Arc;

use crate::{Change, Event, Exec, ExecId, Keep, Sandbox, SandboxId, Sequence, StoreError};

/// A database, as its only writer uses it.
pub(crate) trait Backend: Send {
    /// All that the store has to remember.
    fn load(&mut self) -> Result<Loaded, StoreError>;

    /// Makes changes true, in their order, each of them wholly or not at all.
    fn commit(&mut self, batch: Vec<Change>) -> Result<Batch, StoreError>;

    /// Removes a sandbox with its execs and events. The ids stay taken.
    fn purge(&mut self, sandbox: &SandboxId) -> Result<(), StoreError>;

    /// Removes the oldest events of a sandbox up to a sequence, never its newest, and not more than so many at once; says
    /// how many. Up to where they go is announced before any reader finds them missing.
    fn trim_events(
        &mut self,
        sandbox: &SandboxId,
        range: Range,
        announce: &mut dyn FnMut(Sequence),
    ) -> Result<usize, StoreError>;

    /// Removes execs of a sandbox that have ended; says how many. The ids stay taken.
    fn trim_execs(&mut self, sandbox: &SandboxId, execs: &[ExecId]) -> Result<usize, StoreError>;

    /// Puts everything where it stays, and notes that nothing was left to chance.
    fn close(&mut self) -> Result<(), StoreError>;
}

/// A database, as anybody reads it. Calls block.
pub(crate) trait Reader: Send + Sync {
    /// An exec.
    fn exec(&self, id: &ExecId) -> Result<Option<Exec>, StoreError>;

    /// All execs of a sandbox, in the order of their creation.
    fn execs(&self, sandbox: &SandboxId) -> Result<Vec<Exec>, StoreError>;

    /// The oldest events of a sandbox in a range of sequences.
    fn events(&self, sandbox: &SandboxId, range: Range) -> Result<Vec<Event>, StoreError>;

    /// The oldest events of all sandboxes in a range of positions.
    fn all_events(&self, range: Range) -> Result<Vec<Event>, StoreError>;

    /// The sandboxes that have more or older events than are kept, and up to which sequence those go.
    fn overdue_events(&self, keep: Keep) -> Result<Vec<(SandboxId, Sequence)>, StoreError>;

    /// Execs that have ended and are more or older than are kept, the oldest first, not more than so many.
    fn overdue_execs(&self, keep: Keep, most: usize) -> Result<Vec<(SandboxId, ExecId)>, StoreError>;
}

/// Which events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Those after this one,
    pub(crate) after: u64,
    /// up to this one,
    pub(crate) until: u64,
    /// and not more than so many.
    pub(crate) most: usize,
}

/// All that the store has to remember.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The sandboxes, with the bounds of their sequences.
    pub(crate) sandboxes: Vec<(Sandbox, SequenceBounds)>,
    /// The execs that have not ended.
    pub(crate) running: Vec<Exec>,
    /// The newest position, whether its event is still there or not.
    pub(crate) position: u64,
}

/// The bounds of the sequences of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SequenceBounds {
    /// No event up to here will come any more, whether there is one or not.
    pub(crate) floor: Sequence,
    /// Events up to here were removed by retention.
    pub(crate) trimmed: Sequence,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) struct Batch {
    /// What became of each change, in their order.
    pub(crate) changes: Vec<Result<Applied, StoreError>>,
    /// Whether it survives a power cut.
    pub(crate) synced: bool,
}

/// What a change made true.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    /// The sandbox as it is.
    pub(crate) sandbox: Arc<Sandbox>,
    /// The execs of the change.
    pub(crate) execs: Vec<Arc<Exec>>,
    /// The events of the change.
    pub(crate) events: Vec<Arc<Event>>,
}
