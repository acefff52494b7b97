//! Sweeps the remains of dead shims: terminates, records, removes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use carrel_sandbox::cgroup::CgroupError;
use carrel_sandbox::remove::{discard, empty};
use carrel_shim_client::layout::{
    self, AGENT_SOCKET, LOCK, SHIM_SOCKET, SUPERVISORS, is_owner, is_parent, is_same, open_directory,
};
use carrel_shim_client::{JournalError, RecordError, SandboxRecord};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::end::{self, JournalEndCheck};
use super::lock::{LockAttempt, PAUSE, TRIES, hold};
use super::reap::reap;
use super::{DirectoryError, UnkillableProcesses};

/// The time budget of a sweep. The rest is left to the next one.
const SWEEP_BUDGET: Duration = Duration::from_secs(1);

/// Marks a directory whose processes cannot be killed.
const STUCK: &str = "stuck";
/// How long such a directory is skipped, because a sweep would wait for the kernel and delay others.
const STUCK_RETRY: Duration = Duration::from_secs(60);

/// The locked directory of a dead sandbox.
struct DeadSandbox<'a> {
    parent: &'a OwnedFd,
    name: &'a OsStr,
    own: OwnedFd,
    lock: File,
}

/// Why one directory could not be swept.
#[derive(Debug, thiserror::Error)]
pub(super) enum SweepError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    UnkillableProcesses(#[from] UnkillableProcesses),
    #[error("a shim does not exit")]
    Stuck(u32),
    #[error("a journal is too large")]
    Large(u64),
}

/// The result of trying one name.
enum SweepAttempt<'a> {
    /// Its shim is dead, and it is locked for sweeping.
    Dead(DeadSandbox<'a>),
    /// It was nearly empty and is removed.
    Removed,
    /// It does not exist.
    Absent,
    /// It is not a directory.
    Strange,
    /// Its shim is alive, or it is not ours.
    Left,
    /// Another process inspects it.
    Inspected,
}

/// Sweeps the remains of dead shims below a directory; returns how many had something left.
///
/// Ephemeral sandboxes are removed completely. Persistent ones keep their directory, without processes, sockets and
/// cgroup, and their journal gets an end: that the shim was lost, unless the shim recorded another.
pub fn sweep(sandboxes: &Path) -> Result<usize, DirectoryError> {
    let Some(parent) = open_parent(sandboxes)? else { return Ok(0) };
    let listed = names(&parent).map_err(|source| DirectoryError::Io { path: sandboxes.to_owned(), source });
    let (mut names, until) = (listed?, Instant::now() + SWEEP_BUDGET);
    let (mut swept, mut first) = (0, None);
    for round in 0..TRIES {
        if round > 0 && !names.is_empty() {
            std::thread::sleep(PAUSE);
        }
        // Directories that are being inspected are retried together, so that they do not delay the others.
        names.retain(|name| match sweep_one(&parent, name, until) {
            Ok(Some(something)) => {
                swept += usize::from(something);
                false
            }
            Ok(None) => true,
            // A directory that cannot be swept does not affect the others.
            Err(error) => {
                first.get_or_insert_with(|| error.at(&sandboxes.join(name)));
                false
            }
        });
    }
    first.map_or(Ok(swept), Err)
}

/// Sweeps the directory of one sandbox.
pub fn sweep_directory(directory: &Path) -> Result<(), DirectoryError> {
    let failed = |source| DirectoryError::Io { path: directory.to_owned(), source };
    let (Some(above), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    };
    let Some(parent) = open_parent(above)? else { return Ok(()) };
    for round in 0..TRIES {
        if round > 0 {
            std::thread::sleep(PAUSE);
        }
        let swept = sweep_one(&parent, name, Instant::now() + SWEEP_BUDGET).map_err(|error| error.at(directory))?;
        if swept.is_some() {
            break;
        }
    }
    Ok(())
}

/// Removes the remains of one sandbox, persistent or not. Returns whether nothing of it is left: while its shim is
/// alive, nothing is touched.
pub fn collect(directory: &Path) -> Result<bool, DirectoryError> {
    collect_if(directory, |_| true)
}

/// Removes the remains of one incarnation: if a later one has its directory, nothing of it is left, and the later one
/// is not touched.
pub fn collect_incarnation(directory: &Path, incarnation: &str) -> Result<bool, DirectoryError> {
    collect_if(directory, |own| match layout::read_incarnation(own) {
        // Files that a shim wrote there do not prevent its removal.
        Ok((found, author)) => found == incarnation || author != rustix::process::geteuid().as_raw(),
        Err(_) => true,
    })
}

fn collect_if(directory: &Path, is_meant: impl Fn(&OwnedFd) -> bool) -> Result<bool, DirectoryError> {
    let failed = |source| DirectoryError::Io { path: directory.to_owned(), source };
    let (Some(above), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    };
    let Some(parent) = open_parent(above)? else { return Ok(true) };
    match try_name(&parent, name, TRIES).map_err(failed)? {
        SweepAttempt::Dead(dead) if is_meant(&dead.own) => {
            dead.reap().and_then(|()| Ok(dead.remove()?)).map_err(|error| error.at(directory))?;
        }
        SweepAttempt::Dead(_) | SweepAttempt::Removed | SweepAttempt::Absent => {}
        SweepAttempt::Strange | SweepAttempt::Left | SweepAttempt::Inspected => return Ok(false),
    }
    Ok(true)
}

/// Opens the directory of all sandboxes, if it exists.
fn open_parent(path: &Path) -> Result<Option<OwnedFd>, DirectoryError> {
    let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
    let parent = match open_directory(CWD, path) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !is_parent(&parent).map_err(failed)? {
        return Err(DirectoryError::Open(path.to_owned()));
    }
    Ok(Some(parent))
}

fn names(parent: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(parent)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        }
    }
    Ok(names)
}

/// Sweeps one name, unless the deadline has passed. Returns whether there was something; `None` while it is being
/// inspected.
fn sweep_one(parent: &OwnedFd, name: &OsStr, until: Instant) -> Result<Option<bool>, SweepError> {
    if Instant::now() >= until {
        return Ok(Some(false));
    }
    let dead = match try_name(parent, name, 1)? {
        SweepAttempt::Dead(dead) => dead,
        SweepAttempt::Removed => return Ok(Some(true)),
        SweepAttempt::Strange => return Ok(discard_stray(parent, name).map(|()| Some(false))?),
        SweepAttempt::Absent | SweepAttempt::Left => return Ok(Some(false)),
        SweepAttempt::Inspected => return Ok(None),
    };
    if dead.is_stuck() {
        return Ok(Some(false));
    }
    let stuck = dead.own.try_clone()?;
    let swept = if is_persistent(&dead.own)? {
        dead.settle()
    } else {
        dead.reap().and_then(|()| Ok(dead.remove()?)).map(|()| true)
    };
    if let Err(
        SweepError::Stuck(_) | SweepError::UnkillableProcesses(_) | SweepError::Cgroup(CgroupError::Late { .. }),
    ) = &swept
    {
        mark_stuck(&stuck);
    }
    swept.map(Some)
}

/// Marks a directory to be skipped by others for a while.
fn mark_stuck(directory: &OwnedFd) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat(directory, STUCK, flags, Mode::RUSR | Mode::WUSR) {
        // Without the marker, every sweep waits.
        let _marked = rustix::io::write(&file, b"\n");
    }
}

/// Removes files that a shim put beside the directories.
fn discard_stray(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let is_stray = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat.st_uid > SUPERVISORS && FileType::from_raw_mode(stat.st_mode) != FileType::Directory,
        Err(Errno::NOENT) => false,
        Err(errno) => return Err(errno.into()),
    };
    match is_stray.then(|| rustix::fs::unlinkat(parent, name, AtFlags::empty())) {
        None | Some(Ok(()) | Err(Errno::NOENT | Errno::ISDIR)) => Ok(()),
        Some(Err(errno)) => Err(errno.into()),
    }
}

/// Locks a directory, if its shim is dead.
fn try_name<'a>(parent: &'a OwnedFd, name: &'a OsStr, tries: usize) -> io::Result<SweepAttempt<'a>> {
    let own = match open_directory(parent, name) {
        Ok(own) => own,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => return Ok(SweepAttempt::Absent),
            Some(Errno::LOOP | Errno::NOTDIR) => return Ok(SweepAttempt::Strange),
            _ => return Err(error),
        },
    };
    let place = rustix::fs::fstat(&own)?;
    if !is_owner(place.st_uid) {
        return Ok(SweepAttempt::Left);
    }
    let lock = match hold(&own, OFlags::empty(), tries)? {
        LockAttempt::Held(lock) => lock,
        LockAttempt::Taken => return Ok(SweepAttempt::Left),
        LockAttempt::Inspected => return Ok(SweepAttempt::Inspected),
        // Just created, or left by a shim that died immediately.
        LockAttempt::Absent => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(SweepAttempt::Removed),
            Err(Errno::NOENT) => return Ok(SweepAttempt::Absent),
            // A lock is the first file in a directory and the last: here it was removed.
            Err(Errno::NOTEMPTY | Errno::EXIST) => match hold(&own, OFlags::CREATE, tries)? {
                LockAttempt::Held(lock) => lock,
                LockAttempt::Taken | LockAttempt::Inspected | LockAttempt::Absent => return Ok(SweepAttempt::Left),
            },
            Err(errno) => return Err(errno.into()),
        },
    };
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if is_same(&found, &place) => Ok(SweepAttempt::Dead(DeadSandbox { parent, name, own, lock })),
        // The opened directory was removed, and another one has its name.
        Ok(_) => Ok(SweepAttempt::Left),
        Err(Errno::NOENT) => Ok(SweepAttempt::Absent),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the remains of a sandbox are persistent.
pub(super) fn is_persistent(directory: &OwnedFd) -> io::Result<bool> {
    match SandboxRecord::read(directory) {
        Ok(record) => Ok(record.lasting),
        // Valid and ours, but of a newer release: an older one must not delete it.
        Err(RecordError::Format { .. } | RecordError::Unreadable(_)) => Ok(true),
        Err(RecordError::Absent | RecordError::Damaged | RecordError::Forged { .. } | RecordError::Copied) => Ok(false),
        Err(RecordError::Io(error)) => Err(error),
    }
}

/// Removes a locked directory: the sockets first, the lock last.
pub(super) fn remove(parent: &OwnedFd, name: &OsStr, own: &OwnedFd) -> io::Result<()> {
    remove_sockets(own)?;
    empty(own, Some(LOCK))?;
    match rustix::fs::unlinkat(own, LOCK, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // Without a lock, another process may have swept or claimed it.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the sockets. Returns whether there were any.
pub(super) fn remove_sockets(own: &OwnedFd) -> io::Result<bool> {
    let mut removed = false;
    for socket in [AGENT_SOCKET, SHIM_SOCKET] {
        removed |= rustix::fs::statat(own, socket, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        discard(own, socket)?;
    }
    Ok(removed)
}

// === impl DeadSandbox ===

impl DeadSandbox<'_> {
    /// Whether a recent sweep failed to kill its processes.
    fn is_stuck(&self) -> bool {
        let Ok(marker) = rustix::fs::statat(&self.own, STUCK, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        // A compromised shim could create a marker, but not one that is ours.
        let is_ours = marker.st_uid == rustix::process::geteuid().as_raw();
        let since = u64::try_from(marker.st_mtime).unwrap_or(0).saturating_mul(1000);
        let age = layout::now_ms().checked_sub(since).map(Duration::from_millis);
        is_ours && age.is_some_and(|age| age < STUCK_RETRY)
    }

    /// Terminates its own remains.
    fn reap(&self) -> Result<(), SweepError> {
        // From here on discovery does not consider it running.
        remove_sockets(&self.own)?;
        reap(&self.own)?;
        Ok(())
    }

    fn remove(self) -> io::Result<()> {
        // First ours, then empty: from here on no other user can add to it.
        self.reclaim_ownership()?;
        remove(self.parent, self.name, &self.own)
    }

    /// Terminates the remains and keeps the persistent part. Returns whether something was still to be done.
    fn settle(self) -> Result<bool, SweepError> {
        let sockets = remove_sockets(&self.own)?;
        let reaped = reap(&self.own)?;
        let back = self.reclaim_ownership()?;
        match end::append(&self.own)? {
            JournalEndCheck::TooLarge(bytes) => Err(SweepError::Large(bytes)),
            end => Ok(back || sockets || reaped || end == JournalEndCheck::Appended),
        }
    }

    /// Takes its ownership back: its id range, and with it its user, may belong to another sandbox by now.
    fn reclaim_ownership(&self) -> io::Result<bool> {
        let place = rustix::fs::fstat(&self.own)?;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        if place.st_uid == user.as_raw() && place.st_mode & 0o077 == 0 {
            return Ok(false);
        }
        rustix::fs::fchown(&self.own, Some(user), Some(group))?;
        rustix::fs::fchmod(&self.own, Mode::from_raw_mode(0o700))?;
        Ok(true)
    }
}

impl Drop for DeadSandbox<'_> {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread just forked has it open too.
        let _free = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

// === impl SweepError ===

impl SweepError {
    pub(super) fn at(self, path: &Path) -> DirectoryError {
        match self {
            Self::Io(source) => DirectoryError::Io { path: path.to_owned(), source },
            Self::Cgroup(error) => error.into(),
            Self::Journal(error) => error.into(),
            Self::UnkillableProcesses(unkillable) => unkillable.into(),
            Self::Stuck(pid) => DirectoryError::Stuck(pid),
            Self::Large(bytes) => DirectoryError::Large { path: path.to_owned(), bytes },
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
pub(super) mod tests;
