//! Detects that the home was moved or removed while the daemon runs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_shim_client::layout;
use rustix::fs::{CWD, Mode, OFlags};

/// The directory of the home. The handle keeps its inode from being reused.
#[derive(Debug)]
pub(crate) struct HomeDirectory {
    path: PathBuf,
    handle: OwnedFd,
    /// Whether the move was logged.
    is_reported: AtomicBool,
}

/// The home is not at its path.
#[derive(Debug, thiserror::Error)]
pub enum HomeMoved {
    /// The home was moved.
    #[error(
        "the home {} was moved to {} while the daemon serves it: move it back with `mv {} {}`, or stop the daemon with \
         `kill {}` and start it with `carrel serve --home {}`",
        path.display(), now.display(), now.display(), path.display(), pid, now.display()
    )]
    To {
        /// The former path.
        path: PathBuf,
        /// The current path.
        now: PathBuf,
        /// The process id of the daemon.
        pid: u32,
    },
    /// The home was removed, or is not visible from here.
    #[error(
        "the home {} was removed while the daemon serves it: stop the daemon with `kill {}`, bring the home back and start \
         the daemon again",
        path.display(), pid
    )]
    Removed {
        /// The former path.
        path: PathBuf,
        /// The process id of the daemon.
        pid: u32,
    },
}

// === impl HomeDirectory ===

impl HomeDirectory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { path: path.to_owned(), handle, is_reported: AtomicBool::new(false) })
    }

    /// Fails if the path has another directory, or none. Logs when that changes.
    pub(crate) fn check(&self) -> Result<(), HomeMoved> {
        let same = |found| rustix::fs::fstat(&self.handle).is_ok_and(|held| layout::is_same(&held, &found));
        if rustix::fs::stat(&self.path).is_ok_and(same) {
            if self.is_reported.swap(false, Ordering::Relaxed) {
                tracing::info!(home = %self.path.display(), "the home is back at its path");
            }
            return Ok(());
        }
        let moved = self.find();
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            tracing::error!(error = %moved, "the home is not at its path: nothing is created or changed");
        }
        Err(moved)
    }

    /// Asks the kernel for the current path.
    fn find(&self) -> HomeMoved {
        let (path, pid, held) = (self.path.clone(), std::process::id(), rustix::fs::fstat(&self.handle));
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.handle));
        match (std::fs::read_link(link), held) {
            (Ok(now), Ok(held)) if rustix::fs::stat(&now).is_ok_and(|found| layout::is_same(&held, &found)) => {
                HomeMoved::To { path, now, pid }
            }
            _ => HomeMoved::Removed { path, pid },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_home_is_found_and_accepted_when_it_is_back() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("home"), directory.path().join("other"));
        std::fs::create_dir(&path).unwrap();
        let home = HomeDirectory::open(&path).unwrap();
        home.check().unwrap();
        std::fs::rename(&path, &other).unwrap();
        let moved = |now: &Path| matches!(home.check(), Err(HomeMoved::To { now: found, .. }) if found == now);
        assert!(moved(&other), "{:?}", home.check());
        // Another directory at the path is not the home.
        std::fs::create_dir(&path).unwrap();
        assert!(moved(&other), "{:?}", home.check());
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&other, &path).unwrap();
        home.check().unwrap();
        std::fs::remove_dir(&path).unwrap();
        assert!(matches!(home.check(), Err(HomeMoved::Removed { .. })));
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(home.check(), Err(HomeMoved::Removed { .. })), "a new directory is another home");
    }

    #[test]
    fn the_message_says_what_to_do() {
        let message = HomeMoved::To { path: "/a".into(), now: "/b".into(), pid: 7 }.to_string();
        let expected = "the home /a was moved to /b while the daemon serves it: move it back with `mv /b /a`, or stop the \
                        daemon with `kill 7` and start it with `carrel serve --home /b`";
        assert_eq!(message, expected);
    }
}
