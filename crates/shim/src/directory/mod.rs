//! The run directory of a sandbox: named after it, locked by its shim, swept when its shim is dead.

mod cgroups;
mod end;
mod lock;
mod reap;
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

pub use self::cgroups::sweep_groups;
use self::lock::{LockAttempt, PAUSE, hold, renew};
use self::reap::reap;
pub use self::sweep::{collect, collect_incarnation, sweep, sweep_directory};
use self::sweep::{is_persistent, remove, remove_sockets};

// Discovery identifies shims by their uid.
const _: () = assert!(layout::SUPERVISORS == SUPERVISORS);

/// The temporary file of the incarnation.
const UNFINISHED: &str = "incarnation.new";
/// How long a claim waits for processes that inspect or sweep a directory.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a directory could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A sandbox with that name is running.
    #[error("a sandbox with this name is running")]
    Taken,
    /// A persistent sandbox with that name has ended and is not removed yet.
    #[error("a sandbox with this name has ended and is not removed yet")]
    Uncollected,
    /// Other users could modify it.
    #[error("{} is writable by other users", .0.display())]
    Open(PathBuf),
    /// The directory for job output is not empty.
    #[error("{} contains something other than job output", .0.display())]
    Logs(PathBuf),
    /// The directory for job output is used by another sandbox.
    #[error("another sandbox uses {} for its job output", .0.display())]
    LogsTaken(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The cgroup of a dead shim cannot be removed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The owner of a cgroup cannot be determined.
    #[error(transparent)]
    Ids(#[from] IdsError),
    /// The shim of a removed sandbox does not exit.
    #[error("process {0}, the shim of a removed sandbox, does not exit")]
    Stuck(u32),
    /// Processes of a removed sandbox do not exit.
    #[error(transparent)]
    UnkillableProcesses(#[from] UnkillableProcesses),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A journal is too large to be read, and has no end of its sandbox.
    #[error("{} has {bytes} bytes, which is too large to append to", path.display())]
    Large {
        /// The directory.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
}

/// Processes that ignore every signal, since they are blocked in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} cannot be killed; will be retried later", Pids(.0))]
pub struct UnkillableProcesses(pub Vec<i32>);

/// Pids for display.
struct Pids<'a>(&'a [i32]);

/// The directory of a sandbox, claimed by its shim.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    name: OsString,
    /// Both cannot be left.
    parent: OwnedFd,
    own: OwnedFd,
    lock: File,
    journal: Option<Journal>,
    /// The directory for job output, if it is elsewhere.
    logs: Option<PathBuf>,
}

/// Writes the incarnation atomically.
fn write_incarnation(directory: &OwnedFd, incarnation: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    File::from(file).write_all(incarnation.as_bytes())?;
    Ok(rustix::fs::renameat(directory, UNFINISHED, directory, INCARNATION)?)
}

/// Creates the directory of all sandboxes and its parent. A missing home is not created: it may have been moved.
fn make_parent(path: &Path) -> io::Result<()> {
    for directory in path.parent().into_iter().chain([path]) {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            made => made?,
        }
    }
    Ok(())
}

/// A handle of a directory, which is created if it does not exist.
fn open_log_directory(path: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)?;
    carrel_sandbox::reopen_handle(&open_directory(CWD, path)?)
}

/// Whether a directory can be given to a shim: it belonged to one before, or is ours and empty.
fn may_be_chowned(directory: &OwnedFd) -> io::Result<bool> {
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
    /// Claims a directory for an incarnation. The remains of a dead shim are swept first, unless they are persistent.
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
        let until = Instant::now() + CLAIM_TIMEOUT;
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
                LockAttempt::Held(lock) => return Self::begin(path, name, &parent, &own, &lock, incarnation),
                LockAttempt::Taken | LockAttempt::Inspected => std::thread::sleep(PAUSE),
                LockAttempt::Absent => {}
            }
        }
        Err(DirectoryError::Taken)
    }

    /// Initializes a locked directory for an incarnation.
    fn begin(
        path: &Path,
        name: &OsStr,
        parent: &OwnedFd,
        own: &OwnedFd,
        lock: &File,
        incarnation: &str,
    ) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        if is_persistent(own).map_err(failed)? {
            return Err(DirectoryError::Uncollected);
        }
        reap(own).map_err(|error| error.at(path))?;
        let (user, group) = (Some(rustix::process::geteuid()), Some(rustix::process::getegid()));
        // First ours, then empty: from here on no other user can add to it.
        rustix::fs::fchown(own, user, group).map_err(|errno| failed(errno.into()))?;
        rustix::fs::fchmod(own, Mode::from_raw_mode(0o700)).map_err(|errno| failed(errno.into()))?;
        rustix::fs::fchown(lock, user, group).map_err(|errno| failed(errno.into()))?;
        empty(own, Some(LOCK)).map_err(failed)?;
        let lock = renew(own).map_err(failed)?;
        let created = write_incarnation(own, incarnation).map_err(failed).and_then(|()| claimed(own, incarnation));
        match created {
            Ok(journal) => Ok(Self {
                path: path.to_owned(),
                name: name.to_owned(),
                parent: carrel_sandbox::reopen_handle(parent).map_err(failed)?,
                own: carrel_sandbox::reopen_handle(own).map_err(failed)?,
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

    /// Takes the journal of the sandbox. There is one.
    pub(crate) fn take_journal(&mut self) -> Result<Journal, DirectoryError> {
        let taken = || DirectoryError::Io { path: self.path.join(JOURNAL), source: io::ErrorKind::ResourceBusy.into() };
        self.journal.take().ok_or_else(taken)
    }

    /// Writes the record before the ownership of the directory is transferred: a record is trusted only if it is owned
    /// by the user that claimed the directory.
    pub(crate) fn record(&self, record: &SandboxRecord) -> Result<(), DirectoryError> {
        let failed = |source| DirectoryError::Io { path: self.path.join(layout::RECORD), source };
        record.clone().tied_to(&self.own).and_then(|record| record.write(&self.own)).map_err(failed)
    }

    /// Creates the directory for job output, here or elsewhere, and gives it to that user. Returns a handle from which
    /// nothing else of the host can be reached. A directory elsewhere outlives the sandbox; while its handle is open,
    /// no other sandbox can use it.
    pub(crate) fn logs(&mut self, elsewhere: Option<&Path>, user: u32) -> Result<OwnedFd, DirectoryError> {
        let path = elsewhere.map_or_else(|| self.path.join(JOBS), Path::to_owned);
        let failed = |source| DirectoryError::Io { path: path.clone(), source };
        let handle = match elsewhere {
            None => self.make_jobs().map_err(failed)?,
            Some(elsewhere) => {
                let handle = open_log_directory(elsewhere).map_err(failed)?;
                match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => {}
                    Err(Errno::WOULDBLOCK) => return Err(DirectoryError::LogsTaken(path)),
                    Err(errno) => return Err(failed(errno.into())),
                }
                if !may_be_chowned(&handle).map_err(failed)? {
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

    /// A directory below a handle that cannot be left cannot be left either.
    fn make_jobs(&self) -> io::Result<OwnedFd> {
        match rustix::fs::mkdirat(&self.own, JOBS, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => open_directory(&self.own, JOBS),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The directories that it modifies: its own, and its parent.
    pub(crate) fn handles(&self) -> [BorrowedFd<'_>; 2] {
        [self.own.as_fd(), self.parent.as_fd()]
    }

    /// The directory for job output.
    pub(crate) fn logs_path(&self) -> PathBuf {
        self.logs.as_ref().map_or_else(|| self.path.join(JOBS), Clone::clone)
    }

    /// The path of the socket for clients of the agent.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(AGENT_SOCKET)
    }

    /// The path of the control socket.
    pub(crate) fn shim_socket(&self) -> PathBuf {
        self.path.join(SHIM_SOCKET)
    }

    /// Listens on the socket for clients of the agent.
    pub(crate) fn listen(&self) -> Result<UnixListener, DirectoryError> {
        self.listen_on(AGENT_SOCKET)
    }

    /// Listens on the control socket.
    pub(crate) fn listen_shim(&self) -> Result<UnixListener, DirectoryError> {
        self.listen_on(SHIM_SOCKET)
    }

    /// Listens on a socket by the handle of its directory. The directory is private, so the mode of the socket is
    /// irrelevant.
    fn listen_on(&self, socket: &str) -> Result<UnixListener, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: self.path.join(socket), source };
        let listener =
            UnixListener::bind(format!("/proc/self/fd/{}/{socket}", self.own.as_raw_fd())).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Gives it to a shim that drops root: the shim may empty and remove it, and access no other. Files that it holds
    /// open for writing become its own, so that nothing that remains ours can come from it.
    pub(crate) fn chown(&self, user: u32) -> Result<(), DirectoryError> {
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

    /// Leaves it to be collected: the sockets are removed, the rest stays.
    pub(crate) fn keep(self) -> io::Result<()> {
        remove_sockets(&self.own).map(drop)
    }
}

/// Creates the journal of an incarnation.
fn claimed(own: &OwnedFd, incarnation: &str) -> Result<Journal, DirectoryError> {
    let mut journal = Journal::create(own, incarnation)?;
    journal.append(Fact::new(layout::now_ms(), FactKind::Claimed))?;
    Ok(journal)
}
