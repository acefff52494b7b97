//! The store as the rest of Carrel sees it.

mod retention;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::{mpsc, oneshot};

use crate::backend::{Backend, Reader};
use crate::memory::Memory;
use crate::regular_file::require_regular;
use crate::shared::Shared;
use crate::sqlite::{Sqlite, SqliteReader, inspect};
use crate::writer::{Request, Writer};
use crate::{
    AllEvents, Change, Committed, Events, EventsError, Exec, ExecId, ExecState, Sandbox, SandboxId, Sequence,
    StoreError, StoreOrigin,
};

/// Durable rows and the log of events. Clones are the same store; when the last one goes, it closes, and
/// that is waited for.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    origin: Arc<StoreOrigin>,
}

/// The way to the writer. When nobody has it any more, the writer finishes.
#[derive(Debug)]
struct Queue {
    sender: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which start of the host this is; none is what the kernel says.
    pub boot_id: Option<String>,
    /// How many changes may wait; whoever has one more waits for its turn.
    pub queue: usize,
    /// How many changes are committed at once.
    pub batch: usize,
    /// How many events of each sandbox are remembered; older ones are read from the database.
    pub recent: usize,
    /// How many pages the database may have; none is as many as the disk has.
    pub most_pages: Option<u32>,
    /// A small file outside the store's directory, where the store notes what was flushed; none is no such file. By it a
    /// store is recognized that was restored or replaced: see [`Store::inspect`].
    pub home_mark: Option<PathBuf>,
    /// How many bytes are kept beside the database, so that on a full disk sandboxes can still end and be removed; at most a
    /// sixteenth of the disk. 0 is none.
    pub reserve: u64,
    /// How one byte of an open file is locked. With it SQLite never writes to memory for which a full disk has no blocks,
    /// which would kill the process; without it that is only unlikely.
    pub index_lock: Option<ByteLock>,
}

/// Locks a byte of an open file, exclusively or not, for that open file and not for the process: an exclusive lock is refused
/// (`false`) while another open file has one, a shared one waits.
pub type ByteLock = fn(file: &File, byte: u64, exclusive: bool) -> io::Result<bool>;

/// What the store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Changes that became true.
    pub commits: u64,
    /// Transactions that they took.
    pub batches: u64,
    /// Those of them that waited for the disk.
    pub synced: u64,
}

// === impl Store ===

impl Store {
    /// Opens a store: makes the database or migrates it, and remembers what has to be at hand. One process at a time.
    pub fn open(path: &Path, options: Options) -> Result<Self, StoreError> {
        let boot = match &options.boot_id {
            Some(boot) => boot.clone(),
            None => boot_id()?,
        };
        require_regular(path).map_err(|error| StoreError::file(path, error))?;
        let sqlite = Sqlite::open(path, &boot, &options)?;
        let origin = sqlite.origin().clone();
        let reader = Arc::new(SqliteReader::new(path, sqlite.index()));
        Self::over(Box::new(sqlite), reader, &options, origin)
    }

    /// Says where a store comes from, and changes nothing. Nobody may have it open to write.
    pub fn inspect(path: &Path, home_mark: Option<&Path>) -> Result<StoreOrigin, StoreError> {
        require_regular(path).map_err(|error| StoreError::file(path, error))?;
        inspect(path, home_mark)
    }

    /// Where the store came from, as it was before it was opened.
    pub fn opened(&self) -> &StoreOrigin {
        &self.origin
    }

    fn over(
        mut backend: Box<dyn Backend>,
        reader: Arc<dyn Reader>,
        options: &Options,
        origin: StoreOrigin,
    ) -> Result<Self, StoreError> {
        let memory = Memory::new(backend.load()?, options.recent);
        let shared = Arc::new(Shared::new(memory, reader));
        let (sender, requests) = mpsc::channel(options.queue.max(1));
        let writer = Writer::new(backend, requests, shared.clone(), options.batch.max(1));
        let thread = thread::Builder::new().name("store".into());
        let writer = thread.spawn(|| writer.run()).map_err(StoreError::database)?;
        let queue = Arc::new(Queue { sender: Some(sender), writer: Some(writer) });
        Ok(Self { shared, queue, origin: Arc::new(origin) })
    }

    /// Makes a change true: when it returns, everybody sees it. One who stops waiting does not stop the change.
    pub async fn commit(&self, change: Change) -> Result<Committed, StoreError> {
        self.ask(|reply| Request::Commit(Box::new(change), reply)).await?
    }

    /// A sandbox, as long as it is not purged.
    pub fn sandbox(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.shared.memory().sandbox(id)
    }

    /// All sandboxes that are not purged, in no order.
    pub fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.shared.memory().sandboxes()
    }

    /// An exec, with an event of its sandbox after which nothing is missed: it was the newest no later than the exec was
    /// as it is returned.
    pub async fn exec(&self, id: &ExecId) -> Result<Option<(Arc<Exec>, Sequence)>, StoreError> {
        // One that runs is in memory unless it is about to be published; by the second time it may have ended.
        for _ in 0..2 {
            if let Some(found) = self.shared.memory().running_exec(id) {
                return Ok(Some(found));
            }
            let wanted = id.clone();
            match self.shared.read(move |reader| reader.exec(&wanted)).await? {
                None => return Ok(None),
                Some(exec) if exec.state == ExecState::Running => {}
                // It will not change any more.
                Some(exec) => {
                    let sequence = self.shared.memory().last_sequence(&exec.sandbox);
                    return Ok(sequence.map(|sequence| (Arc::new(exec), sequence)));
                }
            }
        }
        Ok(None)
    }

    /// The execs that have not ended, of one sandbox or of all, by their ids, with the newest event of their sandbox.
    pub fn running_execs(&self, sandbox: Option<&SandboxId>) -> Vec<(Arc<Exec>, Sequence)> {
        self.shared.memory().running_execs(sandbox)
    }

    /// All execs of a sandbox, in the order of their creation.
    pub async fn execs(&self, sandbox: &SandboxId) -> Result<Vec<Arc<Exec>>, StoreError> {
        let wanted = sandbox.clone();
        let before: HashSet<ExecId> =
            self.running_execs(Some(sandbox)).into_iter().map(|(exec, _)| exec.id.clone()).collect();
        let execs = self.shared.read(move |reader| reader.execs(&wanted)).await?;
        let memory = self.shared.memory();
        // One that runs and is not published yet is nobody's business yet.
        let published = |exec: &Exec| {
            exec.state != ExecState::Running || before.contains(&exec.id) || memory.running_exec(&exec.id).is_some()
        };
        Ok(execs.into_iter().filter(published).map(Arc::new).collect())
    }

    /// The events of a sandbox after one of them, and those that will come.
    pub fn events(&self, sandbox: &SandboxId, after: Sequence) -> Result<Events, EventsError> {
        let events = Events::new(self.shared.clone(), sandbox.clone(), after);
        let newest = self.shared.memory().anchor(sandbox, after)?;
        Ok(events.begin(newest))
    }

    /// The events of all sandboxes after a position, and those that will come; without a position, only those.
    pub fn all_events(&self, after: Option<u64>) -> AllEvents {
        AllEvents::new(self.shared.clone(), after)
    }

    /// Removes a sandbox with its execs and events. Their ids stay taken.
    pub async fn purge(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.ask(|reply| Request::Purge(id.clone(), reply)).await?
    }

    /// Commits what is queued, takes nothing more, ends all reading of events, and closes the database.
    pub async fn close(&self) {
        // One that is closed already has nothing left to do.
        let _ = self.ask(Request::Close).await;
    }

    /// What was done since the store was opened.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let queue = self.queue.sender.as_ref().ok_or(StoreError::Closed)?;
        queue.send(request(reply)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)
    }
}

// === impl Queue ===

impl Drop for Queue {
    /// Waits until the writer has finished, so that whoever opens the file next finds nobody there.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            boot_id: None,
            queue: 1024,
            batch: 256,
            recent: 64,
            most_pages: None,
            home_mark: None,
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
