//! File locks. The kernel releases them when their holder exits, however it exits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Attempts to take a lock that another process may hold briefly; the delay doubles from 1 ms.
const TRIES: u32 = 6;
/// The longest delay between two polls of a lock that is held for long.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// An exclusive lock file. It is removed on drop, and waiting processes create a new one.
pub(crate) struct FileLock {
    pub(crate) file: OwnedFd,
    directory: OwnedFd,
    name: String,
    stays: bool,
}

/// A shared or exclusive lock, released on drop.
pub(crate) struct StoreLock(pub(crate) OwnedFd);

// === impl FileLock ===

impl FileLock {
    /// Creates the file if needed and waits for the lock.
    pub(crate) fn take(directory: &OwnedFd, name: &str) -> io::Result<Self> {
        Self::wait(directory, name, |file| flock(file, FlockOperation::LockExclusive))
    }

    /// Like [`Self::take`], but fails with `Interrupted` once `stopped` returns true.
    pub(crate) fn take_unless(directory: &OwnedFd, name: &str, stopped: impl Fn() -> bool) -> io::Result<Self> {
        Self::wait(directory, name, |file| flock_unless(file, &stopped))
    }

    fn wait(directory: &OwnedFd, name: &str, lock: impl Fn(&OwnedFd) -> io::Result<()>) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
            lock(&file)?;
            // The previous holder may have removed or renamed the file; then the lock is worthless.
            if is_same_file(&file, directory, name)? {
                return Ok(Self { file, directory: directory.try_clone()?, name: name.to_owned(), stays: false });
            }
        }
    }

    /// Removes a lock file without a holder, left by a killed process.
    pub(crate) fn sweep(directory: &OwnedFd, name: &str) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_same_file(&file, directory, name)? => {
                Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Releases the lock but leaves the file for a later holder.
    pub(crate) fn release_keeping_file(mut self) {
        self.stays = true;
    }

    /// Renames the file to its final place.
    pub(crate) fn keep(mut self, place: impl AsFd, name: &str) -> io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.name, place, name)?;
        self.stays = true;
        Ok(())
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if !self.stays {
            // If removal fails, an empty file remains, which means nothing.
            let _removed = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
        release(&self.file);
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        release(&self.0);
    }
}

/// Releases a lock explicitly: a process that another thread just forks still has the file open.
pub(crate) fn release(file: impl AsFd) {
    let _free = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Locks an open file; retries after `EINTR`.
pub(crate) fn flock(file: impl AsFd, operation: FlockOperation) -> io::Result<()> {
    loop {
        match rustix::fs::flock(&file, operation) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Polls for an exclusive lock and checks for cancellation in between, which a blocking `flock` could not.
fn flock_unless(file: &OwnedFd, stopped: impl Fn() -> bool) -> io::Result<()> {
    let mut wait = Duration::from_millis(1);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome,
        }
        if stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Tries to take an exclusive lock. Another thread's fork holds all open files briefly, so it tries a few times.
pub(crate) fn try_exclusive(file: &OwnedFd) -> io::Result<bool> {
    for wait in 0..=TRIES {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if wait < TRIES => std::thread::sleep(Duration::from_millis(1 << wait)),
            Err(_) => {}
            Ok(()) => return Ok(true),
        }
    }
    Ok(false)
}

/// Whether an open file is still the one at a name.
pub(crate) fn is_same_file(file: impl AsFd, directory: impl AsFd, name: &str) -> io::Result<bool> {
    let ours = rustix::fs::fstat(file)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_waits_for_a_removed_lock_file_creates_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let open = || OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let first = FileLock::take(&open(), "lock").unwrap();
        let waiting = {
            let directory = open();
            std::thread::spawn(move || FileLock::take(&directory, "lock").unwrap())
        };
        drop(first);
        let second = waiting.join().unwrap();
        assert!(is_same_file(&second.file, open(), "lock").unwrap());
        drop(second);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
