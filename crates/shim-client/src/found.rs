//! Sandboxes that are there, found by whoever did not make them: judged by what the kernel says, not by what is written.

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
pub use self::connect::{AdoptError, Claim};
use crate::journal::{Journal, JournalError};
use crate::layout::{self, JOURNAL, LOCK, SHIM_SOCKET};
use crate::messages::Fact;
use crate::record::{RecordError, SandboxRecord};

/// How often a directory is looked at that changes meanwhile.
const LOOKS: usize = 3;
/// About how much memory the journals of all that are listed may take.
const LISTED: usize = 4 * Journal::LOADED;
/// What is left of that for one, however much others take.
const ALLOWANCE: usize = 1024 * 1024;

/// A sandbox, or what is left of one.
#[derive(Debug)]
pub struct Found {
    /// Its directory.
    pub directory: PathBuf,
    /// What was written down about it; none if nothing is yet, or if it is not to be believed.
    pub record: Option<SandboxRecord>,
    /// Whether it lives.
    pub life: Life,
    /// Why its record or journal is not believed.
    pub problem: Option<Problem>,
    /// The directory as it was looked at.
    #[cfg(feature = "owner")]
    place: Option<Stat>,
}

/// Whether a sandbox lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Somebody is at it who is not to be talked to: it is being made, or swept.
    Starting,
    /// It has a supervisor that can be talked to.
    Running,
    /// It has no supervisor, and nothing of it runs.
    Dead {
        /// What happened to it, as far as that is known.
        facts: Vec<Fact>,
        /// Whether it was made before this host booted.
        rebooted: bool,
    },
}

/// Why what is written in a directory is not believed, or what else is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The record is none.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record is that of another name.
    #[error("its record is that of {name:?}, whose directory is another")]
    Name {
        /// The name in the record.
        name: String,
    },
    /// The directory belongs to somebody else.
    #[error("it belongs to user {owner}, and its supervisor is user {recorded}")]
    Owner {
        /// The owner of the directory.
        owner: u32,
        /// The user in the record.
        recorded: u32,
    },
    /// The directory is that of another incarnation.
    #[error("its record is that of incarnation {recorded:?}, and the rest of it is that of {:?}", found.as_deref().unwrap_or_default())]
    Incarnation {
        /// The incarnation in the record.
        recorded: String,
        /// What else is said; none if that cannot be read.
        found: Option<String>,
    },
    /// The directory is open to others. What is in it is judged all the same: a supervisor can open its own at any time.
    #[error("its directory is open to others")]
    Open,
    /// It cannot be looked at.
    #[error("it cannot be looked at: {0}")]
    Io(#[source] io::Error),
    /// Its lock is none that could be held.
    #[error("its lock is not a plain file")]
    Lock,
    /// Its journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its journal is larger than anything that is read.
    #[error("its journal has {0} bytes")]
    Large(u64),
    /// Its journal tells more than is remembered: what happened later is not told.
    #[error("its journal is told up to fact {0} only")]
    Long(u64),
}

/// Why it cannot be said which sandboxes there are.
#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    /// Others could change what is in it.
    #[error("{} is not ours alone", .0.display())]
    Open(PathBuf),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Whether somebody holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Yes,
    No,
    /// It was made a moment ago, or is almost gone.
    Absent,
    /// What is there cannot be held.
    Strange,
}

// === impl Found ===

impl Found {
    /// One that cannot be looked at: nobody can say whether it lives.
    fn unseen(directory: PathBuf, error: io::Error) -> Self {
        Self {
            directory,
            record: None,
            life: Life::Starting,
            problem: Some(Problem::Io(error)),
            #[cfg(feature = "owner")]
            place: None,
        }
    }

    /// About how much memory its journal takes.
    fn weight(&self) -> usize {
        match &self.life {
            Life::Dead { facts, .. } => facts.iter().map(Fact::weight).sum(),
            Life::Starting | Life::Running => 0,
        }
    }
}

// === impl Problem ===

impl Problem {
    /// Whether it is none that comes of looking while somebody is at it.
    fn stays(&self) -> bool {
        matches!(self, Self::Open | Self::Large(_) | Self::Long(_))
    }
}

/// All sandboxes of a home, in the order of their directories. What is no directory of a sandbox is left out. None of them
/// keeps the others from being listed: what is wrong with one is its problem.
pub fn sandboxes(home: &Path) -> Result<Vec<Found>, FoundError> {
    let above = layout::sandboxes_directory(home);
    let Some(parent) = open_parent(&above)? else { return Ok(Vec::new()) };
    let failed = |errno: Errno| FoundError::Io { path: above.clone(), source: errno.into() };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        names.extend(entry.file_name().to_str().ok().filter(|name| layout::is_directory_name(name)).map(str::to_owned));
    }
    names.sort_unstable();
    let (mut found, mut left) = (Vec::new(), LISTED);
    for name in names {
        match look_at(&parent, &above, &name, left.clamp(ALLOWANCE, Journal::LOADED)) {
            Ok(Some((_, one))) => {
                left = left.saturating_sub(one.weight());
                found.push(one);
            }
            // Gone, or not to be believed, whatever is in it.
            Ok(None) | Err(FoundError::Open(_)) => {}
            Err(FoundError::Io { path, source }) => found.push(Found::unseen(path, source)),
        }
    }
    Ok(found)
}

/// The sandbox of a name.
pub fn find(home: &Path, name: &str) -> Result<Option<Found>, FoundError> {
    let above = layout::sandboxes_directory(home);
    let Some(name) = layout::directory_name(name) else { return Ok(None) };
    let Some(parent) = open_parent(&above)? else { return Ok(None) };
    Ok(look_at(&parent, &above, &name, Journal::LOADED)?.map(|(_, found)| found))
}

/// Opens the directory of all.
fn open_parent(path: &Path) -> Result<Option<OwnedFd>, FoundError> {
    let failed = |source| FoundError::Io { path: path.to_owned(), source };
    let parent = match layout::open_directory(CWD, path) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !layout::is_parent(&parent).map_err(failed)? {
        return Err(FoundError::Open(path.to_owned()));
    }
    Ok(Some(parent))
}

/// Looks at one directory. Its holder may change it meanwhile: what does not fit together is looked at again.
fn look_at(parent: &OwnedFd, above: &Path, name: &str, most: usize) -> Result<Option<(OwnedFd, Found)>, FoundError> {
    let mut looked = look_once(parent, above, name, most)?;
    for _ in 1..LOOKS {
        if looked.as_ref().and_then(|(_, found)| found.problem.as_ref()).is_none_or(Problem::stays) {
            break;
        }
        looked = look_once(parent, above, name, most)?;
    }
    Ok(looked)
}

fn look_once(parent: &OwnedFd, above: &Path, name: &str, most: usize) -> Result<Option<(OwnedFd, Found)>, FoundError> {
    let path = above.join(name);
    let failed = |source| FoundError::Io { path: path.clone(), source };
    let own = match layout::open_directory(parent, name) {
        Ok(own) => own,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => return Ok(None),
            // A link, or no directory.
            Some(Errno::LOOP | Errno::NOTDIR) => return Err(FoundError::Open(path)),
            _ => return Err(failed(error)),
        },
    };
    let place = rustix::fs::fstat(&own).map_err(|errno| failed(errno.into()))?;
    if !layout::is_owner(place.st_uid) {
        return Err(FoundError::Open(path));
    }
    let held = held(&own).map_err(|errno| failed(errno.into()))?;
    if held == Held::Absent {
        return Ok(None);
    }
    let (record, mut problem) = match judge(&own, &place, name) {
        Ok(record) => (record, (held == Held::Strange).then_some(Problem::Lock)),
        Err(problem) => (None, Some(problem)),
    };
    let rebooted = match &record {
        Some(record) => record.boot_id != layout::boot_id().map_err(failed)?,
        None => false,
    };
    let life = match held {
        // Whoever holds the lock of one that was made before this host booted is not its supervisor.
        Held::Yes if record.is_some() && !rebooted && is_socket(&own) => Life::Running,
        Held::Yes => Life::Starting,
        Held::No | Held::Absent | Held::Strange => {
            let told = if problem.is_none() { facts(&own, record.as_ref(), most) } else { Ok((Vec::new(), None)) };
            let facts = match told {
                Ok((facts, long)) => {
                    problem = problem.or(long);
                    facts
                }
                Err(error) => {
                    problem = Some(error);
                    Vec::new()
                }
            };
            Life::Dead { facts, rebooted }
        }
    };
    if place.st_mode & 0o077 != 0 {
        problem = problem.or(Some(Problem::Open));
    }
    let found = Found {
        directory: path,
        record,
        life,
        problem,
        #[cfg(feature = "owner")]
        place: Some(place),
    };
    Ok(Some((own, found)))
}

/// Whether the lock is held. It is tried for a moment, and together with others who look, so that whoever wants to hold it
/// and finds it tried need only try again.
fn held(directory: &OwnedFd) -> Result<Held, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, LOCK, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Held::Absent),
        Err(Errno::LOOP | Errno::NXIO) => return Ok(Held::Strange),
        Err(errno) => return Err(errno),
    };
    let opened = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
        return Ok(Held::Strange);
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(Held::Yes),
        Err(errno) => return Err(errno),
    }
    // To close it is not enough: a process that another thread is just starting has it open too.
    rustix::fs::flock(&file, FlockOperation::Unlock)?;
    drop(file);
    // Whoever swept the directory has removed the file that was tried.
    match rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if layout::is_same(&opened, &there) => Ok(Held::No),
        Ok(_) | Err(Errno::NOENT) => Ok(Held::Absent),
        Err(errno) => Err(errno),
    }
}

/// The record of a directory, if it fits it.
fn judge(directory: &OwnedFd, place: &Stat, name: &str) -> Result<Option<SandboxRecord>, Problem> {
    let record = match SandboxRecord::read(directory) {
        Ok(record) => record,
        Err(RecordError::Absent) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if layout::directory_name(&record.name).as_deref() != Some(name) {
        return Err(Problem::Name { name: record.name });
    }
    let (ours, recorded) = (rustix::process::geteuid().as_raw(), record.supervisor_user);
    if place.st_uid != ours && place.st_uid != recorded {
        return Err(Problem::Owner { owner: place.st_uid, recorded });
    }
    match layout::read_incarnation(directory) {
        Ok((found, author)) if found == record.incarnation && author == ours => Ok(Some(record)),
        other => {
            let found = other.ok().map(|(found, _)| found);
            Err(Problem::Incarnation { recorded: record.incarnation, found })
        }
    }
}

/// What the journal of a dead one tells, in so many bytes of memory, and whether it tells more.
fn facts(
    directory: &OwnedFd,
    record: Option<&SandboxRecord>,
    most: usize,
) -> Result<(Vec<Fact>, Option<Problem>), Problem> {
    match rustix::fs::statat(directory, JOURNAL, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok((Vec::new(), None)),
        Ok(stat) if u64::try_from(stat.st_size).is_ok_and(|size| size > Journal::LARGEST) => {
            return Err(Problem::Large(stat.st_size.unsigned_abs()));
        }
        _ => {}
    }
    let loaded = Journal::load_within(directory, most)?;
    match record {
        Some(record) if record.incarnation != loaded.incarnation => {
            Err(Problem::Incarnation { recorded: record.incarnation.clone(), found: Some(loaded.incarnation) })
        }
        _ => {
            let long = loaded.cut.then(|| Problem::Long(loaded.facts.last().map_or(0, |fact| fact.sequence)));
            Ok((loaded.facts, long))
        }
    }
}

/// Whether there is a socket to talk to its supervisor.
fn is_socket(directory: impl AsFd) -> bool {
    rustix::fs::statat(directory, SHIM_SOCKET, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}
