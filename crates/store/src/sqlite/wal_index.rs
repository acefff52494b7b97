//! The WAL index (`-shm`), which SQLite maps into memory.
//!
//! On a full disk a write to a mapped page without blocks kills the process (`SIGBUS`). SQLite truncates the index when
//! it is the first to open it, and then writes one byte of each page, which allocates all blocks of the page only if
//! blocks are at least as large. So the writer allocates the blocks first. It shares the lock by which SQLite detects
//! that a process has the index open, so that SQLite does not truncate it; and it limits the pages of the database, so
//! that no transaction needs a larger index.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::inspect::{log_of, with_suffix};
use super::open::MODE;
use crate::reserve::StoreDiskSpace;
use crate::{ByteLock, StoreError, StoreOptions};

/// The byte that SQLite locks while an index is in use.
const IN_USE: u64 = 128;
/// How many bytes of the index SQLite maps at once, and for how many frames of the log; the header takes the space of
/// some.
const REGION: u64 = 32 << 10;
const FRAMES: u64 = 4096;
const HEADER_FRAMES: u64 = 34;
/// The length of the index is a multiple of this: what is mapped at once on hosts with large memory pages.
const UNIT: u64 = 2 * REGION;
/// The header of each page in the log, in bytes.
const FRAME_HEADER: u64 = 24;
const PAGE: u64 = 4096;
/// The bounds of how many pages, beyond doubling, the database may grow in one transaction: the disk has no space for
/// more, or no transaction is that large.
const MIN_GROWTH: u64 = 1024;
const MAX_GROWTH: u64 = 65_536;

/// The WAL index of the writer. It outlives every connection of the process: closing the file would release the locks
/// of SQLite.
#[derive(Debug)]
pub(super) struct WalIndex {
    file: Arc<File>,
    path: PathBuf,
    log: PathBuf,
    /// How many bytes have blocks.
    length: u64,
    /// The maximum number of pages of the database.
    page_limit: u64,
    max_pages: u64,
}

// === impl WalIndex ===

impl WalIndex {
    /// Opens the index and allocates the blocks for the current log.
    pub(super) fn open(database: &Path, lock: ByteLock, options: &StoreOptions) -> Result<Self, StoreError> {
        let path = with_suffix(database, "-shm");
        let failed = |error| failed(&path, error);
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).create(true).truncate(false).mode(MODE).custom_flags(flags).open(&path);
        let file = file.map_err(failed)?;
        let is_first = lock(&file, IN_USE, true).map_err(failed)?;
        let length = match is_first {
            // An index that a crash left behind may be wrong: SQLite rebuilds an empty one. The blocks stay allocated.
            true => {
                let length = file.metadata().map_err(failed)?.len() / UNIT * UNIT;
                file.set_len(length).and_then(|()| write_zeros(&file, 0, length)).map_err(failed)?;
                length
            }
            false => 0,
        };
        lock(&file, IN_USE, false).map_err(failed)?;
        let length = if is_first { length } else { fill_holes(&file).map_err(failed)? };
        let max_pages = options.max_pages.map_or(u64::MAX, u64::from);
        let (file, log) = (Arc::new(file), log_of(database));
        let mut index = Self { file, path, log, length, page_limit: 0, max_pages };
        index.allocate(index.log_frames()?)?;
        Ok(index)
    }

    /// The open file, for the readers of this process.
    pub(super) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Allocates the blocks for the next transaction.
    pub(super) fn make_room(&mut self, connection: &Connection) -> Result<(), StoreError> {
        let pages: u64 = connection.prepare_cached("PRAGMA page_count")?.query_row([], |row| row.get(0))?;
        let free = StoreDiskSpace::of(&self.file).map_err(|error| failed(&self.path, error))?.free;
        let growth = (free / PAGE).clamp(MIN_GROWTH, MAX_GROWTH);
        let wanted = (2 * pages + growth).min(self.max_pages).min(u64::from(u32::MAX - 1));
        if wanted.saturating_sub(growth / 2) > self.page_limit {
            connection.pragma_update(None, "max_page_count", wanted)?;
            self.page_limit = wanted;
        }
        // A transaction writes no page twice.
        self.allocate(self.log_frames()? + self.page_limit.max(pages))
    }

    /// The maximum number of frames in the log.
    fn log_frames(&self) -> Result<u64, StoreError> {
        match std::fs::metadata(&self.log) {
            Ok(log) => Ok(log.len().div_ceil(PAGE + FRAME_HEADER)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(failed(&self.log, error)),
        }
    }

    fn allocate(&mut self, frames: u64) -> Result<(), StoreError> {
        let regions = (frames + HEADER_FRAMES + 1).div_ceil(FRAMES);
        let wanted = (regions * REGION).next_multiple_of(UNIT);
        if wanted <= self.length {
            return Ok(());
        }
        // No process has mapped the range after the end.
        if let Err(error) = write_zeros(&self.file, self.length, wanted) {
            let _ = self.file.set_len(self.length);
            return Err(failed(&self.path, error));
        }
        self.length = wanted;
        Ok(())
    }
}

/// Allocates all blocks of an index that other connections use; returns its length.
fn fill_holes(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len() / UNIT * UNIT;
    match fallocate(file, FallocateFlags::empty(), 0, length.max(1)) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(length),
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(UNIT).unwrap_or_default()];
    (from..to).step_by(zeros.len()).try_for_each(|offset| file.write_all_at(&zeros, offset))
}

fn failed(path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
        _ => StoreError::file(path, error),
    }
}
