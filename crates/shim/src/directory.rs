//! The directory of a sandbox: found by its name, held by a lock, swept when its holder is dead.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_sandbox::cgroup::{Cgroup, CgroupError, Host};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Held for as long as the sandbox is there.
const LOCK: &str = "lock";
/// Which incarnation this is: the name of everything else of it on this host.
const INCARNATION: &str = "incarnation";
/// The same while it is being written.
const UNFINISHED: &str = "incarnation.new";
/// Where clients connect.
const SOCKET: &str = "agent.sock";
/// Everything in the directory, in the order in which it is removed.
const FILES: [&str; 4] = [SOCKET, INCARNATION, UNFINISHED, LOCK];
/// How often a directory is tried that somebody else may only be sweeping.
const TRIES: usize = 16;
/// How long is waited in between.
const PAUSE: Duration = Duration::from_millis(2);

/// A directory that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A sandbox of that name is there.
    #[error("a sandbox of this name is running")]
    Taken,
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
}

/// The directory of a sandbox, claimed by its supervisor.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    name: std::ffi::OsString,
    /// Both cannot be left.
    parent: OwnedFd,
    own: OwnedFd,
    _lock: File,
}

/// Removes what dead supervisors left of their sandboxes below a directory; returns of how many.
pub fn sweep(sandboxes: &Path) -> Result<usize, DirectoryError> {
    let failed = |source| DirectoryError::Io { path: sandboxes.to_owned(), source };
    let entries = match std::fs::read_dir(sandboxes) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(error)),
    };
    let (mut swept, mut first) = (0, None);
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        // One that is alive holds its lock; one that vanishes is being swept by another.
        if let Some(lock) = try_lock(&path, OFlags::empty()).ok().flatten() {
            // One that cannot be removed does not keep the others.
            match bury(&path).and_then(|()| remove(&path).map_err(|source| DirectoryError::Io { path, source })) {
                Ok(()) => swept += 1,
                Err(error) => first = first.or(Some(error)),
            }
            drop(lock);
        }
    }
    first.map_or(Ok(swept), Err)
}

/// Takes the lock of a directory, if nobody holds it and it is still there.
fn try_lock(path: &Path, create: OFlags) -> io::Result<Option<File>> {
    let lock = path.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
    let file = rustix::fs::openat(CWD, &lock, flags, Mode::from_raw_mode(0o600))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Whoever swept it meanwhile has removed the file that is locked now.
    let (held, there) = (rustix::fs::fstat(&file)?, rustix::fs::stat(&lock)?);
    if (held.st_dev, held.st_ino) != (there.st_dev, there.st_ino) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Some(file.into()))
}

/// Ends and removes what the incarnation that is recorded in a directory left on this host.
fn bury(path: &Path) -> Result<(), DirectoryError> {
    let mut incarnation = String::new();
    let read = File::open(path.join(INCARNATION)).and_then(|file| file.take(256).read_to_string(&mut incarnation));
    if read.is_err() {
        // It died before it had made anything.
        return Ok(());
    }
    match Cgroup::adopt(&Host::detect()?, &incarnation) {
        Ok(cgroup) => {
            cgroup.kill_all()?;
            Ok(cgroup.remove()?)
        }
        // What is no name of a group was never the name of one.
        Err(CgroupError::NotFound { .. } | CgroupError::Name(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes which incarnation this is, whole or not at all.
fn record(path: &Path, incarnation: &str) -> io::Result<()> {
    std::fs::write(path.join(UNFINISHED), incarnation)?;
    std::fs::rename(path.join(UNFINISHED), path.join(INCARNATION))
}

/// Removes a directory whose lock is held: the lock goes last.
fn remove(path: &Path) -> io::Result<()> {
    for name in FILES {
        match std::fs::remove_file(path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::remove_dir(path)
}

// === impl RunDirectory ===

impl RunDirectory {
    /// Claims a directory for an incarnation. What a dead supervisor left there is swept first.
    pub(crate) fn claim(path: &Path, incarnation: &str) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(true).create(above).map_err(failed)?;
        for _ in 0..TRIES {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
                _ => {}
            }
            let lock = match try_lock(path, OFlags::CREATE) {
                Ok(Some(lock)) => lock,
                Ok(None) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            bury(path)?;
            let _stale = std::fs::remove_file(path.join(SOCKET));
            record(path, incarnation).map_err(failed)?;
            return Ok(Self {
                path: path.to_owned(),
                name: name.to_owned(),
                parent: carrel_sandbox::handle(above).map_err(failed)?,
                own: carrel_sandbox::handle(path).map_err(failed)?,
                _lock: lock,
            });
        }
        Err(DirectoryError::Taken)
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Serves the socket. Its directory is closed to others, so its own mode decides nothing.
    pub(crate) fn listen(&self) -> Result<UnixListener, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: self.socket(), source };
        let listener = UnixListener::bind(self.socket()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Removes it, by handles alone.
    pub(crate) fn remove(self) -> Result<(), Errno> {
        for name in FILES {
            match rustix::fs::unlinkat(&self.own, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder_and_is_swept_when_that_one_is_dead() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run/sandboxes/name");
        let held = RunDirectory::claim(&path, "incarnation-1").unwrap();
        assert!(matches!(RunDirectory::claim(&path, "incarnation-2"), Err(DirectoryError::Taken)));
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
        let _socket = held.listen().unwrap();

        drop(held);
        assert!(path.join(SOCKET).exists(), "nobody was there to remove it");
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
        assert!(!path.exists());
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
    }

    #[test]
    fn a_record_that_is_none_keeps_neither_the_name_nor_the_others() {
        let home = tempfile::tempdir().unwrap();
        let sandboxes = home.path().join("run/sandboxes");
        for (name, record) in [("empty", ""), ("nonsense", "../../x"), ("whole", "incarnation-1")] {
            drop(RunDirectory::claim(&sandboxes.join(name), "incarnation-0").unwrap());
            std::fs::write(sandboxes.join(name).join(INCARNATION), record).unwrap();
        }
        let again = RunDirectory::claim(&sandboxes.join("empty"), "incarnation-2").unwrap();
        again.remove().unwrap();
        assert_eq!(sweep(&sandboxes).unwrap(), 2);
        assert_eq!(std::fs::read_dir(&sandboxes).unwrap().count(), 0);
    }

    #[test]
    fn a_stale_directory_is_claimed_anew_and_removed_whole() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run/sandboxes/name");
        let first = RunDirectory::claim(&path, "incarnation-1").unwrap();
        drop((first.listen().unwrap(), first));
        let second = RunDirectory::claim(&path, "incarnation-2").unwrap();
        assert_eq!(std::fs::read_to_string(path.join(INCARNATION)).unwrap(), "incarnation-2");
        second.listen().unwrap();
        second.remove().unwrap();
        assert!(!path.exists());
    }
}
