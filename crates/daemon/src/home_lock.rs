//! The lock of a home, for a command that works on it while no daemon may.

use std::path::Path;

use crate::error::ServeError;
use crate::home::{HomeError, lock_file, own_directory};
use crate::lock::{Lock, LockError};

/// A home that no daemon serves, as long as this is held.
#[derive(Debug)]
pub struct HomeLock {
    _lock: Lock,
}

// === impl HomeLock ===

impl HomeLock {
    /// Takes the lock of a home; refuses if a daemon serves it. A home that is missing is made.
    pub fn take(home: &Path) -> Result<Self, ServeError> {
        own_directory(home, true)?;
        match Lock::take(&lock_file(home)) {
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
    fn a_home_that_is_served_is_refused_with_a_command_that_ends_its_daemon() {
        let home = tempfile::tempdir().unwrap();
        let held = HomeLock::take(home.path()).unwrap();
        let refused = HomeLock::take(home.path()).unwrap_err();
        assert_eq!(refused.code(), "home_taken");
        assert!(refused.hint().unwrap().contains(&format!("kill {}", std::process::id())));
        drop(held);
        HomeLock::take(home.path()).unwrap();
    }
}
