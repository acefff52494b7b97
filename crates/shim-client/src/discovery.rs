//! Discovery of sandboxes that another process created, verified against the kernel instead of trusting their files.

#[cfg(feature = "owner")]
mod connect;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

#[cfg(feature = "owner")]
pub use self::connect::{AdoptError, IdentityField};
use crate::journal::{Journal, JournalError};
use crate::layout::{self, JOURNAL, LOCK, SHIM_SOCKET};
use crate::messages::Fact;
use crate::record::{RecordError, SandboxRecord};

/// How often a directory that changes meanwhile is inspected again.
const MAX_ATTEMPTS: usize = 3;
/// The approximate memory budget for the journals of all listed sandboxes.
const LISTED: usize = 4 * Journal::LOADED;
/// The minimum budget of each sandbox.
const ALLOWANCE: usize = 1024 * 1024;

/// A discovered sandbox, or the remains of one.
#[derive(Debug)]
pub struct DiscoveredSandbox {
    pub directory: PathBuf,
    /// Its record; `None` if it does not exist yet or is not trusted.
    pub record: Option<SandboxRecord>,
    /// Whether it is alive.
    pub life: Liveness,
    /// Why its record or journal is not trusted.
    pub problem: Option<DiscoveryProblem>,
    /// The inspected directory.
    #[cfg(feature = "owner")]
    place: Option<Stat>,
}

/// Whether a sandbox is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its lock is held, but its shim cannot be reached: it is being created or swept.
    Starting,
    /// It has a shim that accepts connections.
    Running,
    /// It has no shim, and none of its processes runs.
    Dead {
        /// Its journal, as far as it can be read.
        facts: Vec<Fact>,
        /// Whether it was created before the host booted.
        rebooted: bool,
    },
}

/// Why a directory is not trusted, or what else is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryProblem {
    /// The record is missing or invalid.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record has the name of another sandbox.
    #[error("record belongs to sandbox {name:?}, which has another directory")]
    Name {
        /// The name in the record.
        name: String,
    },
    /// The directory has an unexpected owner.
    #[error("directory is owned by user {owner}, but its shim runs as user {recorded}")]
    Owner {
        /// The owner of the directory.
        owner: u32,
        /// The user in the record.
        recorded: u32,
    },
    /// The directory has another incarnation.
    #[error("record has incarnation {recorded:?}, but the directory has {:?}", found.as_deref().unwrap_or_default())]
    Incarnation {
        /// The incarnation in the record.
        recorded: String,
        /// The incarnation in the directory; `None` if it cannot be read.
        found: Option<String>,
    },
    /// The directory is accessible to other users. Its content is evaluated nevertheless: a shim can change the mode of
    /// its own directory at any time.
    #[error("directory is accessible to other users")]
    Open,
    /// It cannot be inspected.
    #[error("directory cannot be inspected: {0}")]
    Io(#[source] io::Error),
    /// Its lock is not a regular file.
    #[error("lock is not a regular file")]
    Lock,
    /// Its journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its journal is too large to be read.
    #[error("journal of {0} bytes is too large")]
    Large(u64),
    /// Its journal exceeds the memory budget: later facts are omitted.
    #[error("journal was read only up to fact {0}")]
    Long(u64),
}

/// Why sandboxes could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// Other users could modify the directory.
    #[error("{} is writable by other users", .0.display())]
    Open(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Whether a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    Held,
    Free,
    /// It was just created, or is about to be removed.
    Absent,
    /// It is not a lock file.
    Strange,
}

// === impl DiscoveredSandbox ===

impl DiscoveredSandbox {
    /// A sandbox that cannot be inspected: its liveness is unknown.
    fn uninspectable(directory: PathBuf, error: io::Error) -> Self {
        Self {
            directory,
            record: None,
            life: Liveness::Starting,
            problem: Some(DiscoveryProblem::Io(error)),
            #[cfg(feature = "owner")]
            place: None,
        }
    }

    /// The approximate memory of its journal.
    fn weight(&self) -> usize {
        match &self.life {
            Liveness::Dead { facts, .. } => facts.iter().map(Fact::weight).sum(),
            Liveness::Starting | Liveness::Running => 0,
        }
    }
}

// === impl DiscoveryProblem ===

impl DiscoveryProblem {
    /// Whether the problem cannot be caused by a concurrent change.
    fn is_permanent(&self) -> bool {
        matches!(self, Self::Open | Self::Large(_) | Self::Long(_))
    }
}

/// All sandboxes of a home, in the order of their directories. Other entries are skipped. A problem of one sandbox does
/// not affect the others.
pub fn sandboxes(home: &Path) -> Result<Vec<DiscoveredSandbox>, DiscoveryError> {
    let above = layout::sandboxes_directory(home);
    let Some(parent) = open_parent(&above)? else { return Ok(Vec::new()) };
    let failed = |errno: Errno| DiscoveryError::Io { path: above.clone(), source: errno.into() };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        names.extend(entry.file_name().to_str().ok().filter(|name| layout::is_directory_name(name)).map(str::to_owned));
    }
    names.sort_unstable();
    let (mut found, mut left) = (Vec::new(), LISTED);
    for name in names {
        match inspect(&parent, &above, &name, left.clamp(ALLOWANCE, Journal::LOADED)) {
            Ok(Some((_, one))) => {
                left = left.saturating_sub(one.weight());
                found.push(one);
            }
            // Removed, or not trusted whatever it contains.
            Ok(None) | Err(DiscoveryError::Open(_)) => {}
            Err(DiscoveryError::Io { path, source }) => found.push(DiscoveredSandbox::uninspectable(path, source)),
        }
    }
    Ok(found)
}

/// The sandbox with a name.
pub fn find(home: &Path, name: &str) -> Result<Option<DiscoveredSandbox>, DiscoveryError> {
    let above = layout::sandboxes_directory(home);
    let Some(name) = layout::directory_name(name) else { return Ok(None) };
    let Some(parent) = open_parent(&above)? else { return Ok(None) };
    Ok(inspect(&parent, &above, &name, Journal::LOADED)?.map(|(_, found)| found))
}

/// Opens the directory of all sandboxes.
fn open_parent(path: &Path) -> Result<Option<OwnedFd>, DiscoveryError> {
    let failed = |source| DiscoveryError::Io { path: path.to_owned(), source };
    let parent = match layout::open_directory(CWD, path) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !layout::is_parent(&parent).map_err(failed)? {
        return Err(DiscoveryError::Open(path.to_owned()));
    }
    Ok(Some(parent))
}

/// Inspects one directory. Its shim may change it meanwhile: inconsistent results are retried.
fn inspect(
    parent: &OwnedFd,
    above: &Path,
    name: &str,
    most: usize,
) -> Result<Option<(OwnedFd, DiscoveredSandbox)>, DiscoveryError> {
    let mut inspected = inspect_once(parent, above, name, most)?;
    for _ in 1..MAX_ATTEMPTS {
        if inspected.as_ref().and_then(|(_, found)| found.problem.as_ref()).is_none_or(DiscoveryProblem::is_permanent) {
            break;
        }
        inspected = inspect_once(parent, above, name, most)?;
    }
    Ok(inspected)
}

fn inspect_once(
    parent: &OwnedFd,
    above: &Path,
    name: &str,
    most: usize,
) -> Result<Option<(OwnedFd, DiscoveredSandbox)>, DiscoveryError> {
    let path = above.join(name);
    let failed = |source| DiscoveryError::Io { path: path.clone(), source };
    let own = match layout::open_directory(parent, name) {
        Ok(own) => own,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => return Ok(None),
            // A symlink, or not a directory.
            Some(Errno::LOOP | Errno::NOTDIR) => return Err(DiscoveryError::Open(path)),
            _ => return Err(failed(error)),
        },
    };
    let place = rustix::fs::fstat(&own).map_err(|errno| failed(errno.into()))?;
    if !layout::is_owner(place.st_uid) {
        return Err(DiscoveryError::Open(path));
    }
    let held = lock_state(&own).map_err(|errno| failed(errno.into()))?;
    if held == LockState::Absent {
        return Ok(None);
    }
    let (record, mut problem) = match matching_record(&own, &place, name) {
        Ok(record) => (record, (held == LockState::Strange).then_some(DiscoveryProblem::Lock)),
        Err(problem) => (None, Some(problem)),
    };
    let rebooted = match &record {
        Some(record) => record.boot_id != layout::boot_id().map_err(failed)?,
        None => false,
    };
    let life = match held {
        // The lock holder of a sandbox that was created before this boot is not its shim.
        LockState::Held if record.is_some() && !rebooted && is_socket(&own) => Liveness::Running,
        LockState::Held => Liveness::Starting,
        LockState::Free | LockState::Absent | LockState::Strange => {
            let loaded = if problem.is_none() { facts(&own, record.as_ref(), most) } else { Ok((Vec::new(), None)) };
            let facts = match loaded {
                Ok((facts, long)) => {
                    problem = problem.or(long);
                    facts
                }
                Err(error) => {
                    problem = Some(error);
                    Vec::new()
                }
            };
            Liveness::Dead { facts, rebooted }
        }
    };
    if place.st_mode & 0o077 != 0 {
        problem = problem.or(Some(DiscoveryProblem::Open));
    }
    let found = DiscoveredSandbox {
        directory: path,
        record,
        life,
        problem,
        #[cfg(feature = "owner")]
        place: Some(place),
    };
    Ok(Some((own, found)))
}

/// Whether the lock is held. It is tried briefly with a shared lock, so that a process that wants to hold it only needs
/// to retry.
fn lock_state(directory: &OwnedFd) -> Result<LockState, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, LOCK, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(LockState::Absent),
        Err(Errno::LOOP | Errno::NXIO) => return Ok(LockState::Strange),
        Err(errno) => return Err(errno),
    };
    let opened = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
        return Ok(LockState::Strange);
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(LockState::Held),
        Err(errno) => return Err(errno),
    }
    // Closing is not enough: a process that another thread just forked has it open too.
    rustix::fs::flock(&file, FlockOperation::Unlock)?;
    drop(file);
    // The file that was tried has been removed by a sweep.
    match rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(current) if layout::is_same(&opened, &current) => Ok(LockState::Free),
        Ok(_) | Err(Errno::NOENT) => Ok(LockState::Absent),
        Err(errno) => Err(errno),
    }
}

/// The record of a directory, if it matches.
fn matching_record(directory: &OwnedFd, place: &Stat, name: &str) -> Result<Option<SandboxRecord>, DiscoveryProblem> {
    let record = match SandboxRecord::read(directory) {
        Ok(record) => record,
        Err(RecordError::Absent) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if layout::directory_name(&record.name).as_deref() != Some(name) {
        return Err(DiscoveryProblem::Name { name: record.name });
    }
    let (ours, recorded) = (rustix::process::geteuid().as_raw(), record.supervisor_user);
    if place.st_uid != ours && place.st_uid != recorded {
        return Err(DiscoveryProblem::Owner { owner: place.st_uid, recorded });
    }
    match layout::read_incarnation(directory) {
        Ok((found, author)) if found == record.incarnation && author == ours => Ok(Some(record)),
        other => {
            let found = other.ok().map(|(found, _)| found);
            Err(DiscoveryProblem::Incarnation { recorded: record.incarnation, found })
        }
    }
}

/// The journal of a dead sandbox within a memory budget, and whether it was truncated.
fn facts(
    directory: &OwnedFd,
    record: Option<&SandboxRecord>,
    most: usize,
) -> Result<(Vec<Fact>, Option<DiscoveryProblem>), DiscoveryProblem> {
    match rustix::fs::statat(directory, JOURNAL, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok((Vec::new(), None)),
        Ok(stat) if u64::try_from(stat.st_size).is_ok_and(|size| size > Journal::LARGEST) => {
            return Err(DiscoveryProblem::Large(stat.st_size.unsigned_abs()));
        }
        _ => {}
    }
    let loaded = Journal::load_within(directory, most)?;
    match record {
        Some(record) if record.incarnation != loaded.incarnation => {
            Err(DiscoveryProblem::Incarnation { recorded: record.incarnation.clone(), found: Some(loaded.incarnation) })
        }
        _ => {
            let long = loaded.cut.then(|| DiscoveryProblem::Long(loaded.facts.last().map_or(0, |fact| fact.sequence)));
            Ok((loaded.facts, long))
        }
    }
}

/// Whether its shim has a socket.
fn is_socket(directory: impl AsFd) -> bool {
    rustix::fs::statat(directory, SHIM_SOCKET, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}
