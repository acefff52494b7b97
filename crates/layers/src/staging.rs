//! Staging directories, in which content is assembled before it is renamed into place.
//!
//! Each is locked by the process that uses it. One without a lock is abandoned, and the next caller removes it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A staging directory, removed on drop.
pub(crate) struct StagingDirectory {
    staging: OwnedFd,
    name: String,
    path: PathBuf,
    handle: OwnedFd,
}

// === impl StagingDirectory ===

impl StagingDirectory {
    /// Creates an empty directory, and removes abandoned ones.
    pub(crate) fn new(staging: OwnedFd, path: &Path) -> io::Result<Self> {
        let name = random()?;
        let lock = locked(&staging, FlockOperation::LockExclusive)?;
        rustix::fs::mkdirat(&staging, &name, Mode::from_raw_mode(0o700))?;
        let handle = rustix::fs::openat(&staging, &name, DIRECTORY, Mode::empty())?;
        rustix::fs::flock(&handle, FlockOperation::LockExclusive)?;
        let abandoned = abandoned(&staging)?;
        drop(lock);
        for (name, _lock) in abandoned {
            // The lock is held until it is gone, so that no other process removes it too. Errors are harmless.
            let _removed = remove(&path.join(name));
        }
        Ok(Self { path: path.join(&name), staging, name, handle })
    }

    pub(crate) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Creates a subdirectory.
    pub(crate) fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(&self.handle, name, Mode::from_raw_mode(0o755))?;
        Ok(rustix::fs::openat(&self.handle, name, DIRECTORY, Mode::empty())?)
    }

    /// Renames it into place, without fsync. If the target exists, that one stays.
    pub(crate) fn keep(self, place: impl AsFd, name: &str) -> io::Result<()> {
        match rustix::fs::renameat(&self.staging, &self.name, place, name) {
            Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        // The next caller retries a removal that failed.
        let _removed = remove(&self.path);
    }
}

/// Removes a directory of the store: renames it to staging first, so that it disappears at once.
pub(crate) fn discard(staging: &OwnedFd, path: &Path, place: impl AsFd, name: &str) -> io::Result<()> {
    let discarded = random()?;
    match rustix::fs::renameat(place, name, staging, &discarded) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    // The next caller retries a removal that failed.
    let _removed = remove(&path.join(discarded));
    Ok(())
}

/// A unique name.
pub(crate) fn random() -> io::Result<String> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Removes all abandoned directories.
pub(crate) fn sweep(staging: &OwnedFd, path: &Path) -> io::Result<()> {
    let lock = locked(staging, FlockOperation::LockExclusive)?;
    let abandoned = abandoned(staging)?;
    drop(lock);
    abandoned.iter().try_for_each(|(name, _lock)| remove(&path.join(name)))
}

/// Abandoned directories with their locks. The caller holds the lock of the staging directory, under which new ones are
/// created, so that none of those is taken.
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
            // Its owner has just renamed or removed it.
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

/// Opens the directory anew and locks it: a lock belongs to an open file description.
fn locked(directory: &OwnedFd, operation: FlockOperation) -> io::Result<OwnedFd> {
    let handle = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty())?;
    crate::lock::flock(&handle, operation)?;
    Ok(handle)
}

/// Removes a tree; the standard library uses directory handles and follows no symlink.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
