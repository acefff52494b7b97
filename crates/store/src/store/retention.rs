//! What is removed of a history that is longer than it is kept.

use super::Store;
use crate::writer::{Request, TRIM};
use crate::{ExecId, Keep, SandboxId, Sequence, StoreError};

// === impl Store ===

impl Store {
    /// The sandboxes that have more or older events than are kept, and up to which sequence those go.
    pub async fn overdue_events(&self, keep: Keep) -> Result<Vec<(SandboxId, Sequence)>, StoreError> {
        if keep == Keep::default() {
            return Ok(Vec::new());
        }
        self.shared.read(move |reader| reader.overdue_events(keep)).await
    }

    /// Removes the oldest events of a sandbox up to a sequence, some at a time, never the newest; says how many. None
    /// means that nothing is left to remove.
    pub async fn trim_events(&self, sandbox: &SandboxId, through: Sequence) -> Result<usize, StoreError> {
        self.ask(|reply| Request::TrimEvents(sandbox.clone(), through, reply)).await?
    }

    /// Some execs that have ended and are more or older than are kept, the oldest first.
    pub async fn overdue_execs(&self, keep: Keep) -> Result<Vec<(SandboxId, ExecId)>, StoreError> {
        if keep == Keep::default() {
            return Ok(Vec::new());
        }
        self.shared.read(move |reader| reader.overdue_execs(keep, TRIM)).await
    }

    /// Removes execs of a sandbox that have ended; says how many. Their ids stay taken.
    pub async fn trim_execs(&self, sandbox: &SandboxId, execs: Vec<ExecId>) -> Result<usize, StoreError> {
        self.ask(|reply| Request::TrimExecs(sandbox.clone(), execs, reply)).await?
    }

    /// Leaves nothing of deleted sandboxes in memory but their rows.
    pub fn shrink(&self) {
        self.shared.shrink();
    }
}
