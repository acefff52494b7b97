//! A log that cannot be moved into the database, because that would grow and the disk is full.
//!
//! The reserve is given up for it if that is enough. If it is not, but most of the database is free pages, the database is
//! compacted in the log first: then the file has to grow less, or not at all. Otherwise the reserve stays for what ends or
//! removes something.

use std::fs::File;
use std::path::Path;

use rusqlite::Connection;

use super::copy::directory_of;
use super::{PAGE, Sqlite};
use crate::StoreError;
use crate::reserve::DiskSpace;

/// What stands before each page in the log.
const FRAME_HEADER: u64 = 24;
/// How many pages are compacted at most: they are all held in memory, and nothing is committed meanwhile.
const MOST_COMPACTED: u64 = 16_384;

/// How large a database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatabaseSize {
    /// All pages, in the file or in the log.
    pages: u64,
    /// Those of them that hold nothing.
    free_pages: u64,
    /// The bytes of the file.
    file: u64,
}

// === impl Sqlite ===

impl Sqlite {
    /// The same, with a log that fits its reserve and was moved if the disk allows it.
    pub(super) fn settled(mut self) -> Self {
        if self.reserve.target() > 0 {
            self.checkpoints.fit(self.reserve.target() / PAGE as u64);
        }
        self.after_commit(0);
        self
    }

    /// Counts pages that were written, and has the log moved into the database when it is time.
    pub(super) fn after_commit(&mut self, pages: usize) {
        if self.checkpoints.after(&self.connection, pages, self.reserve.is_used()) {
            self.log_is_stuck = false;
            return;
        }
        match self.move_log() {
            Ok(()) => {
                tracing::info!("the log of the store was moved into the database on a full disk");
                self.log_is_stuck = false;
            }
            Err(error) if !self.log_is_stuck => {
                tracing::warn!(%error, "the log of the store cannot be moved into the database until there is room");
                self.log_is_stuck = true;
            }
            Err(_) => {}
        }
    }

    fn move_log(&mut self) -> Result<(), StoreError> {
        let size = DatabaseSize::of(&self.connection)?;
        let room = self.room()?;
        if size.growth() > room {
            if size.compaction() > room || size.used_pages() > MOST_COMPACTED {
                return Err(StoreError::Full);
            }
            self.with_reserve(Self::compact)?;
        }
        self.with_reserve(|sqlite| sqlite.checkpoints.truncate(&sqlite.connection))
    }

    /// Writes all pages that hold something to the log, in a row.
    fn compact(&mut self) -> Result<(), StoreError> {
        self.recover()?;
        if let Some(index) = &mut self.index {
            index.make_room(&self.connection)?;
        }
        self.set_flushes(true)?;
        // There is no room for a file on the disk.
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

    /// How many bytes there are, with those of the reserve.
    fn room(&self) -> Result<u64, StoreError> {
        let path = Path::new(self.connection.path().unwrap_or_default());
        // The directory: to close the database itself would release the locks of SQLite.
        let directory = directory_of(path);
        let space = File::open(directory).and_then(|directory| DiskSpace::of(&directory));
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

    /// By how many bytes the file grows when the log is moved into it.
    fn growth(self) -> u64 {
        (self.pages * PAGE as u64).saturating_sub(self.file)
    }

    /// How many bytes it takes to compact the database in the log, and to move that.
    fn compaction(self) -> u64 {
        let used = self.used_pages();
        used * (PAGE as u64 + FRAME_HEADER) + (used * PAGE as u64).saturating_sub(self.file)
    }
}
