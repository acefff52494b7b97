//! The store in one file of SQLite.
//!
//! The write-ahead log makes a commit one write, and lets readers read beside it. A batch that has to survive a power
//! cut waits for one flush of that log; any other is in the kernel's hands when it is committed, and survives the death
//! of the daemon.
//!
//! A power cut takes the last commits that nobody waited for, so somebody may have seen events that are gone. Each
//! sandbox has a ceiling for that: a flushed commit raises it to 64 above its newest sequence, and a commit that would
//! pass it is flushed. After a power cut sequences go on above the ceiling, and the gap is on record.

mod audit;
mod checkpoint;
mod checksum;
mod copy;
mod first_page;
mod full_disk;
mod inspect;
mod open;
mod raise;
mod read;
mod rebuild;
mod rows;
mod salvage;
mod schema;
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
use self::checkpoint::Checkpoints;
pub(crate) use self::checksum::DamagedRow;
pub(crate) use self::copy::{
    copy_store, directory_of, finish, mark_restored, remove_database, sync_directory, timestamp,
};
pub(crate) use self::inspect::{beside, inspect, log_of};
pub(crate) use self::read::SqliteReader;
pub(crate) use self::rebuild::rebuild;
pub(crate) use self::trim::TrimmedHistory;
use self::wal_index::WalIndex;
use self::write::Written;
use crate::backend::{Applied, Backend, Batch, Loaded, Range};
use crate::marker::MarkerFile;
use crate::reserve::Reserve;
use crate::{Change, ExecId, SandboxId, SandboxState, Sequence, StoreError, StoreOrigin};

/// The writer's connection.
pub(crate) struct Sqlite {
    connection: Connection,
    checkpoints: Checkpoints,
    /// Whether a commit waits for the disk, as the connection has it now.
    flushes: bool,
    /// Whether a flush failed: then nobody knows which pages of the log the disk has.
    doubtful: bool,
    /// The newest position that was given.
    position: u64,
    /// What tells the home what was flushed.
    marker: Option<MarkerFile>,
    origin: StoreOrigin,
    marks: HashMap<SandboxId, Mark>,
    reserve: Reserve,
    /// Whether it was reported that the log cannot be moved into the database.
    log_is_stuck: bool,
    /// It goes after all connections.
    index: Option<WalIndex>,
}

/// Where a sandbox is.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// No sequence up to here will be given any more.
    newest: Sequence,
    /// None above it was given, as far as a power cut can tell.
    ceiling: Sequence,
}

/// How far a flushed commit raises the ceiling of a sandbox.
const MARGIN: Sequence = 64;
/// About how many pages a small change writes to the log.
const PAGES_OF_CHANGE: usize = 4;
/// The size of a page.
const PAGE: usize = 4096;

const DOUBTFUL: &str = "the disk failed before, and the log cannot be begun anew while somebody reads it";

// === impl Sqlite ===

impl Sqlite {
    /// What was there before it was opened.
    pub(crate) fn origin(&self) -> &StoreOrigin {
        &self.origin
    }

    /// The index of the log, which every connection of this process needs open.
    pub(crate) fn index(&self) -> Option<Arc<File>> {
        self.index.as_ref().map(WalIndex::file)
    }

    /// Tells the home that all that was committed is flushed.
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
            let passes = |mark: &Mark| mark.newest.saturating_add(*count) > mark.ceiling;
            change.synced || self.marks.get(&change.sandbox.id).is_none_or(passes)
        })
    }

    fn commit_all(&mut self, batch: &[Change]) -> Result<Batch, StoreError> {
        let synced = self.must_flush(batch);
        let margin = synced.then_some(MARGIN);
        let mut position = self.position;
        let written = self.transact(synced, |connection| {
            // The batch is kept: on a full disk a part of it is written again.
            let write = |change: &Change| write::one(connection, change.clone(), margin, &mut position);
            batch.iter().map(write).collect::<Result<Vec<_>, _>>()
        })?;
        self.position = position;
        if synced {
            self.write_marker();
        }
        let changes: Vec<_> = written.into_iter().map(|written| written.map(|written| self.learn(written))).collect();
        self.after_commit(batch.iter().map(|change| PAGES_OF_CHANGE + change.bytes() / PAGE).sum());
        Ok(Batch { changes, synced })
    }

    /// On a full disk, commits what ends or removes something, with the reserve if need be, and refuses the rest.
    fn commit_essential(&mut self, batch: &[Change]) -> Result<Batch, StoreError> {
        let essential: Vec<Change> = batch.iter().filter(|change| change.is_essential()).cloned().collect();
        if essential.is_empty() {
            return Err(StoreError::Full);
        }
        let Batch { changes, synced } = loop {
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
        Ok(Batch { changes: batch.iter().map(outcome).collect(), synced })
    }

    fn learn(&mut self, written: Written) -> Applied {
        let id = written.applied.sandbox.id.clone();
        let newest = written.newest;
        if written.applied.sandbox.state == SandboxState::Deleted {
            // Hardly anything happens to it any more: whatever does is flushed.
            self.marks.remove(&id);
        } else {
            self.marks.insert(id, Mark { newest, ceiling: written.ceiling });
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

    /// Does something in one transaction, which is flushed or not.
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
            self.doubtful |= is_failed_flush(error);
            self.roll_back()?;
        }
        Ok(done?)
    }

    /// After a failed flush, moves everything out of the log and begins a new one: the kernel does not try again to
    /// write what it once failed to write, and a page that the log lacks hides all that follow it.
    fn recover(&mut self) -> Result<(), StoreError> {
        self.roll_back()?;
        if self.doubtful {
            self.doubtful = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        }
        if self.doubtful { Err(StoreError::database(io::Error::other(DOUBTFUL))) } else { Ok(()) }
    }

    fn roll_back(&self) -> Result<(), StoreError> {
        // Some failures have ended the transaction already.
        if self.connection.is_autocommit() { Ok(()) } else { Ok(self.connection.execute_batch("ROLLBACK")?) }
    }
}

impl Backend for Sqlite {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        let loaded = read::load(&self.connection).map_err(StoreError::reading)?;
        self.marks = loaded.marks.into_iter().map(|(id, newest, ceiling)| (id, Mark { newest, ceiling })).collect();
        Ok(loaded.loaded)
    }

    fn commit(&mut self, batch: Vec<Change>) -> Result<Batch, StoreError> {
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
        self.marks.remove(sandbox);
        self.after_commit(PAGES_OF_CHANGE);
        if found { Ok(()) } else { Err(StoreError::Unknown) }
    }

    fn trim_events(
        &mut self,
        sandbox: &SandboxId,
        range: Range,
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
        // Somebody who still reads keeps it from being cut off; it is complete all the same.
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        // From here on a database without a log is a whole one.
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        Ok(())
    }
}

fn is_failed_flush(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_FSYNC)
}
