//! The lock of a directory: whoever holds it supervises the sandbox, or sweeps what is left of one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use carrel_sandbox::remove::discard;
use carrel_shim_client::layout::{LOCK, is_same};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The lock while it is being made.
const UNFINISHED: &str = "lock.new";
/// How often a lock is tried that somebody else may only be looking at. Whoever really looks is done at once.
pub(super) const TRIES: usize = 3;
/// How long is waited in between.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// A lock that was tried.
#[derive(Debug)]
pub(super) enum Hold {
    /// It is ours.
    Held(File),
    /// It is somebody else's.
    Taken,
    /// Somebody is looking whether it is.
    Looked,
    /// There is none, or none any more.
    Absent,
}

/// Takes the lock of a directory, if nobody holds it and it is still there. While somebody looks at it, it is tried so many
/// times.
pub(super) fn hold(directory: &OwnedFd, create: OFlags, tries: usize) -> io::Result<Hold> {
    discard_strange(directory)?;
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | create;
    let file = match rustix::fs::openat(directory, LOCK, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Hold::Absent),
        Err(errno) => return Err(errno.into()),
    };
    for tried in 1..=tries {
        if lock(&file, FlockOperation::NonBlockingLockExclusive)? {
            return still_there(directory, file);
        }
        // Whoever only looks shares it with us; whoever holds it does not.
        if !lock(&file, FlockOperation::NonBlockingLockShared)? {
            return Ok(Hold::Taken);
        }
        rustix::fs::flock(&file, FlockOperation::Unlock)?;
        if tried < tries {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(Hold::Looked)
}

/// Puts a lock in the place of one that is held, and holds it: whoever made the other may have it open to this day, and
/// could hold it once we no longer do. Whoever waits for the other sees that it is not there any more.
pub(super) fn renew(directory: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::renameat(directory, UNFINISHED, directory, LOCK)?;
    Ok(file.into())
}

fn lock(file: &OwnedFd, operation: FlockOperation) -> io::Result<bool> {
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whoever swept the directory meanwhile has removed the file that is locked now.
fn still_there(directory: &OwnedFd, file: OwnedFd) -> io::Result<Hold> {
    match rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if is_same(&there, &rustix::fs::fstat(&file)?) => Ok(Hold::Held(file.into())),
        Ok(_) | Err(Errno::NOENT) => Ok(Hold::Absent),
        Err(errno) => Err(errno.into()),
    }
}

/// What cannot be held is no lock. A supervisor that put it there has none.
fn discard_strange(directory: &OwnedFd) -> io::Result<()> {
    match rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile => discard(directory, LOCK),
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
