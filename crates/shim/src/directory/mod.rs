//! The directory of a sandbox: found by its name, held by a lock, swept when its holder is dead.

mod bury;
mod end;
mod groups;
mod hold;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use carrel_sandbox::cgroup::CgroupError;
use carrel_sandbox::remove::empty;
use carrel_sandbox::{IdsError, SUPERVISORS};
use carrel_shim_client::layout::{
    self, AGENT_SOCKET, INCARNATION, JOBS, JOURNAL, LOCK, SHIM_SOCKET, is_ours, is_parent, open_directory,
};
use carrel_shim_client::messages::{Fact, FactKind};
use carrel_shim_client::{Journal, JournalError, SandboxRecord};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use self::bury::bury;
pub use self::groups::sweep_groups;
use self::hold::{Hold, PAUSE, hold, renew};
pub use self::sweep::{collect, collect_incarnation, sweep, sweep_directory};
use self::sweep::{is_lasting, remove, remove_sockets};

// Whoever finds a sandbox knows supervisors by their number.
const _: () = assert!(layout::SUPERVISORS == SUPERVISORS);

/// The incarnation while it is being written.
const UNFINISHED: &str = "incarnation.new";
/// How long a claim waits for those who look at a directory, or sweep it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A directory that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A sandbox of that name is there.
    #[error("a sandbox of this name is running")]
    Taken,
    /// A sandbox of that name has ended, and what is known of it is kept.
    #[error("a sandbox of this name has ended, and is kept until it is removed")]
    Uncollected,
    /// Others could change what is in it.
    #[error("{} is not ours alone", .0.display())]
    Open(PathBuf),
    /// The output of jobs is to be kept where something else is.
    #[error("{} holds something other than the output of jobs", .0.display())]
    Logs(PathBuf),
    /// The output of jobs is to be kept where another sandbox keeps its own.
    #[error("another sandbox keeps the output of its jobs in {}", .0.display())]
    LogsTaken(PathBuf),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// What a dead supervisor left cannot be removed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// It cannot be said whose a group is.
    #[error(transparent)]
    Ids(#[from] IdsError),
    /// A supervisor that is to be there no longer does not end.
    #[error("process {0} supervised a sandbox that is gone, and does not end")]
    Stuck(u32),
    /// Processes of a sandbox that is gone do not end.
    #[error(transparent)]
    Unkillable(#[from] Unkillable),
    /// What happens to the sandbox cannot be recorded.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A journal is too large to be read, and tells no end of its sandbox.
    #[error("{} has {bytes} bytes, and nothing is appended to it", path.display())]
    Large {
        /// The directory.
        path: PathBuf,
        /// How large it is.
        bytes: u64,
    },
}

/// Processes that no signal ends, since they wait in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel does not end {}: retried later", Pids(.0))]
pub struct Unkillable(pub Vec<i32>);

/// Processes by their numbers, for people.
struct Pids<'a>(&'a [i32]);

/// The directory of a sandbox, claimed by its supervisor.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    name: OsString,
    /// Both cannot be left.
    parent: OwnedFd,
    own: OwnedFd,
    lock: File,
    journal: Option<Journal>,
    /// Where the output of jobs is kept, if not here.
    logs: Option<PathBuf>,
}

/// Writes which incarnation this is, whole or not at all.
fn write_incarnation(directory: &OwnedFd, incarnation: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    File::from(file).write_all(incarnation.as_bytes())?;
    Ok(rustix::fs::renameat(directory, UNFINISHED, directory, INCARNATION)?)
}

/// Makes the directory of all sandboxes and the one above it. A home that is missing is not made: it may have been moved.
fn make_parent(path: &Path) -> io::Result<()> {
    for directory in path.parent().into_iter().chain([path]) {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            made => made?,
        }
    }
    Ok(())
}

/// A handle of a directory, made if it is not there.
fn make_elsewhere(path: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)?;
    carrel_sandbox::handle_of(&open_directory(CWD, path)?)
}

/// Whether a directory can be given to a supervisor: it was one's before, or is ours with nothing in it.
fn may_be_given(directory: &OwnedFd) -> io::Result<bool> {
    let owner = rustix::fs::fstat(directory)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Ok(owner > SUPERVISORS);
    }
    for entry in rustix::fs::Dir::read_from(directory)? {
        if ![c".", c".."].contains(&entry?.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

// === impl Pids ===

impl std::fmt::Display for Pids<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", if numbers.len() == 1 { "process" } else { "processes" }, numbers.join(", "))
    }
}

// === impl RunDirectory ===

impl RunDirectory {
    /// Claims a directory for an incarnation. What a dead supervisor left there is swept first, unless it was to last.
    pub(crate) fn claim(path: &Path, incarnation: &str) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        make_parent(above).map_err(failed)?;
        let parent = open_directory(CWD, above).map_err(failed)?;
        if !is_parent(&parent).map_err(failed)? {
            return Err(DirectoryError::Open(above.to_owned()));
        }
        layout::spread(&parent);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            let own = match open_directory(&parent, name) {
                Ok(own) => own,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if !is_ours(&rustix::fs::fstat(&own).map_err(|errno| failed(errno.into()))?) {
                return Err(DirectoryError::Open(path.to_owned()));
            }
            match hold(&own, OFlags::CREATE, 1).map_err(failed)? {
                Hold::Held(lock) => return Self::begin(path, name, &parent, &own, &lock, incarnation),
                Hold::Taken | Hold::Looked => std::thread::sleep(PAUSE),
                Hold::Absent => {}
            }
        }
        Err(DirectoryError::Taken)
    }

    /// Makes a directory whose lock is held that of an incarnation.
    fn begin(
        path: &Path,
        name: &OsStr,
        parent: &OwnedFd,
        own: &OwnedFd,
        lock: &File,
        incarnation: &str,
    ) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        if is_lasting(own).map_err(failed)? {
            return Err(DirectoryError::Uncollected);
        }
        bury(own).map_err(|error| error.at(path))?;
        let (user, group) = (Some(rustix::process::geteuid()), Some(rustix::process::getegid()));
        // First ours, then empty: what is put into it from here on is not another's.
        rustix::fs::fchown(own, user, group).map_err(|errno| failed(errno.into()))?;
        rustix::fs::fchmod(own, Mode::from_raw_mode(0o700)).map_err(|errno| failed(errno.into()))?;
        rustix::fs::fchown(lock, user, group).map_err(|errno| failed(errno.into()))?;
        empty(own, Some(LOCK)).map_err(failed)?;
        let lock = renew(own).map_err(failed)?;
        let begun = write_incarnation(own, incarnation).map_err(failed).and_then(|()| claimed(own, incarnation));
        match begun {
            Ok(journal) => Ok(Self {
                path: path.to_owned(),
                name: name.to_owned(),
                parent: carrel_sandbox::handle_of(parent).map_err(failed)?,
                own: carrel_sandbox::handle_of(own).map_err(failed)?,
                lock,
                journal: Some(journal),
                logs: None,
            }),
            Err(error) => {
                let _begun = remove(parent, name, own);
                Err(error)
            }
        }
    }

    /// What happens to the sandbox is told here. There is one.
    pub(crate) fn take_journal(&mut self) -> Result<Journal, DirectoryError> {
        let taken = || DirectoryError::Io { path: self.path.join(JOURNAL), source: io::ErrorKind::ResourceBusy.into() };
        self.journal.take().ok_or_else(taken)
    }

    /// Writes down what a stranger needs to know, before the directory is given away: a record is believed only if it is
    /// that of whoever claimed it.
    pub(crate) fn record(&self, record: &SandboxRecord) -> Result<(), DirectoryError> {
        let failed = |source| DirectoryError::Io { path: self.path.join(layout::RECORD), source };
        record.clone().tied_to(&self.own).and_then(|record| record.write(&self.own)).map_err(failed)
    }

    /// Makes the directory that the output of jobs is kept in, here or elsewhere, and gives it to that user. Returns a
    /// handle from which nothing of the host can be reached. One that lies elsewhere stays when the sandbox is gone; while
    /// its handle is open, no other sandbox is given it.
    pub(crate) fn logs(&mut self, elsewhere: Option<&Path>, user: u32) -> Result<OwnedFd, DirectoryError> {
        let path = elsewhere.map_or_else(|| self.path.join(JOBS), Path::to_owned);
        let failed = |source| DirectoryError::Io { path: path.clone(), source };
        let handle = match elsewhere {
            None => self.make_jobs().map_err(failed)?,
            Some(elsewhere) => {
                let handle = make_elsewhere(elsewhere).map_err(failed)?;
                match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => {}
                    Err(Errno::WOULDBLOCK) => return Err(DirectoryError::LogsTaken(path)),
                    Err(errno) => return Err(failed(errno.into())),
                }
                if !may_be_given(&handle).map_err(failed)? {
                    return Err(DirectoryError::Logs(path));
                }
                handle
            }
        };
        rustix::fs::fchown(&handle, Some(Uid::from_raw(user)), None).map_err(|errno| failed(errno.into()))?;
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(0o700)).map_err(|errno| failed(errno.into()))?;
        self.logs = elsewhere.map(Path::to_owned);
        Ok(handle)
    }

    /// What lies below a handle that cannot be left leads no further than that.
    fn make_jobs(&self) -> io::Result<OwnedFd> {
        match rustix::fs::mkdirat(&self.own, JOBS, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => open_directory(&self.own, JOBS),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The directories that it changes: its own, and the one that it is removed from.
    pub(crate) fn handles(&self) -> [BorrowedFd<'_>; 2] {
        [self.own.as_fd(), self.parent.as_fd()]
    }

    /// Where the output of jobs is kept.
    pub(crate) fn logs_path(&self) -> PathBuf {
        self.logs.as_ref().map_or_else(|| self.path.join(JOBS), Clone::clone)
    }

    /// The path of the socket for clients of the agent.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(AGENT_SOCKET)
    }

    /// The path of the socket for those who supervise.
    pub(crate) fn shim_socket(&self) -> PathBuf {
        self.path.join(SHIM_SOCKET)
    }

    /// Serves the socket for clients of the agent.
    pub(crate) fn listen(&self) -> Result<UnixListener, DirectoryError> {
        self.listen_on(AGENT_SOCKET)
    }

    /// Serves the socket for those who supervise.
    pub(crate) fn listen_shim(&self) -> Result<UnixListener, DirectoryError> {
        self.listen_on(SHIM_SOCKET)
    }

    /// Serves a socket, by the handle of its directory. That is closed to others, so its own mode decides nothing.
    fn listen_on(&self, socket: &str) -> Result<UnixListener, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: self.path.join(socket), source };
        let listener =
            UnixListener::bind(format!("/proc/self/fd/{}/{socket}", self.own.as_raw_fd())).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Gives it to a supervisor that is to be root no longer: that one may empty and remove it, and touch no other. What it
    /// holds open for writing becomes its own, so that nothing of what is left as ours can come from it.
    pub(crate) fn give(&self, user: u32) -> Result<(), DirectoryError> {
        let failed = |errno: Errno| DirectoryError::Io { path: self.path.clone(), source: errno.into() };
        let (user, group) = (Some(Uid::from_raw(user)), Gid::from_raw(SUPERVISORS));
        rustix::fs::fchown(&self.lock, user, None).map_err(failed)?;
        rustix::fs::chownat(&self.own, JOURNAL, user, None, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        rustix::fs::fchown(&self.parent, None, Some(group)).map_err(failed)?;
        rustix::fs::fchmod(&self.parent, Mode::from_raw_mode(0o1730)).map_err(failed)?;
        rustix::fs::fchown(&self.own, user, None).map_err(failed)
    }

    /// Removes it, by handles alone.
    pub(crate) fn remove(self) -> io::Result<()> {
        remove(&self.parent, &self.name, &self.own)
    }

    /// Leaves it to be collected: nobody can connect any more, the rest stays.
    pub(crate) fn leave(self) -> io::Result<()> {
        remove_sockets(&self.own).map(drop)
    }
}

/// Begins the journal of an incarnation.
fn claimed(own: &OwnedFd, incarnation: &str) -> Result<Journal, DirectoryError> {
    let mut journal = Journal::create(own, incarnation)?;
    journal.append(Fact::new(layout::now_ms(), FactKind::Claimed))?;
    Ok(journal)
}
