//! The public interface of the store.

mod retention;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::{mpsc, oneshot};

use crate::backend::{Backend, Reader};
use crate::cache::RowCache;
use crate::regular_file::require_regular;
use crate::shared::SharedState;
use crate::sqlite::{Sqlite, SqliteReader, has_sandboxes, inspect};
use crate::writer::{StoreWriter, WriteRequest};
use crate::{
    AllEvents, Change, CommittedChange, Events, EventsError, Exec, ExecId, ExecState, Sandbox, SandboxId, Sequence,
    StoreError, StoreOrigin,
};

/// Persistent rows and the event log. Clones share the store; dropping the last one closes it and blocks until that is
/// done.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<SharedState>,
    queue: Arc<WriterQueue>,
    origin: Arc<StoreOrigin>,
}

/// The channel to the writer thread. When the last handle is dropped, the writer finishes.
#[derive(Debug)]
struct WriterQueue {
    sender: Option<mpsc::Sender<WriteRequest>>,
    writer: Option<JoinHandle<()>>,
}

/// The options of [`Store::open`].
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The boot id of the host; `None` reads it from the kernel.
    pub boot_id: Option<String>,
    /// The capacity of the queue; a commit waits while it is full.
    pub queue: usize,
    /// The maximum number of changes in a batch.
    pub batch: usize,
    /// How many recent events of each sandbox are cached; older ones are read from the database.
    pub recent: usize,
    /// The maximum number of pages of the database; `None` is limited by the disk only.
    pub max_pages: Option<u32>,
    /// A small file outside the store's directory, in which the store records what was fsynced. It reveals a store that
    /// was restored or replaced: see [`Store::inspect`].
    pub home_marker: Option<PathBuf>,
    /// How many bytes are reserved beside the database, so that on a full disk sandboxes can still be stopped and
    /// deleted; at most a sixteenth of the disk. 0 reserves nothing.
    pub reserve: u64,
    /// Locks one byte of an open file. With it SQLite never writes to a mapped page without blocks on a full disk,
    /// which would kill the process; without it that is only unlikely.
    pub index_lock: Option<ByteLock>,
}

/// Locks a byte of an open file, exclusively or shared, as an open file description lock: an exclusive lock fails
/// (`false`) while another open file holds one, a shared lock waits.
pub type ByteLock = fn(file: &File, byte: u64, exclusive: bool) -> io::Result<bool>;

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Committed changes.
    pub commits: u64,
    /// Transactions for those changes.
    pub batches: u64,
    /// Transactions that were fsynced.
    pub synced: u64,
}

// === impl Store ===

impl Store {
    /// Opens a store: creates or migrates the database, and fills the cache. Only one process may have it open.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let boot = match &options.boot_id {
            Some(boot) => boot.clone(),
            None => boot_id()?,
        };
        require_regular(path).map_err(|error| StoreError::file(path, error))?;
        let sqlite = Sqlite::open(path, &boot, &options)?;
        let origin = sqlite.origin().clone();
        let reader = Arc::new(SqliteReader::new(path, sqlite.index()));
        Self::with_backend(Box::new(sqlite), reader, &options, origin)
    }

    /// Tells where a store comes from, without changing it. No process may have it open for writing.
    pub fn inspect(path: &Path, home_marker: Option<&Path>) -> Result<StoreOrigin, StoreError> {
        require_regular(path).map_err(|error| StoreError::file(path, error))?;
        inspect(path, home_marker)
    }

    /// Whether the database at a path has sandboxes, without a check of its other rows. A daemon may use it meanwhile.
    pub fn has_sandboxes(path: &Path) -> Result<bool, StoreError> {
        require_regular(path).map_err(|error| StoreError::file(path, error))?;
        has_sandboxes(path)
    }

    /// Where the store came from, as determined before it was opened.
    pub fn origin(&self) -> &StoreOrigin {
        &self.origin
    }

    fn with_backend(
        mut backend: Box<dyn Backend>,
        reader: Arc<dyn Reader>,
        options: &StoreOptions,
        origin: StoreOrigin,
    ) -> Result<Self, StoreError> {
        let cache = RowCache::new(backend.load()?, options.recent);
        let shared = Arc::new(SharedState::new(cache, reader));
        let (sender, requests) = mpsc::channel(options.queue.max(1));
        let writer = StoreWriter::new(backend, requests, shared.clone(), options.batch.max(1));
        let thread = thread::Builder::new().name("store".into());
        let writer = thread.spawn(|| writer.run()).map_err(StoreError::database)?;
        let queue = Arc::new(WriterQueue { sender: Some(sender), writer: Some(writer) });
        Ok(Self { shared, queue, origin: Arc::new(origin) })
    }

    /// Commits a change. When it returns, all readers see it. Dropping the future does not cancel the change.
    pub async fn commit(&self, change: Change) -> Result<CommittedChange, StoreError> {
        self.request(|reply| WriteRequest::Commit(Box::new(change), reply)).await?
    }

    /// A sandbox that is not purged.
    pub fn sandbox(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.shared.cache().sandbox(id)
    }

    /// All sandboxes that are not purged, unordered.
    pub fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.shared.cache().sandboxes()
    }

    /// An exec, with a sequence of its sandbox from which a cursor misses no later change of the exec.
    pub async fn exec(&self, id: &ExecId) -> Result<Option<(Arc<Exec>, Sequence)>, StoreError> {
        // A running exec is cached unless its commit is not published yet; by the second read it may have ended.
        for _ in 0..2 {
            if let Some(found) = self.shared.cache().running_exec(id) {
                return Ok(Some(found));
            }
            let wanted = id.clone();
            match self.shared.read(move |reader| reader.exec(&wanted)).await? {
                None => return Ok(None),
                Some(exec) if exec.state == ExecState::Running => {}
                // It is final.
                Some(exec) => {
                    let sequence = self.shared.cache().last_sequence(&exec.sandbox);
                    return Ok(sequence.map(|sequence| (Arc::new(exec), sequence)));
                }
            }
        }
        Ok(None)
    }

    /// The execs that have not ended, of one sandbox or of all, sorted by id, with the newest sequence of their
    /// sandbox.
    pub fn running_execs(&self, sandbox: Option<&SandboxId>) -> Vec<(Arc<Exec>, Sequence)> {
        self.shared.cache().running_execs(sandbox)
    }

    /// All execs of a sandbox, in creation order.
    pub async fn execs(&self, sandbox: &SandboxId) -> Result<Vec<Arc<Exec>>, StoreError> {
        let wanted = sandbox.clone();
        let before: HashSet<ExecId> =
            self.running_execs(Some(sandbox)).into_iter().map(|(exec, _)| exec.id.clone()).collect();
        let execs = self.shared.read(move |reader| reader.execs(&wanted)).await?;
        let cache = self.shared.cache();
        // A running exec that is not published yet stays hidden.
        let published = |exec: &Exec| {
            exec.state != ExecState::Running || before.contains(&exec.id) || cache.running_exec(&exec.id).is_some()
        };
        Ok(execs.into_iter().filter(published).map(Arc::new).collect())
    }

    /// A cursor over the events of a sandbox after a sequence, continuing with new ones.
    pub fn events(&self, sandbox: &SandboxId, after: Sequence) -> Result<Events, EventsError> {
        let events = Events::new(self.shared.clone(), sandbox.clone(), after);
        let newest = self.shared.cache().newest_after(sandbox, after)?;
        Ok(events.with_newest(newest))
    }

    /// A cursor over the events of all sandboxes after a position; without a position, over new events only.
    pub fn all_events(&self, after: Option<u64>) -> AllEvents {
        AllEvents::new(self.shared.clone(), after)
    }

    /// Removes a sandbox with its execs and events. Their ids stay reserved.
    pub async fn purge(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.request(|reply| WriteRequest::Purge(id.clone(), reply)).await?
    }

    /// Commits what is queued, rejects further requests, closes all cursors and the database.
    pub async fn close(&self) {
        // A closed store needs nothing.
        let _ = self.request(WriteRequest::Close).await;
    }

    /// Counters since the store was opened.
    pub fn statistics(&self) -> StoreStatistics {
        self.shared.statistics()
    }

    async fn request<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> WriteRequest) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let queue = self.queue.sender.as_ref().ok_or(StoreError::Closed)?;
        queue.send(request(reply)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)
    }
}

// === impl WriterQueue ===

impl Drop for WriterQueue {
    /// Waits for the writer thread, so that the file is closed before another process opens it.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

// === impl StoreOptions ===

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            boot_id: None,
            queue: 1024,
            batch: 256,
            recent: 64,
            max_pages: None,
            home_marker: None,
            reserve: 16 << 20,
            index_lock: None,
        }
    }
}

fn boot_id() -> Result<String, StoreError> {
    let path = PathBuf::from("/proc/sys/kernel/random/boot_id");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(error) => Err(StoreError::file(path, error)),
    }
}

#[cfg(test)]
mod tests;
