//! Locks on files. The kernel takes them back when their holder ends, however it ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How often a lock is asked for that somebody has for a moment. Each time it is waited for twice as long, from 1 ms on.
const TRIES: u32 = 6;
/// The longest that is waited between two looks at a lock that somebody has for long.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// A file that one at a time has. Dropped, it is removed, and whoever waits for it takes a new one.
pub(crate) struct Lock {
    pub(crate) file: OwnedFd,
    directory: OwnedFd,
    name: String,
    stays: bool,
}

/// A file that several have at a time, or one alone, for as long as this lives.
pub(crate) struct Claim(pub(crate) OwnedFd);

// === impl Lock ===

impl Lock {
    /// Makes the file where there is none, and waits until nobody else has it.
    pub(crate) fn take(directory: &OwnedFd, name: &str) -> io::Result<Self> {
        Self::wait(directory, name, |file| flock(file, FlockOperation::LockExclusive))
    }

    /// The same, unless it is said to stop meanwhile: then it fails as interrupted.
    pub(crate) fn take_unless(directory: &OwnedFd, name: &str, stopped: impl Fn() -> bool) -> io::Result<Self> {
        Self::wait(directory, name, |file| flock_unless(file, &stopped))
    }

    fn wait(directory: &OwnedFd, name: &str, lock: impl Fn(&OwnedFd) -> io::Result<()>) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
            lock(&file)?;
            // Whoever had it may have removed or moved it, and then it locks nothing.
            if is_at(&file, directory, name)? {
                return Ok(Self { file, directory: directory.try_clone()?, name: name.to_owned(), stays: false });
            }
        }
    }

    /// Removes a file that nobody has: whoever did was killed.
    pub(crate) fn sweep(directory: &OwnedFd, name: &str) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, directory, name)? => Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Leaves the file where it is, for somebody who goes on with it.
    pub(crate) fn leave(mut self) {
        self.stays = true;
    }

    /// Moves the file to where it belongs.
    pub(crate) fn keep(mut self, place: impl AsFd, name: &str) -> io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.name, place, name)?;
        self.stays = true;
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.stays {
            // What stays is an empty file, which says nothing.
            let _removed = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
        release(&self.file);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        release(&self.0);
    }
}

/// Lets go of a lock. To close the file is not enough: a process that another thread is just starting has it open too.
pub(crate) fn release(file: impl AsFd) {
    let _free = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Locks an open file, and goes on waiting after a signal.
pub(crate) fn flock(file: impl AsFd, operation: FlockOperation) -> io::Result<()> {
    loop {
        match rustix::fs::flock(&file, operation) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Locks an open file alone, and looks between whether to stop: the kernel wakes nobody for that who waits in it.
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

/// Locks an open file alone, unless somebody else has it. A process that is just being started has everything that is
/// open here for a moment, so who seems to have it is asked again a few times.
pub(crate) fn alone(file: &OwnedFd) -> io::Result<bool> {
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

/// Whether what is open is still what has the name.
pub(crate) fn is_at(file: impl AsFd, directory: impl AsFd, name: &str) -> io::Result<bool> {
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
    fn whoever_waits_for_a_file_that_goes_takes_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let open = || OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let first = Lock::take(&open(), "lock").unwrap();
        let waiting = {
            let directory = open();
            std::thread::spawn(move || Lock::take(&directory, "lock").unwrap())
        };
        drop(first);
        let second = waiting.join().unwrap();
        assert!(is_at(&second.file, open(), "lock").unwrap());
        drop(second);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
