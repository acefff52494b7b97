//! Where things are put together: directories that are of no use until they have a place of their own.
//!
//! Whoever works on one holds a lock on it. One whose lock is free belongs to nobody any more, and the next caller
//! removes it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Something that is being put together. Dropped, it is removed.
pub(crate) struct Staged {
    staging: OwnedFd,
    name: String,
    path: PathBuf,
    handle: OwnedFd,
}

// === impl Staged ===

impl Staged {
    /// Makes an empty directory, and removes those that belong to nobody.
    pub(crate) fn new(staging: OwnedFd, path: &Path) -> io::Result<Self> {
        let name = random()?;
        let lock = locked(&staging, FlockOperation::LockExclusive)?;
        rustix::fs::mkdirat(&staging, &name, Mode::from_raw_mode(0o700))?;
        let handle = rustix::fs::openat(&staging, &name, DIRECTORY, Mode::empty())?;
        rustix::fs::flock(&handle, FlockOperation::LockExclusive)?;
        let abandoned = abandoned(&staging)?;
        drop(lock);
        for (name, _lock) in abandoned {
            // The lock is held until it is gone, so nobody else removes it too. What resists stays, and is in no way.
            let _removed = remove(&path.join(name));
        }
        Ok(Self { path: path.join(&name), staging, name, handle })
    }

    pub(crate) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Makes a directory in it.
    pub(crate) fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(&self.handle, name, Mode::from_raw_mode(0o755))?;
        Ok(rustix::fs::openat(&self.handle, name, DIRECTORY, Mode::empty())?)
    }

    /// Moves it to its place. If the same is there already, that one stays. It may not be on the disk yet.
    pub(crate) fn keep(self, place: impl AsFd, name: &str) -> io::Result<()> {
        match rustix::fs::renameat(&self.staging, &self.name, place, name) {
            Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next caller.
        let _removed = remove(&self.path);
    }
}

/// Removes a directory of the store: it leaves its place at once, and what is in it bit by bit.
pub(crate) fn discard(staging: &OwnedFd, path: &Path, place: impl AsFd, name: &str) -> io::Result<()> {
    let discarded = random()?;
    match rustix::fs::renameat(place, name, staging, &discarded) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    // What resists stays there, and the next caller tries again.
    let _removed = remove(&path.join(discarded));
    Ok(())
}

/// A name that nobody else chooses.
pub(crate) fn random() -> io::Result<String> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Removes everything that belongs to nobody.
pub(crate) fn sweep(staging: &OwnedFd, path: &Path) -> io::Result<()> {
    let lock = locked(staging, FlockOperation::LockExclusive)?;
    let abandoned = abandoned(staging)?;
    drop(lock);
    abandoned.iter().try_for_each(|(name, _lock)| remove(&path.join(name)))
}

/// The directories that belong to nobody, each with its lock. To be called under the lock of all, under which they are
/// made: so that none is taken that is only just made.
fn abandoned(staging: &OwnedFd) -> io::Result<Vec<(String, OwnedFd)>> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(staging)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if matches!(name, "." | "..") {
            continue;
        }
        let handle = match rustix::fs::openat(staging, name, DIRECTORY, Mode::empty()) {
            Ok(handle) => handle,
            // Its owner has just moved or removed it.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => found.push((name.to_owned(), handle)),
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// The directory opened anew and locked: a lock belongs to an opening.
fn locked(directory: &OwnedFd, operation: FlockOperation) -> io::Result<OwnedFd> {
    let handle = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty())?;
    crate::lock::flock(&handle, operation)?;
    Ok(handle)
}

/// Removes a tree. The standard library goes by open directories and follows no link.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
