//! Checkpoints the log in a thread beside the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use super::open::BUSY_TIMEOUT;
use crate::StoreError;

/// After about how many written pages a checkpoint is requested.
const CHECKPOINT_PAGES: u64 = 2048;
/// At how many pages of log the writer itself runs a checkpoint: under continuous load the log would only grow. The
/// reserve of the store has space for this many, so that a log of this length can be checkpointed on a full disk.
const MAX_LOG_PAGES: u64 = 4096;
/// The lower bound of that limit for a small reserve.
const MIN_LOG_PAGES: u64 = 64;

/// How long the writer waits for readers of the log.
const READER_TIMEOUT: Duration = Duration::from_millis(20);

pub(super) struct Checkpointer {
    /// Sends the number of pages that were written when the checkpoint was requested.
    requests: Option<SyncSender<u64>>,
    thread: Option<JoinHandle<()>>,
    /// The approximate number of pages written so far.
    written: u64,
    /// The value of `written` at the last request.
    requested_at: u64,
    checkpoint_pages: u64,
    max_log_pages: u64,
    progress: Arc<CheckpointProgress>,
}

/// The result of the last checkpoint.
#[derive(Debug, Default)]
struct CheckpointProgress {
    /// The pages in the log.
    pages: AtomicU64,
    /// The value of `written` at the request of the last complete checkpoint: those pages are in the database.
    moved: AtomicU64,
    /// Whether the disk has no space for the database to grow.
    is_full: AtomicBool,
}

/// The result of a checkpoint, in pages.
struct CheckpointResult {
    /// How many pages are in the log.
    log: u64,
    /// How many of them are in the database as well.
    moved: u64,
}

// === impl Checkpointer ===

impl Checkpointer {
    /// Starts the thread; `is_full` says whether the last checkpoint failed on a full disk.
    pub(super) fn start(connection: Connection, is_full: bool) -> Result<Self, StoreError> {
        let (requests, received) = sync_channel::<u64>(1);
        let progress = Arc::new(CheckpointProgress { is_full: is_full.into(), ..CheckpointProgress::default() });
        let shared_progress = progress.clone();
        let work = move || {
            while let Ok(written) = received.recv() {
                // The next checkpoint makes up for a failed one.
                let _ = shared_progress.record(written, checkpoint(&connection, "PASSIVE"));
            }
        };
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(work).map_err(StoreError::database)?;
        let (requests, thread) = (Some(requests), Some(thread));
        Ok(Self {
            requests,
            thread,
            written: 0,
            requested_at: 0,
            checkpoint_pages: CHECKPOINT_PAGES,
            max_log_pages: MAX_LOG_PAGES,
            progress,
        })
    }

    /// Limits the log to what a reserve of this many pages allows.
    pub(super) fn fit(&mut self, pages: u64) {
        self.max_log_pages = (pages / 2).clamp(MIN_LOG_PAGES, MAX_LOG_PAGES);
        self.checkpoint_pages = (self.max_log_pages / 4).min(CHECKPOINT_PAGES);
    }

    /// Counts written pages, and requests or runs a checkpoint when it is due: on a full disk, whenever the log is too
    /// long. Returns whether the disk has space for it.
    pub(super) fn after(&mut self, writer: &Connection, written: usize, is_disk_full: bool) -> bool {
        self.written += written as u64;
        let (pages, moved) = (self.progress.pages.load(Ordering::Relaxed), self.progress.moved.load(Ordering::Relaxed));
        let is_long = pages > self.max_log_pages || self.written.saturating_sub(moved) > self.max_log_pages;
        if self.written - self.requested_at >= self.checkpoint_pages || (is_long && is_disk_full) {
            self.requested_at = self.written;
            if is_long {
                // A backup may read for a long time; no commit waits for that.
                let _ = self.checkpoint(writer, "RESTART");
            } else if let Some(requests) = &self.requests {
                // A pending request is sufficient.
                let _ = requests.try_send(self.written);
            }
        }
        !self.progress.is_full.load(Ordering::Relaxed)
    }

    /// Checkpoints the whole log and truncates it, unless a reader uses it.
    pub(super) fn truncate(&self, writer: &Connection) -> Result<(), StoreError> {
        self.checkpoint(writer, "TRUNCATE")
    }

    /// Runs a checkpoint in the caller's thread; it waits for readers only briefly.
    fn checkpoint(&self, writer: &Connection, how: &str) -> Result<(), StoreError> {
        let _ = writer.busy_timeout(READER_TIMEOUT);
        let moved = self.progress.record(self.written, checkpoint(writer, how));
        let _ = writer.busy_timeout(BUSY_TIMEOUT);
        moved
    }

    pub(super) fn stop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl CheckpointProgress ===

impl CheckpointProgress {
    fn record(&self, written: u64, result: Result<CheckpointResult, StoreError>) -> Result<(), StoreError> {
        match &result {
            Ok(result) => {
                self.is_full.store(false, Ordering::Relaxed);
                self.pages.store(result.log, Ordering::Relaxed);
                if result.moved == result.log {
                    self.moved.fetch_max(written, Ordering::Relaxed);
                }
            }
            Err(StoreError::Full) => self.is_full.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        result.map(drop)
    }
}

/// Runs a checkpoint; PASSIVE skips pages that readers still need.
fn checkpoint(connection: &Connection, how: &str) -> Result<CheckpointResult, StoreError> {
    let pages = |pages: i64| u64::try_from(pages).unwrap_or(0);
    let sql = format!("PRAGMA wal_checkpoint({how})");
    Ok(connection.query_row(&sql, [], |row| {
        let (is_blocked, log, moved): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        // A checkpoint that resets the log leaves no pages in it.
        let log = if how == "PASSIVE" || is_blocked { pages(log) } else { 0 };
        Ok(CheckpointResult { log, moved: pages(moved).min(log) })
    })?)
}
