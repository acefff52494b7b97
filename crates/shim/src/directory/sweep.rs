//! What dead supervisors left: ended, told about, removed.

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

use super::bury::bury;
use super::end::{self, Told};
use super::hold::{Hold, PAUSE, TRIES, hold};
use super::{DirectoryError, Unkillable};

/// How long a sweep goes on to the next. What is left then is found by the next sweep.
const PATIENCE: Duration = Duration::from_secs(1);

/// There while something of a sandbox cannot be killed.
const STUCK: &str = "stuck";
/// How long such a directory is left alone. Whoever sweeps waits for the kernel, and keeps the others waiting.
const STUCK_RETRY: Duration = Duration::from_secs(60);

/// A directory of a dead sandbox, held so that nobody else touches it.
struct Dead<'a> {
    parent: &'a OwnedFd,
    name: &'a OsStr,
    own: OwnedFd,
    lock: File,
}

/// Why one directory could not be swept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Swept {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Unkillable(#[from] Unkillable),
    #[error("a supervisor does not end")]
    Stuck(u32),
    #[error("a journal is too large")]
    Large(u64),
}

/// What became of one name.
enum Tried<'a> {
    /// Its supervisor is dead, and it is ours to sweep.
    Dead(Dead<'a>),
    /// There was next to nothing, and that is gone.
    Removed,
    /// It is not there.
    Absent,
    /// It is no directory.
    Strange,
    /// Its supervisor lives, or it is none of ours.
    Left,
    /// Somebody is looking whether its supervisor lives.
    Looked,
}

/// Sweeps what dead supervisors left of their sandboxes below a directory; returns of how many something was left.
///
/// What was not to last is removed whole. What was to last stays, without processes, sockets and a group, and its journal
/// tells an end: that its supervisor was lost, if that one did not tell another.
pub fn sweep(sandboxes: &Path) -> Result<usize, DirectoryError> {
    let Some(parent) = open_parent(sandboxes)? else { return Ok(0) };
    let listed = names(&parent).map_err(|source| DirectoryError::Io { path: sandboxes.to_owned(), source });
    let (mut names, until) = (listed?, Instant::now() + PATIENCE);
    let (mut swept, mut first) = (0, None);
    for round in 0..TRIES {
        if round > 0 && !names.is_empty() {
            std::thread::sleep(PAUSE);
        }
        // Those that somebody looks at are tried again together: however many they are, they cost the others no time.
        names.retain(|name| match sweep_one(&parent, name, until) {
            Ok(Some(something)) => {
                swept += usize::from(something);
                false
            }
            Ok(None) => true,
            // One that cannot be swept does not keep the others.
            Err(error) => {
                first.get_or_insert_with(|| error.at(&sandboxes.join(name)));
                false
            }
        });
    }
    first.map_or(Ok(swept), Err)
}

/// The same for the directory of one sandbox, whatever is wrong with the others.
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
        let swept = sweep_one(&parent, name, Instant::now() + PATIENCE).map_err(|error| error.at(directory))?;
        if swept.is_some() {
            break;
        }
    }
    Ok(())
}

/// Removes what is left of one sandbox, whether it was to last or not. Returns whether nothing of it is left: while its
/// supervisor lives, nothing is touched.
pub fn collect(directory: &Path) -> Result<bool, DirectoryError> {
    collect_if(directory, |_| true)
}

/// The same for one incarnation: where a later one has its directory, nothing of it is left, and the later one is not
/// touched.
pub fn collect_incarnation(directory: &Path, incarnation: &str) -> Result<bool, DirectoryError> {
    collect_if(directory, |own| match layout::read_incarnation(own) {
        // What a supervisor wrote there keeps nobody from removing it.
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
        Tried::Dead(dead) if is_meant(&dead.own) => {
            dead.bury().and_then(|()| Ok(dead.remove()?)).map_err(|error| error.at(directory))?;
        }
        Tried::Dead(_) | Tried::Removed | Tried::Absent => {}
        Tried::Strange | Tried::Left | Tried::Looked => return Ok(false),
    }
    Ok(true)
}

/// Opens the directory of all, if it is there.
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

/// Sweeps one name, unless it is too late for that. Returns whether there was something; nothing while somebody looks at it.
fn sweep_one(parent: &OwnedFd, name: &OsStr, until: Instant) -> Result<Option<bool>, Swept> {
    if Instant::now() >= until {
        return Ok(Some(false));
    }
    let dead = match try_name(parent, name, 1)? {
        Tried::Dead(dead) => dead,
        Tried::Removed => return Ok(Some(true)),
        Tried::Strange => return Ok(discard_stray(parent, name).map(|()| Some(false))?),
        Tried::Absent | Tried::Left => return Ok(Some(false)),
        Tried::Looked => return Ok(None),
    };
    if dead.is_stuck() {
        return Ok(Some(false));
    }
    let stuck = dead.own.try_clone()?;
    let swept = if is_lasting(&dead.own)? {
        dead.settle()
    } else {
        dead.bury().and_then(|()| Ok(dead.remove()?)).map(|()| true)
    };
    if let Err(Swept::Stuck(_) | Swept::Unkillable(_) | Swept::Cgroup(CgroupError::Late { .. })) = &swept {
        mark_stuck(&stuck);
    }
    swept.map(Some)
}

/// Has others leave a directory alone for a while.
fn mark_stuck(directory: &OwnedFd) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat(directory, STUCK, flags, Mode::RUSR | Mode::WUSR) {
        // Without the marker, everybody waits.
        let _marked = rustix::io::write(&file, b"\n");
    }
}

/// Removes what a supervisor put beside the directories.
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

/// Takes a directory, if its supervisor is dead.
fn try_name<'a>(parent: &'a OwnedFd, name: &'a OsStr, tries: usize) -> io::Result<Tried<'a>> {
    let own = match open_directory(parent, name) {
        Ok(own) => own,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => return Ok(Tried::Absent),
            Some(Errno::LOOP | Errno::NOTDIR) => return Ok(Tried::Strange),
            _ => return Err(error),
        },
    };
    let place = rustix::fs::fstat(&own)?;
    if !is_owner(place.st_uid) {
        return Ok(Tried::Left);
    }
    let lock = match hold(&own, OFlags::empty(), tries)? {
        Hold::Held(lock) => lock,
        Hold::Taken => return Ok(Tried::Left),
        Hold::Looked => return Ok(Tried::Looked),
        // Made a moment ago, or left by one that died as it began.
        Hold::Absent => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(Tried::Removed),
            Err(Errno::NOENT) => return Ok(Tried::Absent),
            // A lock is the first thing in a directory and the last: here somebody took it away.
            Err(Errno::NOTEMPTY | Errno::EXIST) => match hold(&own, OFlags::CREATE, tries)? {
                Hold::Held(lock) => lock,
                Hold::Taken | Hold::Looked | Hold::Absent => return Ok(Tried::Left),
            },
            Err(errno) => return Err(errno.into()),
        },
    };
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if is_same(&there, &place) => Ok(Tried::Dead(Dead { parent, name, own, lock })),
        // What was opened is gone, and another has its name.
        Ok(_) => Ok(Tried::Left),
        Err(Errno::NOENT) => Ok(Tried::Absent),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether what is left of a sandbox is to stay until somebody collects it.
pub(super) fn is_lasting(directory: &OwnedFd) -> io::Result<bool> {
    match SandboxRecord::read(directory) {
        Ok(record) => Ok(record.lasting),
        // It is whole and ours, but from a release that knows more: not to be thrown away by one that knows less.
        Err(RecordError::Format { .. } | RecordError::Unreadable(_)) => Ok(true),
        Err(RecordError::Absent | RecordError::Damaged | RecordError::Forged { .. } | RecordError::Copied) => Ok(false),
        Err(RecordError::Io(error)) => Err(error),
    }
}

/// Removes a directory whose lock is held: first what others connect to, the lock last.
pub(super) fn remove(parent: &OwnedFd, name: &OsStr, own: &OwnedFd) -> io::Result<()> {
    remove_sockets(own)?;
    empty(own, Some(LOCK))?;
    match rustix::fs::unlinkat(own, LOCK, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // From the moment there was no lock, it was anybody's: swept by another, or claimed.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what others connect to. Returns whether there was something.
pub(super) fn remove_sockets(own: &OwnedFd) -> io::Result<bool> {
    let mut removed = false;
    for socket in [AGENT_SOCKET, SHIM_SOCKET] {
        removed |= rustix::fs::statat(own, socket, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        discard(own, socket)?;
    }
    Ok(removed)
}

// === impl Dead ===

impl Dead<'_> {
    /// Whether somebody tried a moment ago to kill what it left, and could not.
    fn is_stuck(&self) -> bool {
        let Ok(marker) = rustix::fs::statat(&self.own, STUCK, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        // A supervisor that was taken over could put one there, but none of ours.
        let is_ours = marker.st_uid == rustix::process::geteuid().as_raw();
        let since = u64::try_from(marker.st_mtime).unwrap_or(0).saturating_mul(1000);
        let age = layout::now_ms().checked_sub(since).map(Duration::from_millis);
        is_ours && age.is_some_and(|age| age < STUCK_RETRY)
    }

    /// Ends what it left, as far as that is its own.
    fn bury(&self) -> Result<(), Swept> {
        // From here on nobody takes it for one that runs.
        remove_sockets(&self.own)?;
        bury(&self.own)?;
        Ok(())
    }

    fn remove(self) -> io::Result<()> {
        // First ours, then empty: what is put into it from here on is not another's.
        self.take_back()?;
        remove(self.parent, self.name, &self.own)
    }

    /// Ends what it left and keeps what is to stay. Returns whether something was still to be done.
    fn settle(self) -> Result<bool, Swept> {
        let sockets = remove_sockets(&self.own)?;
        let buried = bury(&self.own)?;
        let back = self.take_back()?;
        match end::tell(&self.own)? {
            Told::Large(bytes) => Err(Swept::Large(bytes)),
            told => Ok(back || sockets || buried || told == Told::Now),
        }
    }

    /// Makes it ours again: its range of ids may be another sandbox's by now, and with it the user that owns it.
    fn take_back(&self) -> io::Result<bool> {
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

impl Drop for Dead<'_> {
    fn drop(&mut self) {
        // To close it is not enough: a process that another thread is just starting has it open too.
        let _free = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

// === impl Swept ===

impl Swept {
    pub(super) fn at(self, path: &Path) -> DirectoryError {
        match self {
            Self::Io(source) => DirectoryError::Io { path: path.to_owned(), source },
            Self::Cgroup(error) => error.into(),
            Self::Journal(error) => error.into(),
            Self::Unkillable(unkillable) => unkillable.into(),
            Self::Stuck(pid) => DirectoryError::Stuck(pid),
            Self::Large(bytes) => DirectoryError::Large { path: path.to_owned(), bytes },
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
pub(super) mod tests;
