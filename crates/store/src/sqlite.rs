//! The SQLite backend.
//!
//! With the write-ahead log a commit is one sequential write, and readers run concurrently. A batch that has to survive
//! a power cut waits for one fsync of the log; any other batch is in the page cache after its commit, and survives a
//! crash of the daemon.
//!
//! A power cut takes the last commits without fsync, and clients may have seen their events. So each sandbox has a
//! ceiling: an fsynced commit raises it to 64 above its newest sequence, and a commit that would exceed it is fsynced.
//! After a power cut sequences continue above the ceiling, and the gap is recorded.

mod audit;
mod checkpoint;
mod checksum;
mod copy;
mod first_page;
mod full_disk;
mod inspect;
mod open;
mod read;
mod rebuild;
mod rows;
mod salvage;
mod schema;
mod sequence_floor;
mod trim;
mod wal_index;
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

pub(crate) use self::audit::{Audit, StoredSandbox};
use self::checkpoint::Checkpointer;
pub(crate) use self::checksum::DamagedRow;
pub(crate) use self::copy::{
    copy_store, directory_of, finish, mark_restored, remove_database, sync_directory, timestamp,
};
pub(crate) use self::inspect::{has_log, has_sandboxes, inspect, log_of, with_suffix};
pub(crate) use self::read::SqliteReader;
pub(crate) use self::rebuild::rebuild;
pub(crate) use self::trim::TrimmedHistory;
use self::wal_index::WalIndex;
use self::write::WrittenChange;
use crate::backend::{AppliedChange, Backend, CommittedBatch, EventRange, LoadedRows};
use crate::marker::MarkerFile;
use crate::reserve::DiskReserve;
use crate::{Change, ExecId, SandboxId, SandboxState, Sequence, StoreError, StoreOrigin};

/// The writer's connection.
pub(crate) struct Sqlite {
    connection: Connection,
    checkpoints: Checkpointer,
    /// Whether commits are fsynced, as the connection is currently configured.
    flushes: bool,
    /// Whether an fsync failed: then it is unknown which pages of the log are on the disk.
    flush_failed: bool,
    /// The newest position in use.
    position: u64,
    /// Records in the home what was fsynced.
    marker: Option<MarkerFile>,
    origin: StoreOrigin,
    sequences: HashMap<SandboxId, SequenceState>,
    reserve: DiskReserve,
    /// Whether it was logged that the log cannot be checkpointed.
    log_is_stuck: bool,
    /// Declared last: the file must be closed after all connections.
    index: Option<WalIndex>,
}

/// The sequences of a sandbox in use.
#[derive(Clone, Copy, Debug)]
struct SequenceState {
    /// No new event gets a sequence up to this one.
    newest: Sequence,
    /// No sequence above this one is in use, even after a power cut.
    ceiling: Sequence,
}

/// How far an fsynced commit raises the ceiling of a sandbox.
const MARGIN: Sequence = 64;
/// The approximate number of pages that a small change writes to the log.
const PAGES_OF_CHANGE: usize = 4;
/// The page size in bytes.
const PAGE: usize = 4096;

const FLUSH_FAILED: &str = "an earlier fsync failed, and the log cannot be reset while a reader uses it";

// === impl Sqlite ===

impl Sqlite {
    /// Where the store came from, as determined before it was opened.
    pub(crate) fn origin(&self) -> &StoreOrigin {
        &self.origin
    }

    /// The WAL index, which must stay open while this process has connections.
    pub(crate) fn index(&self) -> Option<Arc<File>> {
        self.index.as_ref().map(WalIndex::file)
    }

    /// Records in the home that all commits so far are fsynced.
    fn write_marker(&mut self) {
        if let Some(marker) = &mut self.marker {
            marker.write(self.position);
        }
    }

    /// Whether a batch has to survive a power cut.
    fn must_flush(&self, batch: &[Change]) -> bool {
        let mut events: HashMap<&SandboxId, Sequence> = HashMap::new();
        batch.iter().any(|change| {
            let count = events.entry(&change.sandbox.id).or_default();
            *count += change.events.len() as Sequence;
            let passes = |mark: &SequenceState| mark.newest.saturating_add(*count) > mark.ceiling;
            change.synced || self.sequences.get(&change.sandbox.id).is_none_or(passes)
        })
    }

    fn commit_all(&mut self, batch: &[Change]) -> Result<CommittedBatch, StoreError> {
        let synced = self.must_flush(batch);
        let margin = synced.then_some(MARGIN);
        let mut position = self.position;
        let written = self.transact(synced, |connection| {
            // The batch is cloned: on a full disk a part of it is committed again.
            let write = |change: &Change| write::apply(connection, change.clone(), margin, &mut position);
            batch.iter().map(write).collect::<Result<Vec<_>, _>>()
        })?;
        self.position = position;
        if synced {
            self.write_marker();
        }
        let changes: Vec<_> = written.into_iter().map(|written| written.map(|written| self.record(written))).collect();
        self.after_commit(batch.iter().map(|change| PAGES_OF_CHANGE + change.bytes() / PAGE).sum());
        Ok(CommittedBatch { changes, synced })
    }

    /// On a full disk, commits the changes that end or remove something, using the reserve if needed, and refuses the
    /// others.
    fn commit_essential(&mut self, batch: &[Change]) -> Result<CommittedBatch, StoreError> {
        let essential: Vec<Change> = batch.iter().filter(|change| change.is_essential()).cloned().collect();
        if essential.is_empty() {
            return Err(StoreError::Full);
        }
        let CommittedBatch { changes, synced } = loop {
            match self.commit_all(&essential) {
                Err(StoreError::Full) if self.reserve.release() => {}
                committed => break committed?,
            }
        };
        let mut committed = changes.into_iter();
        let outcome = |change: &Change| {
            let outcome = if change.is_essential() { committed.next() } else { None };
            outcome.unwrap_or(Err(StoreError::Full))
        };
        Ok(CommittedBatch { changes: batch.iter().map(outcome).collect(), synced })
    }

    fn record(&mut self, written: WrittenChange) -> AppliedChange {
        let id = written.applied.sandbox.id.clone();
        let newest = written.newest;
        if written.applied.sandbox.state == SandboxState::Deleted {
            // It rarely changes again: every further commit is fsynced.
            self.sequences.remove(&id);
        } else {
            self.sequences.insert(id, SequenceState { newest, ceiling: written.ceiling });
        }
        written.applied
    }

    fn set_flushes(&mut self, flushes: bool) -> Result<(), StoreError> {
        if self.flushes != flushes {
            let level = if flushes { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.flushes = flushes;
        }
        Ok(())
    }

    /// Runs work in one transaction, fsynced or not.
    fn transact<T>(
        &mut self,
        flush: bool,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.recover()?;
        if let Some(index) = &mut self.index {
            index.make_room(&self.connection)?;
        }
        self.set_flushes(flush)?;
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let done =
            work(&self.connection).and_then(|done| self.connection.prepare_cached("COMMIT")?.execute([]).map(|_| done));
        if let Err(error) = &done {
            self.flush_failed |= is_failed_flush(error);
            self.roll_back()?;
        }
        Ok(done?)
    }

    /// After a failed fsync, checkpoints the log and resets it: the kernel does not retry a failed write-back, and a
    /// page that is missing from the log hides all pages after it.
    fn recover(&mut self) -> Result<(), StoreError> {
        self.roll_back()?;
        if self.flush_failed {
            self.flush_failed = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        }
        if self.flush_failed { Err(StoreError::database(io::Error::other(FLUSH_FAILED))) } else { Ok(()) }
    }

    fn roll_back(&self) -> Result<(), StoreError> {
        // Some errors have already rolled back the transaction.
        if self.connection.is_autocommit() { Ok(()) } else { Ok(self.connection.execute_batch("ROLLBACK")?) }
    }
}

impl Backend for Sqlite {
    fn load(&mut self) -> Result<LoadedRows, StoreError> {
        let loaded = read::load(&self.connection).map_err(StoreError::reading)?;
        self.sequences =
            loaded.sequences.into_iter().map(|(id, newest, ceiling)| (id, SequenceState { newest, ceiling })).collect();
        Ok(loaded.loaded)
    }

    fn commit(&mut self, batch: Vec<Change>) -> Result<CommittedBatch, StoreError> {
        self.reserve.restore();
        if !self.reserve.is_used() {
            match self.commit_all(&batch) {
                Err(StoreError::Full) if batch.iter().any(Change::is_essential) => {}
                committed => return committed,
            }
        }
        self.commit_essential(&batch)
    }

    fn purge(&mut self, sandbox: &SandboxId) -> Result<(), StoreError> {
        self.reserve.restore();
        let found = loop {
            match self.transact(false, |connection| write::purge(connection, sandbox)) {
                Err(StoreError::Full) if self.reserve.release() => {}
                purged => break purged?,
            }
        };
        self.sequences.remove(sandbox);
        self.after_commit(PAGES_OF_CHANGE);
        if found { Ok(()) } else { Err(StoreError::Unknown) }
    }

    fn trim_events(
        &mut self,
        sandbox: &SandboxId,
        range: EventRange,
        announce: &mut dyn FnMut(Sequence),
    ) -> Result<usize, StoreError> {
        let trimmed = self.transact(false, |connection| trim::events(connection, sandbox, range, announce))?;
        self.after_commit(PAGES_OF_CHANGE);
        Ok(trimmed)
    }

    fn trim_execs(&mut self, sandbox: &SandboxId, execs: &[ExecId]) -> Result<usize, StoreError> {
        let trimmed = self.transact(false, |connection| trim::execs(connection, sandbox, execs))?;
        self.after_commit(PAGES_OF_CHANGE);
        Ok(trimmed)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.checkpoints.stop();
        self.transact(true, |connection| connection.execute("UPDATE about SET clean = 1", []))?;
        self.write_marker();
        // A reader may prevent the truncation; the checkpoint is complete anyway.
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        // From here on a database without a log is complete.
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        Ok(())
    }
}

fn is_failed_flush(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_FSYNC)
}
