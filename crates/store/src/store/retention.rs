//! Removal of history that exceeds the retention limits.

use super::Store;
use crate::writer::{TRIM, WriteRequest};
use crate::{ExecId, RetentionLimit, SandboxId, Sequence, StoreError};

// === impl Store ===

impl Store {
    /// The sandboxes whose events exceed a limit, each with the last sequence to remove.
    pub async fn overdue_events(&self, keep: RetentionLimit) -> Result<Vec<(SandboxId, Sequence)>, StoreError> {
        if keep == RetentionLimit::default() {
            return Ok(Vec::new());
        }
        self.shared.read(move |reader| reader.overdue_events(keep)).await
    }

    /// Removes some of the oldest events of a sandbox up to a sequence, never the newest; returns how many. 0 means
    /// that nothing is left to remove.
    pub async fn trim_events(&self, sandbox: &SandboxId, through: Sequence) -> Result<usize, StoreError> {
        self.request(|reply| WriteRequest::TrimEvents(sandbox.clone(), through, reply)).await?
    }

    /// Some of the ended execs that exceed a limit, oldest first.
    pub async fn overdue_execs(&self, keep: RetentionLimit) -> Result<Vec<(SandboxId, ExecId)>, StoreError> {
        if keep == RetentionLimit::default() {
            return Ok(Vec::new());
        }
        self.shared.read(move |reader| reader.overdue_execs(keep, TRIM)).await
    }

    /// Removes ended execs of a sandbox; returns how many. Their ids stay reserved.
    pub async fn trim_execs(&self, sandbox: &SandboxId, execs: Vec<ExecId>) -> Result<usize, StoreError> {
        self.request(|reply| WriteRequest::TrimExecs(sandbox.clone(), execs, reply)).await?
    }

    /// Drops the cached events of deleted sandboxes.
    pub fn shrink(&self) {
        self.shared.shrink();
    }
}
