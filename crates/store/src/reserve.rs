//! Disk space that the store reserves in a file beside the database: on a full disk sandboxes can still be stopped and
//! deleted.
//!
//! It is released in pieces, so that a process that fills the disk does not get all of it at once. While a piece is
//! missing, the store refuses changes that start something; when there is space again, the reserve is restored.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

/// The name of the file.
const NAME: &str = "reserve";
/// How many pieces it has.
const PIECES: u64 = 16;
/// It takes at most this fraction of the disk.
const SHARE: u64 = 16;
/// Sizes are multiples of this.
const UNIT: u64 = 64 << 10;

/// The reserve of a store.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    /// `None` if nothing is reserved.
    file: Option<File>,
    /// The size of the complete reserve, in bytes.
    target: u64,
    held: u64,
}

/// The space of a disk, in bytes.
pub(crate) struct StoreDiskSpace {
    pub(crate) free: u64,
    all: u64,
}

// === impl DiskReserve ===

impl DiskReserve {
    /// A reserve of size 0.
    pub(crate) fn none() -> Self {
        Self { file: None, target: 0, held: 0 }
    }

    /// Opens the reserve beside a database, with at most `most` bytes.
    pub(crate) fn open(database: &Path, most: u64) -> Self {
        if most == 0 {
            return Self::none();
        }
        let path = database.with_file_name(NAME);
        match Self::try_open(&path, most) {
            Ok(mut reserve) => {
                reserve.restore();
                if reserve.is_used() {
                    let (held, target) = (reserve.held, reserve.target);
                    tracing::warn!(
                        held,
                        target,
                        "the disk is nearly full: the store starts nothing new until there is space"
                    );
                }
                reserve
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot reserve space for the store");
                Self::none()
            }
        }
    }

    fn try_open(path: &Path, most: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let target = most.min(StoreDiskSpace::of(&file)?.all / SHARE) / UNIT * UNIT;
        let held = file.metadata()?.len();
        if held > target {
            file.set_len(target)?;
        }
        Ok(Self { file: Some(file), target, held: held.min(target) })
    }

    /// Whether a part of it was released.
    pub(crate) fn is_used(&self) -> bool {
        self.held < self.target
    }

    /// The size of the complete reserve, in bytes.
    pub(crate) fn target(&self) -> u64 {
        self.target
    }

    /// How many bytes it could release.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Releases a piece; returns whether there was one.
    pub(crate) fn release(&mut self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.held > 0) else { return false };
        if !self.is_used() {
            tracing::warn!("the disk is full: the store uses its reserve and starts nothing new");
        }
        let piece = (self.target / PIECES).next_multiple_of(UNIT);
        let rest = self.held.saturating_sub(piece);
        // Some file systems reuse freed blocks only after the truncation was committed.
        match file.set_len(rest).and_then(|()| file.sync_all()) {
            Ok(()) => {
                self.held = rest;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot release the reserve of the store");
                self.held = 0;
                false
            }
        }
    }

    /// Restores the complete reserve if twice its size is free.
    pub(crate) fn restore(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_used()) else { return };
        if !StoreDiskSpace::of(file).is_ok_and(|space| space.free >= 2 * self.target) {
            return;
        }
        match allocate(file, self.held, self.target) {
            Ok(()) => {
                self.held = self.target;
                tracing::info!(bytes = self.target, "reserved space for the store");
            }
            Err(error) => {
                tracing::debug!(%error, "cannot reserve space for the store yet");
                // A partial allocation is undone, so that the length of the file is what is held.
                let _shortened = file.set_len(self.held);
            }
        }
    }
}

/// Removes the reserve of a store that no process has open, to make space for opening it; returns whether it had any.
pub(crate) fn remove_reserve(database: &Path) -> bool {
    let path = database.with_file_name(NAME);
    let is_something = std::fs::metadata(&path).is_ok_and(|found| found.len() > 0);
    is_something && std::fs::remove_file(&path).is_ok()
}

/// Allocates the blocks of a file between two lengths.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, to.saturating_sub(from)) {
        // Zeros allocate blocks as well, except on a compressing file system.
        Err(Errno::OPNOTSUPP) => {
            let zeros = vec![0; usize::try_from(UNIT).unwrap_or_default()];
            (from..to).step_by(zeros.len()).try_for_each(|offset| file.write_all_at(&zeros, offset))
        }
        allocated => allocated.map_err(io::Error::from),
    }
}

// === impl StoreDiskSpace ===

impl StoreDiskSpace {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let space = fstatvfs(file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        Ok(Self { free: bytes(space.f_bavail), all: bytes(space.f_blocks) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_released_in_pieces_and_restored() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("store.db");
        let length = || std::fs::metadata(directory.path().join(NAME)).unwrap().len();
        let mut reserve = DiskReserve::open(&database, 1 << 20);
        assert_eq!((reserve.is_used(), length()), (false, 1 << 20));
        assert!(reserve.release());
        assert_eq!((reserve.is_used(), length()), (true, (1 << 20) - UNIT));
        // The next daemon restores it.
        let mut reserve = DiskReserve::open(&database, 1 << 20);
        assert_eq!((reserve.is_used(), length()), (false, 1 << 20));
        assert_eq!((0..100).filter(|_| reserve.release()).count(), 16);
        assert_eq!(length(), 0);
        reserve.restore();
        assert_eq!((reserve.is_used(), length()), (false, 1 << 20));
    }

    #[test]
    fn a_store_may_have_no_reserve() {
        let directory = tempfile::tempdir().unwrap();
        let mut reserve = DiskReserve::open(&directory.path().join("store.db"), 0);
        assert!(!reserve.is_used() && !reserve.release() && !directory.path().join(NAME).exists());
        let mut missing = DiskReserve::open(&directory.path().join("missing/store.db"), 1 << 20);
        assert!(!missing.is_used() && !missing.release());
    }
}
