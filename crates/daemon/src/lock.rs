//! A file that one process holds: who it is stands in it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// How long one that is dead may seem to hold it: a process that it had just started has the file open until it becomes
/// the program that it is to be.
const ORPHANED: Duration = Duration::from_secs(1);
/// How long to wait before it is tried again.
const AGAIN: Duration = Duration::from_millis(2);

/// A lock that ends with its holder, whatever ends that.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Why a lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody holds it.
    #[error("{} holds {}", holder(*.pid), path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// Who, if that can be read.
        pid: Option<u32>,
    },
    /// It cannot be tried.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

// === impl Lock ===

impl Lock {
    /// Takes it, and writes down who has it. It is never removed: two could then hold one each.
    pub(crate) fn take(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
        let mut file = File::from(file);
        let until = Instant::now() + ORPHANED;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            let pid = written(&mut file);
            // What we had ourselves may still be open in one that we have just started.
            let is_held = pid.is_some_and(|pid| pid != std::process::id() && lives(pid));
            if is_held || Instant::now() >= until {
                return Err(LockError::Held { path: path.to_owned(), pid });
            }
            std::thread::sleep(AGAIN);
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// Who is written down to have it.
fn written(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.take(32).read_to_string(&mut text)).ok()?;
    text.trim().parse().ok()
}

fn lives(pid: u32) -> bool {
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
    fn one_holds_it_and_the_next_is_told_who() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.lock");
        std::fs::write(&path, "4000000000 and what an earlier one left\n").unwrap();
        let held = Lock::take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        let refused = Lock::take(&path).unwrap_err();
        assert_eq!(refused.to_string(), format!("process {} holds {}", std::process::id(), path.display()));
        drop(held);
        Lock::take(&path).unwrap();
    }

    #[test]
    fn what_a_dead_one_had_just_started_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.lock");
        // A number that no process has.
        let dead = u32::try_from(i32::MAX).unwrap();
        std::fs::write(&path, format!("{dead}\n")).unwrap();
        let orphan = File::open(&path).unwrap();
        rustix::fs::flock(&orphan, FlockOperation::LockExclusive).unwrap();
        let refused = Lock::take(&path).unwrap_err();
        assert!(matches!(refused, LockError::Held { pid: Some(pid), .. } if pid == dead), "but not for ever");
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| Lock::take(&path).unwrap());
            drop(orphan);
            taking.join().unwrap();
        });
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("daemon.lock"), dir.path().join("other"));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(matches!(Lock::take(&path), Err(LockError::Io { .. })));
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "precious");
    }
}
