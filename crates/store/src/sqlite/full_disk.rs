//! Checkpoints on a full disk, where the database cannot grow.
//!
//! The reserve is released if that is sufficient. If it is not, but most pages of the database are free, the database
//! is compacted into the log first: then the file has to grow less, or not at all. Otherwise the reserve is kept for
//! changes that end or remove something.

use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::copy::directory_of;
use super::{PAGE, Sqlite};
use crate::StoreError;
use crate::reserve::StoreDiskSpace;

/// The header of each page in the log, in bytes.
const FRAME_HEADER: u64 = 24;
/// The maximum number of pages to compact: all of them are held in memory, and no commit runs meanwhile.
const MAX_COMPACTED: u64 = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatabaseSize {
    /// All pages, in the file or in the log.
    pages: u64,
    /// The pages on the freelist.
    free_pages: u64,
    /// The length of the file in bytes.
    file: u64,
}

// === impl Sqlite ===

impl Sqlite {
    /// Adjusts the log limit to the reserve, and checkpoints if the disk allows it.
    pub(super) fn settled(mut self) -> Self {
        if self.reserve.target() > 0 {
            self.checkpoints.fit(self.reserve.target() / PAGE as u64);
        }
        self.after_commit(0);
        self
    }

    /// Counts written pages, and requests a checkpoint when it is due.
    pub(super) fn after_commit(&mut self, pages: usize) {
        if self.checkpoints.after(&self.connection, pages, self.reserve.is_used()) {
            self.log_is_stuck = false;
            return;
        }
        match self.move_log() {
            Ok(()) => {
                tracing::info!("checkpointed the write-ahead log of the store on a full disk");
                self.log_is_stuck = false;
            }
            Err(error) if !self.log_is_stuck => {
                tracing::warn!(%error, "cannot checkpoint the write-ahead log of the store until there is space");
                self.log_is_stuck = true;
            }
            Err(_) => {}
        }
    }

    fn move_log(&mut self) -> Result<(), StoreError> {
        let size = DatabaseSize::of(&self.connection)?;
        let room = self.room()?;
        if size.growth() > room {
            if size.compaction() > room || size.used_pages() > MAX_COMPACTED {
                return Err(StoreError::Full);
            }
            self.with_reserve(Self::compact)?;
        }
        self.with_reserve(|sqlite| sqlite.checkpoints.truncate(&sqlite.connection))
    }

    /// Writes all used pages to the log, contiguously.
    fn compact(&mut self) -> Result<(), StoreError> {
        self.recover()?;
        if let Some(index) = &mut self.index {
            index.make_room(&self.connection)?;
        }
        self.set_flushes(true)?;
        // The disk has no space for a temporary file.
        self.connection.execute_batch("PRAGMA temp_store=MEMORY; VACUUM")?;
        Ok(())
    }

    fn with_reserve(&mut self, work: impl Fn(&mut Self) -> Result<(), StoreError>) -> Result<(), StoreError> {
        loop {
            match work(self) {
                Err(StoreError::Full) if self.reserve.release() => {}
                done => return done,
            }
        }
    }

    /// The free bytes of the disk, including the reserve.
    fn room(&self) -> Result<u64, StoreError> {
        let path = Path::new(self.connection.path().unwrap_or_default());
        // The directory is opened, because closing the database file would release the locks of SQLite.
        let directory = directory_of(path);
        let space = File::open(directory).and_then(|directory| StoreDiskSpace::of(&directory));
        let free = space.map_err(|error| StoreError::file(directory, error))?.free;
        Ok(free.saturating_add(self.reserve.held()))
    }
}

// === impl DatabaseSize ===

impl DatabaseSize {
    fn of(connection: &Connection) -> Result<Self, StoreError> {
        let number = |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, u64>(0));
        let path = Path::new(connection.path().unwrap_or_default());
        let file = std::fs::metadata(path).map_err(|error| StoreError::file(path, error))?.len();
        Ok(Self { pages: number("page_count")?, free_pages: number("freelist_count")?, file })
    }

    fn used_pages(self) -> u64 {
        self.pages.saturating_sub(self.free_pages)
    }

    /// By how many bytes a checkpoint grows the file.
    fn growth(self) -> u64 {
        (self.pages * PAGE as u64).saturating_sub(self.file)
    }

    /// How many bytes the compaction in the log and its checkpoint take.
    fn compaction(self) -> u64 {
        let used = self.used_pages();
        used * (PAGE as u64 + FRAME_HEADER) + (used * PAGE as u64).saturating_sub(self.file)
    }
}
