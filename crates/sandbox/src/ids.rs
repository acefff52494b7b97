//! Ranges of user and group ids: every sandbox has one to itself for as long as anything of it exists.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How many ids a sandbox has.
pub(crate) const COUNT: u32 = 65_536;
/// Where the ranges begin: above what people and the usual tools for containers are given.
const FIRST: u32 = 0x4000_0000;
/// How many there are.
const RANGES: u32 = 8192;

/// The group of all supervisors that have given up being root, and behind it their users: one for each range.
pub const SUPERVISORS: u32 = FIRST + RANGES * COUNT;

/// A range of ids, held until dropped.
#[derive(Debug)]
pub struct IdRange {
    number: u32,
    _lock: File,
}

/// A range that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// The directory of locks cannot be used.
    #[error("the directory of id ranges: {0}")]
    Directory(std::io::Error),
    /// Every range is taken.
    #[error("all {RANGES} id ranges are taken")]
    Exhausted,
}

// === impl IdRange ===

impl IdRange {
    /// How many ids a sandbox has.
    pub const COUNT: u32 = COUNT;

    /// Takes the first range that nobody holds. The lock is the kernel's: it ends with its holder, however that ends.
    pub fn allocate(directory: &Path) -> Result<Self, IdsError> {
        std::fs::create_dir_all(directory).map_err(IdsError::Directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle =
            rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| IdsError::Directory(errno.into()))?;
        for number in 0..RANGES {
            match lock(&handle, number) {
                Ok(lock) => return Ok(Self { number, _lock: lock }),
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(IdsError::Directory(errno.into())),
            }
        }
        Err(IdsError::Exhausted)
    }

    /// The host's id behind the sandbox's 0.
    pub const fn base(&self) -> u32 {
        FIRST + self.number * COUNT
    }

    /// The user that the supervisor of this sandbox becomes: nobody else has it, inside or outside.
    pub const fn supervisor(&self) -> u32 {
        SUPERVISORS + 1 + self.number
    }

    /// The line that tells the kernel.
    pub(crate) fn map(&self) -> String {
        format!("0 {} {COUNT}\n", self.base())
    }
}

fn lock(directory: impl AsFd, number: u32) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(directory, format!("{number}"), flags, Mode::from_raw_mode(0o600))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_held_by_one_and_free_again_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let first = IdRange::allocate(dir.path()).unwrap();
        let second = IdRange::allocate(dir.path()).unwrap();
        assert_eq!(second.base(), first.base() + COUNT);
        let freed = first.base();
        drop(first);
        assert_eq!(IdRange::allocate(dir.path()).unwrap().base(), freed);
    }

    #[test]
    fn no_range_reaches_the_ids_that_mean_nobody() {
        assert!(u64::from(SUPERVISORS) + u64::from(RANGES) + 1 < u64::from(u32::MAX));
    }
}
