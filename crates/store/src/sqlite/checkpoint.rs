//! What is in the log is moved into the database, beside the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use super::open::PATIENCE;
use crate::StoreError;

/// After how many changes the log is moved.
const OFTEN: usize = 512;
/// At how many pages of log the writer itself stops for it: under a load without a pause the log would only grow.
const TOO_LONG: i64 = 16_384;

/// How long the writer waits for whoever reads the log.
const BRIEFLY: Duration = Duration::from_millis(20);

pub(super) struct Checkpoints {
    wanted: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    changes: usize,
    /// The pages of the log, when it was last moved.
    pages: Arc<AtomicI64>,
}

// === impl Checkpoints ===

impl Checkpoints {
    pub(super) fn start(connection: Connection) -> Result<Self, StoreError> {
        let (wanted, asked) = sync_channel::<()>(1);
        let pages = Arc::new(AtomicI64::new(0));
        let counted = pages.clone();
        let work = move || {
            while asked.recv().is_ok() {
                // One that fails is made up for by the next.
                if let Ok(pages) = checkpoint(&connection, "PRAGMA wal_checkpoint(PASSIVE)") {
                    counted.store(pages, Ordering::Relaxed);
                }
            }
        };
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(work).map_err(StoreError::database)?;
        Ok(Self { wanted: Some(wanted), thread: Some(thread), changes: 0, pages })
    }

    /// Counts changes, and has the log moved when it is time.
    pub(super) fn after(&mut self, writer: &Connection, changes: usize) {
        self.changes += changes;
        if self.changes < OFTEN {
            return;
        }
        self.changes = 0;
        if self.pages.load(Ordering::Relaxed) > TOO_LONG {
            // A backup reads for as long as it takes; no commit waits for that.
            let _ = writer.busy_timeout(BRIEFLY);
            let _ = checkpoint(writer, "PRAGMA wal_checkpoint(RESTART)");
            let _ = writer.busy_timeout(PATIENCE);
            self.pages.store(0, Ordering::Relaxed);
        } else if let Some(wanted) = &self.wanted {
            // One that is asked for already will do.
            let _ = wanted.try_send(());
        }
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

/// The pages that are in the log.
fn checkpoint(connection: &Connection, how: &str) -> rusqlite::Result<i64> {
    connection.query_row(how, [], |row| row.get(1))
}
