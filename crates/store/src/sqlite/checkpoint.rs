//! What is in the log is moved into the database, beside the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use super::open::PATIENCE;
use crate::StoreError;

/// After how many pages, counted roughly, the log is moved.
const OFTEN: u64 = 2048;
/// At how many pages of log the writer itself stops for it: under a load without a pause the log would only grow. The
/// reserve of the store has room for so many, so that a log of this length can be moved on a full disk.
const TOO_LONG: u64 = 4096;
/// The shortest log that is too long, however small the reserve is.
const LEAST: u64 = 64;

/// How long the writer waits for whoever reads the log.
const BRIEFLY: Duration = Duration::from_millis(20);

pub(super) struct Checkpoints {
    /// Takes how many pages were written when a checkpoint was asked for.
    wanted: Option<SyncSender<u64>>,
    thread: Option<JoinHandle<()>>,
    /// How many pages were written, counted roughly.
    written: u64,
    /// How many of them when the last checkpoint was asked for.
    asked_at: u64,
    often: u64,
    too_long: u64,
    progress: Arc<Progress>,
}

/// What the last checkpoint did.
#[derive(Debug, Default)]
struct Progress {
    /// The pages of the log.
    pages: AtomicU64,
    /// How many pages had been written when it was asked for: those are in the database.
    moved: AtomicU64,
    /// Whether the disk has no room for the database to grow.
    is_full: AtomicBool,
}

/// What a checkpoint did, in pages.
struct Moved {
    /// How many are in the log.
    log: u64,
    /// How many of them are in the database as well.
    moved: u64,
}

// === impl Checkpoints ===

impl Checkpoints {
    /// Begins; `is_full` says whether the disk had no room for the last one.
    pub(super) fn start(connection: Connection, is_full: bool) -> Result<Self, StoreError> {
        let (wanted, asked) = sync_channel::<u64>(1);
        let progress = Arc::new(Progress { is_full: is_full.into(), ..Progress::default() });
        let told = progress.clone();
        let work = move || {
            while let Ok(written) = asked.recv() {
                // One that fails is made up for by the next.
                let _ = told.note(written, checkpoint(&connection, "PASSIVE"));
            }
        };
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(work).map_err(StoreError::database)?;
        let (wanted, thread) = (Some(wanted), Some(thread));
        Ok(Self { wanted, thread, written: 0, asked_at: 0, often: OFTEN, too_long: TOO_LONG, progress })
    }

    /// Keeps the log short enough for a reserve of so many pages.
    pub(super) fn fit(&mut self, pages: u64) {
        self.too_long = (pages / 2).clamp(LEAST, TOO_LONG);
        self.often = (self.too_long / 4).min(OFTEN);
    }

    /// Counts pages that were written, and has the log moved when it is time: on a full disk, whenever it is too long. Says
    /// whether the disk has room for that.
    pub(super) fn after(&mut self, writer: &Connection, written: usize, is_disk_full: bool) -> bool {
        self.written += written as u64;
        let (pages, moved) = (self.progress.pages.load(Ordering::Relaxed), self.progress.moved.load(Ordering::Relaxed));
        let is_long = pages > self.too_long || self.written.saturating_sub(moved) > self.too_long;
        if self.written - self.asked_at >= self.often || (is_long && is_disk_full) {
            self.asked_at = self.written;
            if is_long {
                // A backup reads for as long as it takes; no commit waits for that.
                let _ = self.checkpoint(writer, "RESTART");
            } else if let Some(wanted) = &self.wanted {
                // One that is asked for already will do.
                let _ = wanted.try_send(self.written);
            }
        }
        !self.progress.is_full.load(Ordering::Relaxed)
    }

    /// Moves the whole log, and gives its blocks back to the disk, unless somebody reads it.
    pub(super) fn truncate(&self, writer: &Connection) -> Result<(), StoreError> {
        self.checkpoint(writer, "TRUNCATE")
    }

    /// Moves the log now, unless somebody reads it for longer than a moment.
    fn checkpoint(&self, writer: &Connection, how: &str) -> Result<(), StoreError> {
        let _ = writer.busy_timeout(BRIEFLY);
        let moved = self.progress.note(self.written, checkpoint(writer, how));
        let _ = writer.busy_timeout(PATIENCE);
        moved
    }

    pub(super) fn stop(&mut self) {
        self.wanted = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl Progress ===

impl Progress {
    fn note(&self, written: u64, done: Result<Moved, StoreError>) -> Result<(), StoreError> {
        match &done {
            Ok(done) => {
                self.is_full.store(false, Ordering::Relaxed);
                self.pages.store(done.log, Ordering::Relaxed);
                if done.moved == done.log {
                    self.moved.fetch_max(written, Ordering::Relaxed);
                }
            }
            Err(StoreError::Full) => self.is_full.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        done.map(drop)
    }
}

/// Moves what nobody reads.
fn checkpoint(connection: &Connection, how: &str) -> Result<Moved, StoreError> {
    let pages = |pages: i64| u64::try_from(pages).unwrap_or(0);
    let sql = format!("PRAGMA wal_checkpoint({how})");
    Ok(connection.query_row(&sql, [], |row| {
        let (is_blocked, log, moved): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        // One that begins the log anew leaves none of it.
        let log = if how == "PASSIVE" || is_blocked { pages(log) } else { 0 };
        Ok(Moved { log, moved: pages(moved).min(log) })
    })?)
}
