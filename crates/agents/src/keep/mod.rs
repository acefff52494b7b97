//! Sessions on disk: what `--data-dir` keeps over a restart of the server.
//!
//! Each session has a directory with a record, replaced as a whole, and the lines of its log, only ever added to. What a
//! crash tore off at the end of the log is cut away when it is read again.

mod record;
mod shelf;

use std::{
    fs::{DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;
use sha2::{Digest as _, Sha256};

pub use record::{Record, WaitingRecord};
pub use shelf::Shelf;

use crate::session::milliseconds;

/// Where sessions are kept.
#[derive(Debug)]
pub struct Keep {
    directory: PathBuf,
    /// Held for as long as the server lives: two servers never share a directory.
    lock: File,
}

/// Why sessions cannot be kept there.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// It cannot be used.
    #[error("cannot use {} to keep sessions in: {source}", .path.display())]
    Directory {
        /// It.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another server keeps its sessions there.
    #[error("another server keeps its sessions in {}", .0.display())]
    Taken(PathBuf),
}

// === impl Keep ===

impl Keep {
    /// Takes a directory, which is made if need be.
    pub fn open(directory: &Path) -> Result<Self, KeepError> {
        let failed = |source| KeepError::Directory { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(directory.join("sessions")).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { directory: directory.join("sessions"), lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(KeepError::Taken(directory.to_owned())),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// The place of a new session. One that is there is of a session that could not be read: it is put aside, for people.
    pub fn shelf(&self, session_id: &str) -> io::Result<Shelf> {
        let place = self.place(session_id);
        let aside = place.with_extension(format!("unread-{}", milliseconds()));
        match std::fs::rename(&place, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
            Ok(()) => tracing::warn!(session_id, aside = %aside.display(), "an unreadable session was put aside"),
        }
        DirBuilder::new().mode(0o700).create(&place)?;
        Shelf::new(place)
    }

    /// What earlier servers kept, oldest first. What cannot be read is named and left where it is.
    pub fn load(&self) -> Vec<(Record, Shelf)> {
        let Ok(places) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let mut kept: Vec<_> = places
            .flatten()
            .filter(|place| place.path().extension().is_none())
            .filter_map(|place| {
                let path = place.path();
                let found = Shelf::open(path.clone());
                found.inspect_err(|error| tracing::warn!(%error, path = %path.display(), "a session was not read")).ok()
            })
            .collect();
        kept.sort_by(|(one, _), (other, _)| {
            (one.created_at, &one.session_id).cmp(&(other.created_at, &other.session_id))
        });
        kept
    }

    /// A session's id may be any text, and a file's name may not.
    fn place(&self, session_id: &str) -> PathBuf {
        let hash = Sha256::digest(session_id.as_bytes());
        let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name)
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        // Closing is not enough: a process that is just being started has a copy until it becomes its program.
        let _closed_anyway = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
