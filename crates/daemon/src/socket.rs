//! Unix sockets: they appear only once they are listened on, never replace one in use, and are removed at exit.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use carrel_layout::MAX_SOCKET_PATH;

use crate::home::{HomeError, own_directory};
use crate::lock::{LockError, PidFileLock};

/// The suffix of a socket that is not listened on yet.
const TEMPORARY_SUFFIX: &str = ".new";

/// A socket that is listened on, and its lock. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct DaemonSocket {
    path: PathBuf,
    /// Device and inode of our socket, to detect a replaced one.
    identity: (u64, u64),
    /// Prevents other daemons from replacing the socket; `None` if the caller has another lock.
    _lock: Option<PidFileLock>,
}

/// Why a socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Its directory is not usable.
    #[error(transparent)]
    Directory(#[from] HomeError),
    /// Its path is too long.
    #[error("the path of a socket has at most {} bytes, and {} has {}", MAX_SOCKET_PATH - TEMPORARY_SUFFIX.len(), .0.display(), .0.as_os_str().len())]
    TooLong(PathBuf),
    /// Another daemon holds its lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another process listens on it without holding the lock.
    #[error("another process already listens on {}", .0.display())]
    Live(PathBuf),
    /// The path exists and is not a socket.
    #[error("{} is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

// === impl DaemonSocket ===

impl DaemonSocket {
    /// Listens on a path, with a lock file beside it. A missing directory is created with mode 0700.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<(Self, UnixListener), SocketError> {
        check_length(path)?;
        if let Some(directory) = path.parent().filter(|directory| !directory.is_dir()) {
            own_directory(directory, false)?;
        }
        // From here on no other daemon replaces the socket.
        let lock = PidFileLock::take(&lock_beside(path))?;
        Self::bind_locked(path, mode, Some(lock))
    }

    /// Listens on a path for which the caller holds a lock.
    pub(crate) fn bind_at_home(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        check_length(path)?;
        Self::bind_locked(path, 0o600, None)
    }

    fn bind_locked(path: &Path, mode: u32, lock: Option<PidFileLock>) -> Result<(Self, UnixListener), SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        let unfinished = with_suffix(path, TEMPORARY_SUFFIX);
        check_vacant(path)?;
        // A socket that exists is answered: it gets its final name when it is listened on.
        remove(&unfinished).map_err(failed)?;
        let listener = UnixListener::bind(&unfinished).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        let made = std::fs::symlink_metadata(&unfinished).map_err(failed)?;
        std::fs::rename(&unfinished, path).map_err(failed)?;
        Ok((Self { path: path.to_owned(), identity: (made.dev(), made.ino()), _lock: lock }, listener))
    }
}

impl Drop for DaemonSocket {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            // The next daemon replaces a socket that cannot be removed now.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// The default socket of gRPC clients.
pub(crate) fn default_socket(own: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let given = own("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let default = || PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
    given.unwrap_or_else(default).join("agbox/agboxd.sock")
}

/// Refuses a path that is too long for the kernel, including the temporary suffix.
fn check_length(path: &Path) -> Result<(), SocketError> {
    match path.as_os_str().len() + TEMPORARY_SUFFIX.len() <= MAX_SOCKET_PATH {
        true => Ok(()),
        false => Err(SocketError::TooLong(path.to_owned())),
    }
}

/// Accepts a path that does not exist or is a socket that no process listens on.
fn check_vacant(path: &Path) -> Result<(), SocketError> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|source| SocketError::Io { path: path.to_owned(), source })?,
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A process listens on it, or that cannot be determined.
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
    fn a_socket_answers_as_soon_as_it_exists_and_is_removed_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agbox/agboxd.sock");
        let (socket, listener) = DaemonSocket::bind(&path, 0o600).unwrap();
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o7777, 0o700);
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(matches!(DaemonSocket::bind(&path, 0o600), Err(SocketError::Lock(LockError::Held { .. }))));
        UnixStream::connect(&path).unwrap();
        drop((socket, listener));
        assert!(!path.exists());
        assert!(dir.path().join("agbox/agboxd.lock").exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_never() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let live = UnixListener::bind(&path).unwrap();
        assert!(matches!(DaemonSocket::bind(&path, 0o600), Err(SocketError::Live(_))));
        UnixStream::connect(&path).unwrap();
        // Closing it is not sufficient: a child that another test just forked has it open, too.
        rustix::net::shutdown(&live, rustix::net::Shutdown::Both).unwrap();
        drop(live);
        assert!(path.exists());
        let (_socket, _listener) = DaemonSocket::bind(&path, 0o666).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(DaemonSocket::bind(&path, 0o600), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_socket_of_another_process_at_the_same_path_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (socket, _listener) = DaemonSocket::bind(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_the_limit() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(110)));
        let message = DaemonSocket::bind(&path, 0o600).unwrap_err().to_string();
        assert!(message.starts_with("the path of a socket has at most 103 bytes, and /tmp/x"), "{message}");
    }

    #[test]
    fn the_default_socket_is_below_the_runtime_directory() {
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(default_socket(|_| Some("/r".into())), Path::new("/r/agbox/agboxd.sock"));
        assert_eq!(default_socket(|_| None), PathBuf::from(format!("/run/user/{user}/agbox/agboxd.sock")));
        assert_eq!(default_socket(|_| Some("".into())), PathBuf::from(format!("/run/user/{user}/agbox/agboxd.sock")));
    }
}
