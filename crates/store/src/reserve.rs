//! Space that the store keeps for itself, in a file beside the database: on a full disk sandboxes can still end and be
//! removed.
//!
//! It is given up piece by piece, so that whoever fills the disk does not get all of it at once. While a piece is missing, the
//! store begins nothing new; when there is room again, the reserve is restored.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

/// What the file is called.
const NAME: &str = "reserve";
/// How many pieces it has.
const PIECES: u64 = 16;
/// Which part of the disk it may take.
const SHARE: u64 = 16;
/// Sizes are multiples of this.
const UNIT: u64 = 64 << 10;

/// The reserve of a store.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// None if there is none.
    file: Option<File>,
    /// How many bytes it has when it is whole.
    target: u64,
    held: u64,
}

/// What a disk has, in bytes.
pub(crate) struct DiskSpace {
    pub(crate) free: u64,
    all: u64,
}

// === impl Reserve ===

impl Reserve {
    /// A store that reserves nothing.
    pub(crate) fn none() -> Self {
        Self { file: None, target: 0, held: 0 }
    }

    /// The reserve beside a database, as large as it may be and the disk has room for.
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
                    tracing::warn!(held, target, "the disk is nearly full: nothing new is begun until there is room");
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
        let target = most.min(DiskSpace::of(&file)?.all / SHARE) / UNIT * UNIT;
        let held = file.metadata()?.len();
        if held > target {
            file.set_len(target)?;
        }
        Ok(Self { file: Some(file), target, held: held.min(target) })
    }

    /// Whether a part of it was given up.
    pub(crate) fn is_used(&self) -> bool {
        self.held < self.target
    }

    /// How many bytes it has when it is whole.
    pub(crate) fn target(&self) -> u64 {
        self.target
    }

    /// How many bytes it could give up.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Gives up a piece; says whether there was one.
    pub(crate) fn release(&mut self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.held > 0) else { return false };
        if !self.is_used() {
            tracing::warn!("the disk is full: the store uses its reserve, and begins nothing new");
        }
        let piece = (self.target / PIECES).next_multiple_of(UNIT);
        let rest = self.held.saturating_sub(piece);
        // Some file systems give freed blocks to others only when that they are free is on the disk.
        match file.set_len(rest).and_then(|()| file.sync_all()) {
            Ok(()) => {
                self.held = rest;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the reserve of the store cannot be used");
                self.held = 0;
                false
            }
        }
    }

    /// Takes back what was given up, if there is room for twice as much as it has when it is whole.
    pub(crate) fn restore(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_used()) else { return };
        if !DiskSpace::of(file).is_ok_and(|space| space.free >= 2 * self.target) {
            return;
        }
        match allocate(file, self.held, self.target) {
            Ok(()) => {
                self.held = self.target;
                tracing::info!(bytes = self.target, "space is reserved for the store");
            }
            Err(error) => {
                tracing::debug!(%error, "no space can be reserved for the store yet");
                // What was taken of it is given back, so that the length says what is held.
                let _shortened = file.set_len(self.held);
            }
        }
    }
}

/// Removes the reserve of a store that nobody has open, for something that is needed to open it; says whether there was any.
pub(crate) fn remove_reserve(database: &Path) -> bool {
    let path = database.with_file_name(NAME);
    let is_something = std::fs::metadata(&path).is_ok_and(|found| found.len() > 0);
    is_something && std::fs::remove_file(&path).is_ok()
}

/// Has a file of some length take the blocks for another.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), from, to.saturating_sub(from)) {
        // Zeros take blocks as well, where nobody compresses them.
        Err(Errno::OPNOTSUPP) => {
            let zeros = vec![0; usize::try_from(UNIT).unwrap_or_default()];
            (from..to).step_by(zeros.len()).try_for_each(|offset| file.write_all_at(&zeros, offset))
        }
        allocated => allocated.map_err(io::Error::from),
    }
}

// === impl DiskSpace ===

impl DiskSpace {
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
    fn a_reserve_is_given_up_in_pieces_and_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("store.db");
        let length = || std::fs::metadata(directory.path().join(NAME)).unwrap().len();
        let mut reserve = Reserve::open(&database, 1 << 20);
        assert_eq!((reserve.is_used(), length()), (false, 1 << 20));
        assert!(reserve.release());
        assert_eq!((reserve.is_used(), length()), (true, (1 << 20) - UNIT));
        // The next daemon takes it up as it is.
        let mut reserve = Reserve::open(&database, 1 << 20);
        assert_eq!((reserve.is_used(), length()), (false, 1 << 20));
        assert_eq!((0..100).filter(|_| reserve.release()).count(), 16);
        assert_eq!(length(), 0);
        reserve.restore();
        assert_eq!((reserve.is_used(), length()), (false, 1 << 20));
    }

    #[test]
    fn a_store_may_have_no_reserve() {
        let directory = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::open(&directory.path().join("store.db"), 0);
        assert!(!reserve.is_used() && !reserve.release() && !directory.path().join(NAME).exists());
        let mut missing = Reserve::open(&directory.path().join("missing/store.db"), 1 << 20);
        assert!(!missing.is_used() && !missing.release());
    }
}
