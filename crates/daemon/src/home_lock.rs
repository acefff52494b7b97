//! The lock of a home, for commands that need exclusive access to it.

use std::path::Path;

use crate::error::ServeError;
use crate::home::{HomeError, lock_file, own_directory};
use crate::lock::{LockError, PidFileLock};

/// Keeps daemons from serving a home while it is held.
#[derive(Debug)]
pub struct HomeLock {
    _lock: PidFileLock,
}

// === impl HomeLock ===

impl HomeLock {
    /// Locks a home; fails if a daemon serves it. A missing home is created.
    pub fn take(home: &Path) -> Result<Self, ServeError> {
        own_directory(home, true)?;
        match PidFileLock::take(&lock_file(home)) {
            Ok(lock) => Ok(Self { _lock: lock }),
            Err(source @ LockError::Held { .. }) => Err(ServeError::Taken { home: home.to_owned(), source }),
            Err(LockError::Io { path, source }) => Err(HomeError::Io { path, source }.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_served_home_is_refused_with_a_command_that_stops_its_daemon() {
        let home = tempfile::tempdir().unwrap();
        let held = HomeLock::take(home.path()).unwrap();
        let refused = HomeLock::take(home.path()).unwrap_err();
        assert_eq!(refused.code(), "home_taken");
        assert!(refused.hint().unwrap().contains(&format!("kill {}", std::process::id())));
        drop(held);
        HomeLock::take(home.path()).unwrap();
    }
}
