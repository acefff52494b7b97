//! A lock file with the pid of its holder.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// How long a dead process may still seem to hold the lock: a child that it forked has the file open until it executes
/// its program.
const DEAD_HOLDER_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// A lock that the kernel releases when its holder exits.
#[derive(Debug)]
pub(crate) struct PidFileLock {
    _file: File,
}

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} holds {}", holder(*.pid), path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The pid of the holder, if it can be read.
        pid: Option<u32>,
    },
    /// The file cannot be opened or locked.
    #[error("{}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

// === impl PidFileLock ===

impl PidFileLock {
    /// Acquires the lock and writes the pid. The file is never removed: otherwise two processes could each hold a lock.
    pub(crate) fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
        let mut file = File::from(file);
        let until = Instant::now() + DEAD_HOLDER_TIMEOUT;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            let pid = read_pid(&mut file);
            // A child that was just forked may still have the file open.
            let is_held = pid.is_some_and(|pid| pid != std::process::id() && is_running(pid));
            if is_held || Instant::now() >= until {
                return Err(LockError::Held { path: path.to_owned(), pid });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.take(32).read_to_string(&mut text)).ok()?;
    text.trim().parse().ok()
}

fn is_running(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_is_refused_with_the_pid_of_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.lock");
        std::fs::write(&path, "4000000000 and what an earlier one left\n").unwrap();
        let held = PidFileLock::take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        let refused = PidFileLock::take(&path).unwrap_err();
        assert_eq!(refused.to_string(), format!("process {} holds {}", std::process::id(), path.display()));
        drop(held);
        PidFileLock::take(&path).unwrap();
    }

    #[test]
    fn a_lock_held_by_a_child_of_a_dead_holder_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.lock");
        // A pid that no process has.
        let dead = u32::try_from(i32::MAX).unwrap();
        std::fs::write(&path, format!("{dead}\n")).unwrap();
        let orphan = File::open(&path).unwrap();
        rustix::fs::flock(&orphan, FlockOperation::LockExclusive).unwrap();
        let refused = PidFileLock::take(&path).unwrap_err();
        assert!(
            matches!(refused, LockError::Held { pid: Some(pid), .. } if pid == dead),
            "but only for a limited time"
        );
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| PidFileLock::take(&path).unwrap());
            drop(orphan);
            taking.join().unwrap();
        });
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("daemon.lock"), dir.path().join("other"));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(matches!(PidFileLock::take(&path), Err(LockError::Io { .. })));
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "precious");
    }
}
