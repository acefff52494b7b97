//! What dead supervisors left: ended, told about, removed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use carrel_sandbox::cgroup::{Cgroup, CgroupError, Host};
use carrel_shim_client::layout::{
    self, AGENT_SOCKET, LOCK, SHIM_SOCKET, SUPERVISORS, is_parent, is_same, open_directory,
};
use carrel_shim_client::messages::{EndReason, Fact, FactKind, Outcome, OutcomeKind};
use carrel_shim_client::{Journal, JournalError, RecordError, SandboxRecord};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::DirectoryError;
use super::empty::{discard, empty};
use super::hold::{Hold, hold};

/// A directory of a dead sandbox, held so that nobody else touches it.
struct Dead<'a> {
    parent: &'a OwnedFd,
    name: &'a OsStr,
    own: OwnedFd,
    lock: File,
}

/// Why one directory could not be swept.
#[derive(Debug, thiserror::Error)]
enum Swept {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What became of one name.
enum Tried<'a> {
    /// Its supervisor is dead, and it is ours to sweep.
    Dead(Dead<'a>),
    /// There was next to nothing, and that is gone.
    Removed,
    /// It is not there.
    Absent,
    /// Its supervisor lives, or it is none of ours.
    Left,
}

/// Sweeps what dead supervisors left of their sandboxes below a directory; returns of how many something was left.
///
/// What was not to last is removed whole. What was to last stays, without processes, sockets and a group, and its journal
/// tells an end: that its supervisor was lost, if that one did not tell another.
pub fn sweep(sandboxes: &Path) -> Result<usize, DirectoryError> {
    let failed = |source| DirectoryError::Io { path: sandboxes.to_owned(), source };
    let Some(parent) = open_parent(sandboxes)? else { return Ok(0) };
    let (mut swept, mut first) = (0, None);
    for entry in rustix::fs::Dir::read_from(&parent).map_err(|errno| failed(errno.into()))? {
        let entry = entry.map_err(|errno| failed(errno.into()))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if [OsStr::new("."), OsStr::new("..")].contains(&name) {
            continue;
        }
        // One that cannot be swept does not keep the others.
        match sweep_one(&parent, name) {
            Ok(true) => swept += 1,
            Ok(false) => {}
            Err(error) => first = first.or(Some(error.at(&sandboxes.join(name)))),
        }
    }
    first.map_or(Ok(swept), Err)
}

/// Removes what is left of one sandbox, whether it was to last or not. Returns whether nothing of it is left: while its
/// supervisor lives, nothing is touched.
pub fn collect(directory: &Path) -> Result<bool, DirectoryError> {
    let failed = |source| DirectoryError::Io { path: directory.to_owned(), source };
    let (Some(above), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    };
    let Some(parent) = open_parent(above)? else { return Ok(true) };
    match try_name(&parent, name).map_err(failed)? {
        Tried::Dead(dead) => dead.bury().and_then(|()| Ok(dead.remove()?)).map_err(|error| error.at(directory))?,
        Tried::Removed | Tried::Absent => {}
        Tried::Left => return Ok(false),
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

fn sweep_one(parent: &OwnedFd, name: &OsStr) -> Result<bool, Swept> {
    let dead = match try_name(parent, name)? {
        Tried::Dead(dead) => dead,
        Tried::Removed => return Ok(true),
        Tried::Absent | Tried::Left => return Ok(false),
    };
    if is_lasting(&dead.own)? {
        return dead.settle();
    }
    dead.bury()?;
    dead.remove()?;
    Ok(true)
}

/// Takes a directory, if its supervisor is dead.
fn try_name<'a>(parent: &'a OwnedFd, name: &'a OsStr) -> io::Result<Tried<'a>> {
    let own = match open_directory(parent, name) {
        Ok(own) => own,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => return Ok(Tried::Absent),
            Some(Errno::LOOP | Errno::NOTDIR) => return Ok(Tried::Left),
            _ => return Err(error),
        },
    };
    let place = rustix::fs::fstat(&own)?;
    if place.st_uid != rustix::process::geteuid().as_raw() && place.st_uid <= SUPERVISORS {
        return Ok(Tried::Left);
    }
    let lock = match hold(&own, OFlags::empty())? {
        Hold::Held(lock) => lock,
        Hold::Taken => return Ok(Tried::Left),
        // Made a moment ago, or left by one that died as it began.
        Hold::Absent => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(Tried::Removed),
            Err(Errno::NOENT) => return Ok(Tried::Absent),
            // A lock is the first thing in a directory and the last: here somebody took it away.
            Err(Errno::NOTEMPTY | Errno::EXIST) => match hold(&own, OFlags::CREATE)? {
                Hold::Held(lock) => lock,
                Hold::Taken | Hold::Absent => return Ok(Tried::Left),
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
        Err(RecordError::Absent | RecordError::Damaged | RecordError::Forged { .. }) => Ok(false),
        Err(RecordError::Io(error)) => Err(error),
    }
}

/// Ends and removes what the incarnation of a directory left on this host. Returns whether there was something.
pub(super) fn bury(directory: &OwnedFd) -> Result<bool, CgroupError> {
    let Ok((incarnation, author)) = layout::read_incarnation(directory) else {
        // It died before it had made anything.
        return Ok(false);
    };
    let ours = rustix::process::geteuid().as_raw();
    let owner = rustix::fs::fstat(directory).map_or(u32::MAX, |stat| stat.st_uid);
    let named_by = if owner == ours { author } else { owner };
    match Cgroup::adopt(&Host::detect()?, &incarnation) {
        // A supervisor that was taken over could name the group of another.
        Ok(cgroup) if named_by != ours && cgroup.owner() != Some(named_by) => Ok(false),
        Ok(cgroup) => {
            cgroup.kill_all()?;
            cgroup.remove().map(|()| true)
        }
        // What is no name of a group was never the name of one.
        Err(CgroupError::NotFound { .. } | CgroupError::Name(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a directory whose lock is held: first what others connect to, the lock last.
pub(super) fn remove(parent: &OwnedFd, name: &OsStr, own: &OwnedFd) -> io::Result<()> {
    remove_sockets(own)?;
    empty(own, Some(LOCK))?;
    rustix::fs::unlinkat(own, LOCK, AtFlags::empty())?;
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
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
    /// Ends what it left, as far as that is its own.
    fn bury(&self) -> Result<(), Swept> {
        // From here on nobody takes it for one that runs.
        remove_sockets(&self.own)?;
        bury(&self.own)?;
        Ok(())
    }

    fn remove(self) -> io::Result<()> {
        remove(self.parent, self.name, &self.own)
    }

    /// Ends what it left and keeps what is to stay. Returns whether something was still to be done.
    fn settle(self) -> Result<bool, Swept> {
        let sockets = remove_sockets(&self.own)?;
        let group = bury(&self.own)?;
        let ended = tell_end(&self.own)?;
        Ok(self.take_back()? || sockets || group || ended)
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

/// Sees to it that the journal of a dead one tells an end. Returns whether it did not.
fn tell_end(directory: &OwnedFd) -> Result<bool, JournalError> {
    let mut journal = match Journal::open(directory) {
        Ok(journal) => journal,
        // Nothing can be added to what is no journal, and it is not ours to begin a new one: sequences are used once.
        Err(JournalError::NoJournal | JournalError::Format { .. }) => return Ok(false),
        Err(JournalError::Open(error)) if is_strange(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    let last = journal.read(journal.last(), 1)?.pop();
    if last.is_some_and(|fact| matches!(fact.kind, FactKind::Ended | FactKind::Failed)) {
        return Ok(false);
    }
    for job in unfinished(&journal)? {
        let outcome = Outcome::of(OutcomeKind::SandboxEnded);
        let fact = Fact::new(layout::now_ms(), FactKind::JobEnded);
        journal.append(Fact { job: Some(job), outcome: Some(outcome), ..fact })?;
    }
    let message = Some("its supervisor was lost".to_owned());
    let reason = Some(EndReason::SupervisorLost);
    journal.append(Fact { reason, message, ..Fact::new(layout::now_ms(), FactKind::Ended) })?;
    Ok(true)
}

/// The jobs that were started and of which no end is told, in their order.
fn unfinished(journal: &Journal) -> Result<Vec<String>, JournalError> {
    let (mut running, mut next) = (Vec::new(), 1);
    while next <= journal.last() {
        let facts = journal.read(next, 1000)?;
        next += facts.len().max(1) as u64;
        for fact in facts {
            match (fact.kind, fact.job) {
                (FactKind::JobStarted, Some(job)) => running.push(job),
                (FactKind::JobEnded, Some(job)) => running.retain(|other| *other != job),
                _ => {}
            }
        }
    }
    Ok(running)
}

/// Whether something is not there, or is not a file.
fn is_strange(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR))
}

// === impl Swept ===

impl Swept {
    fn at(self, path: &Path) -> DirectoryError {
        match self {
            Self::Io(source) => DirectoryError::Io { path: path.to_owned(), source },
            Self::Cgroup(error) => error.into(),
            Self::Journal(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
