//! The lock of a directory, held by the shim of the sandbox or by a process that sweeps its remains.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use carrel_sandbox::remove::discard;
use carrel_shim_client::layout::{LOCK, is_same};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The temporary file of a lock.
const UNFINISHED: &str = "lock.new";
/// How often a lock is retried that may only be inspected. An inspection is short.
pub(super) const TRIES: usize = 3;
/// The retry interval.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// The result of trying a lock.
#[derive(Debug)]
pub(super) enum LockAttempt {
    /// It is acquired.
    Held(File),
    /// Another process holds it.
    Taken,
    /// Another process inspects it.
    Inspected,
    /// It does not exist, or was removed.
    Absent,
}

/// Acquires the lock of a directory, if it is free and still exists. While another process inspects it, it is retried
/// so many times.
pub(super) fn hold(directory: &OwnedFd, create: OFlags, tries: usize) -> io::Result<LockAttempt> {
    remove_non_regular(directory)?;
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | create;
    let file = match rustix::fs::openat(directory, LOCK, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(LockAttempt::Absent),
        Err(errno) => return Err(errno.into()),
    };
    for tried in 1..=tries {
        if lock(&file, FlockOperation::NonBlockingLockExclusive)? {
            return check_same_file(directory, file);
        }
        // An inspector has a shared lock, a holder an exclusive one.
        if !lock(&file, FlockOperation::NonBlockingLockShared)? {
            return Ok(LockAttempt::Taken);
        }
        rustix::fs::flock(&file, FlockOperation::Unlock)?;
        if tried < tries {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(LockAttempt::Inspected)
}

/// Replaces a held lock with a new one and holds that: the creator of the old one may still have it open, and could
/// lock it once we release it. A process that waits for the old one detects that it was removed.
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

/// Whether the locked file was removed by a sweep meanwhile.
fn check_same_file(directory: &OwnedFd, file: OwnedFd) -> io::Result<LockAttempt> {
    match rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if is_same(&found, &rustix::fs::fstat(&file)?) => Ok(LockAttempt::Held(file.into())),
        Ok(_) | Err(Errno::NOENT) => Ok(LockAttempt::Absent),
        Err(errno) => Err(errno.into()),
    }
}

/// Anything but a regular file is not a lock. A shim that put it there has none.
fn remove_non_regular(directory: &OwnedFd) -> io::Result<()> {
    match rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => discard(directory, LOCK),
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
