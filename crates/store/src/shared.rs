//! The state that the store, its writer thread and its cursors share.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Semaphore;

use crate::backend::{CommittedBatch, Reader};
use crate::cache::RowCache;
use crate::listeners::Listeners;
use crate::{SandboxId, Sequence, StoreError, StoreStatistics};

/// How many reads of the database run concurrently.
const READERS: usize = 4;
/// How many recent events of all sandboxes are cached.
const RECENT: usize = 1024;

pub(crate) struct SharedState {
    cache: RwLock<RowCache>,
    pub(crate) listeners: Listeners,
    reader: Arc<dyn Reader>,
    read_permits: Semaphore,
    commits: AtomicU64,
    batches: AtomicU64,
    synced: AtomicU64,
}

// === impl SharedState ===

impl SharedState {
    pub(crate) fn new(cache: RowCache, reader: Arc<dyn Reader>) -> Self {
        Self {
            cache: RwLock::new(cache),
            listeners: Listeners::new(),
            reader,
            read_permits: Semaphore::new(READERS),
            commits: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        }
    }

    pub(crate) fn cache(&self) -> RwLockReadGuard<'_, RowCache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache_mut(&self) -> RwLockWriteGuard<'_, RowCache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the database on a blocking thread.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.read_permits.acquire().await.map_err(|_| StoreError::Closed)?;
        let reader = self.reader.clone();
        tokio::task::spawn_blocking(move || read(&*reader)).await.map_err(|_| StoreError::Closed)?
    }

    /// Publishes a committed batch: first the new rows, then the wakeups.
    pub(crate) fn publish(&self, batch: &CommittedBatch) {
        let applied = || batch.changes.iter().flatten();
        {
            let mut cache = self.cache_mut();
            for change in applied() {
                cache.publish(change, RECENT);
            }
        }
        self.listeners.wake(applied().filter(|change| !change.events.is_empty()).map(|change| &change.sandbox.id));
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.commits.fetch_add(applied().count() as u64, Ordering::Relaxed);
        self.synced.fetch_add(u64::from(batch.synced), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, sandbox: &SandboxId) {
        self.cache_mut().remove(sandbox);
        self.listeners.close(sandbox);
    }

    pub(crate) fn trimmed(&self, sandbox: &SandboxId) -> Sequence {
        self.cache().trimmed(sandbox)
    }

    pub(crate) fn set_trimmed(&self, sandbox: &SandboxId, through: Sequence) {
        self.cache_mut().set_trimmed(sandbox, through);
    }

    /// Drops the cached events of deleted sandboxes.
    pub(crate) fn shrink(&self) {
        self.cache_mut().shrink();
    }

    /// Closes all cursors.
    pub(crate) fn close(&self) {
        self.cache_mut().close();
        self.listeners.close_all();
    }

    pub(crate) fn statistics(&self) -> StoreStatistics {
        StoreStatistics {
            commits: self.commits.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            synced: self.synced.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState").finish_non_exhaustive()
    }
}
