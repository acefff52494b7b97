//! What the front, the writer and the readers of events have in common.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Semaphore;

use crate::backend::{Batch, Reader};
use crate::listeners::Listeners;
use crate::memory::Memory;
use crate::{SandboxId, Sequence, Statistics, StoreError};

/// How many read the database at once.
const READERS: usize = 4;
/// How many events of all sandboxes are remembered.
const RECENT: usize = 1024;

pub(crate) struct Shared {
    memory: RwLock<Memory>,
    pub(crate) listeners: Listeners,
    reader: Arc<dyn Reader>,
    turns: Semaphore,
    commits: AtomicU64,
    batches: AtomicU64,
    synced: AtomicU64,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(memory: Memory, reader: Arc<dyn Reader>) -> Self {
        Self {
            memory: RwLock::new(memory),
            listeners: Listeners::new(),
            reader,
            turns: Semaphore::new(READERS),
            commits: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        }
    }

    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the database, away from whoever must not block.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _turn = self.turns.acquire().await.map_err(|_| StoreError::Closed)?;
        let reader = self.reader.clone();
        tokio::task::spawn_blocking(move || read(&*reader)).await.map_err(|_| StoreError::Closed)?
    }

    /// Lets everybody see what was committed: first what is true now, then that something happened.
    pub(crate) fn publish(&self, batch: &Batch) {
        let applied = || batch.changes.iter().flatten();
        {
            let mut memory = self.memory_mut();
            for change in applied() {
                memory.publish(change, RECENT);
            }
        }
        self.listeners.wake(applied().filter(|change| !change.events.is_empty()).map(|change| &change.sandbox.id));
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.commits.fetch_add(applied().count() as u64, Ordering::Relaxed);
        self.synced.fetch_add(u64::from(batch.synced), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, sandbox: &SandboxId) {
        self.memory_mut().forget(sandbox);
        self.listeners.end(sandbox);
    }

    pub(crate) fn trimmed(&self, sandbox: &SandboxId) -> Sequence {
        self.memory().trimmed(sandbox)
    }

    pub(crate) fn set_trimmed(&self, sandbox: &SandboxId, through: Sequence) {
        self.memory_mut().set_trimmed(sandbox, through);
    }

    /// Leaves nothing of deleted sandboxes in memory but their rows.
    pub(crate) fn shrink(&self) {
        self.memory_mut().shrink();
    }

    /// Ends all reading.
    pub(crate) fn end(&self) {
        self.memory_mut().close();
        self.listeners.end_all();
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            commits: self.commits.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            synced: self.synced.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
