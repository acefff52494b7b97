//! A socket of this host: found only once it answers, never taken from who answers at it, gone when we are.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::home::{HomeError, own_directory};
use crate::lock::{Lock, LockError};

/// The longest path that a socket can have.
const LONGEST: usize = 107;
/// What stands behind the name of a socket that is not listened at yet.
const UNFINISHED: &str = ".new";

/// A socket that is listened at, and the lock beside it. When it is dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// What tells our socket from one that somebody put in its place.
    identity: (u64, u64),
    /// What keeps others from replacing it, unless something else does.
    _lock: Option<Lock>,
}

/// Why a socket cannot be listened at.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Its directory will not do.
    #[error(transparent)]
    Directory(#[from] HomeError),
    /// Its path is longer than the kernel takes.
    #[error("the path of a socket has at most {} bytes, and {} has {}", LONGEST - UNFINISHED.len(), .0.display(), .0.as_os_str().len())]
    TooLong(PathBuf),
    /// Its lock is not ours.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Somebody listens there who holds no lock.
    #[error("somebody listens at {} already", .0.display())]
    Live(PathBuf),
    /// Something else is in its place.
    #[error("{} is no socket", .0.display())]
    Strange(PathBuf),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

// === impl Socket ===

impl Socket {
    /// Listens at a path, with a lock beside it. Its directory is made for us alone if it is missing.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<(Self, UnixListener), SocketError> {
        fits(path)?;
        if let Some(directory) = path.parent().filter(|directory| !directory.is_dir()) {
            own_directory(directory, false)?;
        }
        // From here on nobody else replaces what is there.
        let lock = Lock::take(&lock_beside(path))?;
        Self::bind_locked(path, mode, Some(lock))
    }

    /// Listens at a path that whoever calls has a lock for.
    pub(crate) fn bind_at_home(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        fits(path)?;
        Self::bind_locked(path, 0o600, None)
    }

    fn bind_locked(path: &Path, mode: u32, lock: Option<Lock>) -> Result<(Self, UnixListener), SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        let unfinished = with_suffix(path, UNFINISHED);
        vacant(path)?;
        // Whoever finds the socket is answered: it gets its name when it is listened at.
        remove(&unfinished).map_err(failed)?;
        let listener = UnixListener::bind(&unfinished).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        let made = std::fs::symlink_metadata(&unfinished).map_err(failed)?;
        std::fs::rename(&unfinished, path).map_err(failed)?;
        Ok((Self { path: path.to_owned(), identity: (made.dev(), made.ino()), _lock: lock }, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            // Whoever starts next replaces what cannot be removed now.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// Where gRPC clients look for the daemon.
pub(crate) fn documented(own: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let given = own("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
    given.unwrap_or_else(usual).join("agbox/agboxd.sock")
}

/// Lets a path pass that the kernel takes, also before it has its name.
fn fits(path: &Path) -> Result<(), SocketError> {
    match path.as_os_str().len() + UNFINISHED.len() <= LONGEST {
        true => Ok(()),
        false => Err(SocketError::TooLong(path.to_owned())),
    }
}

/// Lets a path pass at which nobody listens: where nothing is, or a socket that its listener left.
fn vacant(path: &Path) -> Result<(), SocketError> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|source| SocketError::Io { path: path.to_owned(), source })?,
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::Strange(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Somebody answers, or cannot be asked whether they do.
        _ => Err(SocketError::Live(path.to_owned())),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// `agboxd.lock` beside `agboxd.sock`.
fn lock_beside(path: &Path) -> PathBuf {
    match path.extension() {
        Some(extension) if extension == "sock" => path.with_extension("lock"),
        _ => with_suffix(path, ".lock"),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_answers_from_its_first_moment_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agbox/agboxd.sock");
        let (socket, listener) = Socket::bind(&path, 0o600).unwrap();
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o7777, 0o700);
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(matches!(Socket::bind(&path, 0o600), Err(SocketError::Lock(LockError::Held { .. }))));
        UnixStream::connect(&path).unwrap();
        drop((socket, listener));
        assert!(!path.exists());
        assert!(dir.path().join("agbox/agboxd.lock").exists());
    }

    #[test]
    fn what_a_dead_one_left_is_replaced_and_a_live_one_never() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let live = UnixListener::bind(&path).unwrap();
        assert!(matches!(Socket::bind(&path, 0o600), Err(SocketError::Live(_))));
        UnixStream::connect(&path).unwrap();
        // To close it is not enough: what another test is just starting has it open too.
        rustix::net::shutdown(&live, rustix::net::Shutdown::Both).unwrap();
        drop(live);
        assert!(path.exists());
        let (_socket, _listener) = Socket::bind(&path, 0o666).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::bind(&path, 0o600), Err(SocketError::Strange(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn what_somebody_put_in_its_place_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (socket, _listener) = Socket::bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[test]
    fn a_path_that_the_kernel_does_not_take_is_refused_in_words() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(110)));
        let said = Socket::bind(&path, 0o600).unwrap_err().to_string();
        assert!(said.starts_with("the path of a socket has at most 103 bytes, and /tmp/x"), "{said}");
    }

    #[test]
    fn clients_look_below_the_runtime_directory() {
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(documented(|_| Some("/r".into())), Path::new("/r/agbox/agboxd.sock"));
        assert_eq!(documented(|_| None), PathBuf::from(format!("/run/user/{user}/agbox/agboxd.sock")));
        assert_eq!(documented(|_| Some("".into())), PathBuf::from(format!("/run/user/{user}/agbox/agboxd.sock")));
    }
}
