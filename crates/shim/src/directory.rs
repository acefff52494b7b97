//! The directory of a sandbox: found by its name, held by a lock, swept when its holder is dead.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_sandbox::SUPERVISORS;
use carrel_sandbox::cgroup::{Cgroup, CgroupError, Host};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Uid};
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
const TRIES: usize = 100;
/// How long is waited in between.
const PAUSE: Duration = Duration::from_millis(2);

/// A directory that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A sandbox of that name is there.
    #[error("a sandbox of this name is running")]
    Taken,
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
    let parent = match open(CWD, sandboxes) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(error)),
    };
    let (mut swept, mut first) = (0, None);
    for entry in rustix::fs::Dir::read_from(&parent).map_err(|errno| failed(errno.into()))? {
        let entry = entry.map_err(|errno| failed(errno.into()))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if [OsStr::new("."), OsStr::new("..")].contains(&name) {
            continue;
        }
        // One that cannot be removed does not keep the others.
        match sweep_one(&parent, name) {
            Ok(true) => swept += 1,
            Ok(false) => {}
            Err(Swept::Io(source)) => {
                first = first.or(Some(DirectoryError::Io { path: sandboxes.join(name), source }));
            }
            Err(Swept::Cgroup(error)) => first = first.or(Some(error.into())),
        }
    }
    first.map_or(Ok(swept), Err)
}

/// Why one directory could not be swept.
#[derive(Debug, thiserror::Error)]
enum Swept {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// Removes one directory, unless its supervisor lives.
fn sweep_one(parent: &OwnedFd, name: &OsStr) -> Result<bool, Swept> {
    // One that vanishes is being swept by another; what is no directory of ours is none of ours.
    let Ok(own) = open(parent, name) else { return Ok(false) };
    let lock = match try_lock(&own, OFlags::empty()) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Ok(false),
        // Made a moment ago, or left by one that died as it began.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).is_ok());
        }
        Err(error) => return Err(error.into()),
    };
    bury(&own)?;
    remove(parent, name, &own)?;
    drop(lock);
    Ok(true)
}

/// Opens a directory that nobody else may change; links are not followed.
fn open(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Whether the directory of all is ours, and closed to all but supervisors, of whom each may remove its own alone.
fn is_parent(directory: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let closed = stat.st_mode & 0o077 == 0 || (stat.st_mode & 0o1007 == 0o1000 && stat.st_gid == SUPERVISORS);
    Ok(stat.st_uid == rustix::process::geteuid().as_raw() && closed)
}

/// Whether the directory of a sandbox is ours or a supervisor's, and closed to others.
fn is_ours(directory: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(directory)?;
    let owner = stat.st_uid == rustix::process::geteuid().as_raw() || stat.st_uid > SUPERVISORS;
    Ok(owner && stat.st_mode & 0o077 == 0)
}

/// Takes the lock of a directory, if nobody holds it and it is still there.
fn try_lock(directory: &OwnedFd, create: OFlags) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
    let file = rustix::fs::openat(directory, LOCK, flags, Mode::from_raw_mode(0o600))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Whoever swept it meanwhile has removed the file that is locked now.
    let (held, there) = (rustix::fs::fstat(&file)?, rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW)?);
    if (held.st_dev, held.st_ino) != (there.st_dev, there.st_ino) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Some(file.into()))
}

/// Ends and removes what the incarnation that is recorded in a directory left on this host.
fn bury(directory: &OwnedFd) -> Result<(), CgroupError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut incarnation = String::new();
    let read = rustix::fs::openat(directory, INCARNATION, flags, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).take(256).read_to_string(&mut incarnation));
    if read.is_err() {
        // It died before it had made anything.
        return Ok(());
    }
    let owner = rustix::fs::fstat(directory).map_or(u32::MAX, |stat| stat.st_uid);
    match Cgroup::adopt(&Host::detect()?, &incarnation) {
        // A supervisor that was taken over could name the group of another.
        Ok(cgroup) if owner != 0 && cgroup.owner() != Some(owner) => Ok(()),
        Ok(cgroup) => {
            cgroup.kill_all()?;
            cgroup.remove()
        }
        // What is no name of a group was never the name of one.
        Err(CgroupError::NotFound { .. } | CgroupError::Name(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes which incarnation this is, whole or not at all.
fn record(directory: &OwnedFd, incarnation: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    File::from(file).write_all(incarnation.as_bytes())?;
    Ok(rustix::fs::renameat(directory, UNFINISHED, directory, INCARNATION)?)
}

/// Removes a directory whose lock is held: the lock goes last.
fn remove(parent: &OwnedFd, name: &OsStr, own: &OwnedFd) -> io::Result<()> {
    for file in FILES {
        match rustix::fs::unlinkat(own, file, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

// === impl RunDirectory ===

impl RunDirectory {
    /// Claims a directory for an incarnation. What a dead supervisor left there is swept first.
    pub(crate) fn claim(path: &Path, incarnation: &str) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        DirBuilder::new().mode(0o700).recursive(true).create(above).map_err(failed)?;
        let parent = open(CWD, above).map_err(failed)?;
        if !is_parent(&parent).map_err(failed)? {
            return Err(DirectoryError::Open(above.to_owned()));
        }
        for _ in 0..TRIES {
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            let own = match open(&parent, name) {
                Ok(own) => own,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if !is_ours(&own).map_err(failed)? {
                return Err(DirectoryError::Open(path.to_owned()));
            }
            let lock = match try_lock(&own, OFlags::CREATE) {
                Ok(Some(lock)) => lock,
                Ok(None) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            bury(&own)?;
            let ourselves = (rustix::process::geteuid(), rustix::process::getegid());
            rustix::fs::fchown(&own, Some(ourselves.0), Some(ourselves.1)).map_err(|errno| failed(errno.into()))?;
            let _stale = rustix::fs::unlinkat(&own, SOCKET, AtFlags::empty());
            record(&own, incarnation).map_err(failed)?;
            return Ok(Self {
                path: path.to_owned(),
                name: name.to_owned(),
                parent: carrel_sandbox::handle_of(&parent).map_err(failed)?,
                own: carrel_sandbox::handle_of(&own).map_err(failed)?,
                _lock: lock,
            });
        }
        Err(DirectoryError::Taken)
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Serves the socket, by the handle of its directory. That is closed to others, so its own mode decides nothing.
    pub(crate) fn listen(&self) -> Result<UnixListener, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: self.socket(), source };
        let listener =
            UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", self.own.as_raw_fd())).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Gives it to a supervisor that is to be root no longer: that one may empty and remove it, and touch no other.
    pub(crate) fn give(&self, user: u32) -> Result<(), DirectoryError> {
        let failed = |errno: Errno| DirectoryError::Io { path: self.path.clone(), source: errno.into() };
        let group = Gid::from_raw(SUPERVISORS);
        rustix::fs::fchown(&self.parent, None, Some(group)).map_err(failed)?;
        rustix::fs::fchmod(&self.parent, Mode::from_raw_mode(0o1730)).map_err(failed)?;
        rustix::fs::fchown(&self.own, Some(Uid::from_raw(user)), None).map_err(failed)
    }

    /// Removes it, by handles alone.
    pub(crate) fn remove(self) -> io::Result<()> {
        remove(&self.parent, &self.name, &self.own)
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
    fn a_directory_of_another_or_behind_a_link_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let sandboxes = home.path().join("run/sandboxes");
        drop(RunDirectory::claim(&sandboxes.join("ours"), "incarnation-0").unwrap());
        let elsewhere = home.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join(INCARNATION), "precious").unwrap();
        std::os::unix::fs::symlink(&elsewhere, sandboxes.join("link")).unwrap();
        assert!(matches!(RunDirectory::claim(&sandboxes.join("link"), "i"), Err(DirectoryError::Io { .. })));
        std::fs::create_dir(sandboxes.join("open")).unwrap();
        assert!(matches!(RunDirectory::claim(&sandboxes.join("open"), "i"), Err(DirectoryError::Open(_))));
        sweep(&sandboxes).unwrap();
        assert_eq!(std::fs::read_to_string(elsewhere.join(INCARNATION)).unwrap(), "precious");
    }

    #[test]
    fn one_that_died_as_it_began_is_swept() {
        let home = tempfile::tempdir().unwrap();
        let sandboxes = home.path().join("run/sandboxes");
        std::fs::create_dir_all(sandboxes.join("begun")).unwrap();
        assert_eq!(sweep(&sandboxes).unwrap(), 1);
        assert!(!sandboxes.join("begun").exists());
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
