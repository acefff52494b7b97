//! Sessions on disk (`--data-dir`), which survive a restart of the server.
//!
//! Each session has a directory with a record, which is replaced as a whole, and a log, which is only appended to. An
//! incomplete line at the end of the log is cut when it is opened.

mod directory;
mod record;

use std::{
    fs::{DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;
use sha2::{Digest as _, Sha256};

pub use directory::SessionDirectory;
pub use record::{QueuedPromptRecord, SessionRecord};

use crate::session::now_ms;

/// The directory of all sessions.
#[derive(Debug)]
pub struct SessionStore {
    directory: PathBuf,
    /// Held while the server runs, so that two servers never share a directory.
    lock: File,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SessionStoreError {
    /// A system call failed.
    #[error("cannot use {} to keep sessions in: {source}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// Another server uses it.
    #[error("another server keeps its sessions in {}", .0.display())]
    Locked(PathBuf),
}

// === impl SessionStore ===

impl SessionStore {
    /// Locks a directory, and creates it if necessary.
    pub fn open(directory: &Path) -> Result<Self, SessionStoreError> {
        let failed = |source| SessionStoreError::Directory { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(directory.join("sessions")).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { directory: directory.join("sessions"), lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(SessionStoreError::Locked(directory.to_owned())),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Creates the directory of a new session. An existing one could not be read: it is renamed and kept.
    pub fn create(&self, session_id: &str) -> io::Result<SessionDirectory> {
        let path = self.path(session_id);
        let renamed = path.with_extension(format!("unread-{}", now_ms()));
        match std::fs::rename(&path, &renamed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
            Ok(()) => {
                tracing::warn!(session_id, renamed = %renamed.display(), "renamed an unreadable session directory")
            }
        }
        DirBuilder::new().mode(0o700).create(&path)?;
        SessionDirectory::new(path)
    }

    /// Sessions of earlier servers, oldest first. Unreadable ones are logged and skipped.
    pub fn load(&self) -> Vec<(SessionRecord, SessionDirectory)> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let mut loaded: Vec<_> = entries
            .flatten()
            .filter(|path| path.path().extension().is_none())
            .filter_map(|path| {
                let path = path.path();
                let found = SessionDirectory::open(path.clone());
                found
                    .inspect_err(
                        |error| tracing::warn!(%error, path = %path.display(), "skipped an unreadable session"),
                    )
                    .ok()
            })
            .collect();
        loaded.sort_by(|(one, _), (other, _)| {
            (one.created_at, &one.session_id).cmp(&(other.created_at, &other.session_id))
        });
        loaded
    }

    /// Hashed, since an id may have any character.
    fn path(&self, session_id: &str) -> PathBuf {
        let hash = Sha256::digest(session_id.as_bytes());
        let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name)
    }
}

impl Drop for SessionStore {
    fn drop(&mut self) {
        // Closing is not enough: a process between fork and exec has a copy of the descriptor.
        let _closed_anyway = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
