//! Connects to a socket with a path of any length.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use carrel_layout::MAX_SOCKET_PATH;
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;

use crate::error::ShimError;
use crate::layout::SHIM_SOCKET;

/// The retry interval for a shim with a full accept queue: the kernel does not notify.
const BUSY: Duration = Duration::from_millis(5);

/// Connects to a socket by its path.
pub(super) async fn by_path(socket: &Path) -> Result<UnixStream, ShimError> {
    if socket.as_os_str().len() <= MAX_SOCKET_PATH {
        return connect(socket).await.map_err(|source| failed(socket, source));
    }
    let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(ShimError::PathTooLong(socket.to_owned()));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(socket, error.into()))?;
    let short = beneath(&directory, name);
    if short.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(ShimError::PathTooLong(socket.to_owned()));
    }
    connect(&short).await.map_err(|source| failed(socket, source))
}

/// Connects to a shim's socket in an open directory.
pub(super) async fn within(directory: BorrowedFd<'_>) -> Result<UnixStream, ShimError> {
    let socket = beneath(directory, OsStr::new(SHIM_SOCKET));
    connect(&socket).await.map_err(|source| failed(&socket, source))
}

fn beneath(directory: impl AsFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_fd().as_raw_fd().to_string()).join(name)
}

async fn connect(socket: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(BUSY).await,
            connected => return connected,
        }
    }
}

fn failed(socket: &Path, source: io::Error) -> ShimError {
    ShimError::Connect { socket: socket.to_owned(), source: Arc::new(source) }
}
