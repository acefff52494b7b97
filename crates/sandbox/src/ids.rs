//! Ranges of user and group ids: every sandbox has one exclusively for as long as anything of it exists.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How many ids a sandbox has.
pub(crate) const COUNT: u32 = 65_536;
/// The start of the ranges: above those of users and common container tools.
const FIRST: u32 = 0x4000_0000;
/// The number of ranges.
const RANGES: u32 = 8192;

/// The length of the line that names the holder of a range.
const LINE: usize = 48;

/// The group of all shims that have dropped root; the following ids are their users, one for each range.
pub const SUPERVISORS: u32 = FIRST + RANGES * COUNT;

/// An id range, released when dropped.
#[derive(Debug)]
pub struct IdRange {
    number: u32,
    _lock: File,
}

/// Why no id range is available.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// The directory of locks cannot be used.
    #[error("cannot use the directory of id ranges: {0}")]
    Directory(std::io::Error),
    /// All ranges are in use.
    #[error("all {RANGES} id ranges are in use")]
    Exhausted,
}

// === impl IdRange ===

impl IdRange {
    /// How many ids a sandbox has.
    pub const COUNT: u32 = COUNT;

    /// Allocates the first free range. The kernel releases its lock when the holder exits.
    pub fn allocate(directory: &Path) -> Result<Self, IdsError> {
        std::fs::create_dir_all(directory).map_err(IdsError::Directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle =
            rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| IdsError::Directory(errno.into()))?;
        for number in 0..RANGES {
            if let Some(range) = Self::take(&handle, number)? {
                return Ok(range);
            }
        }
        Err(IdsError::Exhausted)
    }

    /// Allocates a given range if it is free: then no sandbox uses it.
    pub fn claim(directory: &Path, number: u32) -> Result<Option<Self>, IdsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(directory, flags, Mode::empty()) {
            Ok(handle) if number < RANGES => Self::take(&handle, number),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(IdsError::Directory(errno.into())),
        }
    }

    fn take(directory: impl AsFd, number: u32) -> Result<Option<Self>, IdsError> {
        match lock(directory, number) {
            Ok(lock) => Ok(lock.map(|lock| Self { number, _lock: lock })),
            Err(error) => Err(IdsError::Directory(error)),
        }
    }

    /// The host id of the sandbox's id 0.
    pub const fn base(&self) -> u32 {
        FIRST + self.number * COUNT
    }

    /// The user of this sandbox's shim; no other process has it, inside or outside.
    pub const fn supervisor(&self) -> u32 {
        SUPERVISORS + 1 + self.number
    }

    /// The line for `uid_map` and `gid_map`.
    pub(crate) fn map(&self) -> String {
        format!("0 {} {COUNT}\n", self.base())
    }
}

/// Whether a host id is the first of a range.
pub(crate) const fn is_base(id: u32) -> bool {
    FIRST <= id && id < SUPERVISORS && (id - FIRST).is_multiple_of(COUNT)
}

/// Locks a range. The lock is held by a read-only descriptor, and the file names the process that took it: a compromised shim
/// could release its lock, but must not share its ids with the next sandbox while it lives.
fn lock(directory: impl AsFd, number: u32) -> std::io::Result<Option<File>> {
    let name = number.to_string();
    let open = |access| {
        let flags = access | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(directory.as_fd(), name.as_str(), flags, Mode::from_raw_mode(0o600))
    };
    let mut file = File::from(open(OFlags::RDONLY)?);
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let mut holder = String::new();
    // A file that cannot be read was never written.
    let _unreadable = (&mut file).take(LINE as u64).read_to_string(&mut holder);
    let (holder, ourselves) = (holder.trim_end(), process(std::process::id()).unwrap_or_default());
    if holder != ourselves && is_alive(holder) {
        return Ok(None);
    }
    // The length is constant: some file systems flush a file that is truncated and rewritten.
    File::from(open(OFlags::WRONLY)?).write_all(format!("{ourselves:<LINE$}").as_bytes())?;
    Ok(Some(file))
}

/// Whether the recorded process is still running.
fn is_alive(holder: &str) -> bool {
    let pid = holder.split(' ').next().and_then(|pid| pid.parse().ok());
    pid.and_then(process).is_some_and(|process| process == holder)
}

/// A process by its pid and start time, which are unique within one boot.
fn process(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything; the twentieth field after it is the start time.
    let began = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.to_owned();
    // A zombie holds nothing.
    let state = stat.rsplit_once(')')?.1.split_ascii_whitespace().next()?;
    (!matches!(state, "Z" | "X")).then(|| format!("{pid} {began}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until a released range is free. A process that another test is just starting inherits every descriptor until its
    /// `exec`, and with it the lock.
    fn free_again(directory: &Path, number: u32) -> IdRange {
        loop {
            if let Some(range) = IdRange::claim(directory, number).unwrap() {
                return range;
            }
            std::thread::yield_now();
        }
    }

    //= promises.sandbox.ids-host-maps
    #[test]
    fn a_range_has_one_holder_and_is_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let first = IdRange::allocate(dir.path()).unwrap();
        let second = IdRange::allocate(dir.path()).unwrap();
        assert_eq!(second.base(), first.base() + COUNT);
        assert!(IdRange::claim(dir.path(), first.number).unwrap().is_none());
        let (freed, number) = (first.base(), first.number);
        drop(first);
        assert_eq!(free_again(dir.path(), number).base(), freed);
    }

    #[test]
    fn a_range_whose_living_holder_released_its_lock_is_not_reused() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let first = IdRange::allocate(dir.path()).unwrap();
        let (base, number) = (first.base(), first.number);
        std::fs::write(dir.path().join(number.to_string()), format!("{:<LINE$}", process(other.id()).unwrap()))
            .unwrap();
        drop(first);
        assert_ne!(IdRange::allocate(dir.path()).unwrap().base(), base);
        assert!(IdRange::claim(dir.path(), number).unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(free_again(dir.path(), number).base(), base);
        // Another process with the same pid is not the recorded one.
        let another = format!("{:<LINE$}", format!("{} 1", std::process::id()));
        std::fs::write(dir.path().join(number.to_string()), another).unwrap();
        assert_eq!(free_again(dir.path(), number).base(), base);
    }

    #[test]
    fn a_holder_cannot_change_its_own_record() {
        let dir = tempfile::tempdir().unwrap();
        let range = IdRange::allocate(dir.path()).unwrap();
        let mode = rustix::fs::fcntl_getfl(&range._lock).unwrap();
        assert!(!mode.intersects(OFlags::WRONLY | OFlags::RDWR));
    }

    #[test]
    fn the_first_id_of_a_range_is_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (IdRange::allocate(dir.path()).unwrap(), IdRange::allocate(dir.path()).unwrap());
        assert!(is_base(first.base()) && is_base(second.base()) && is_base(SUPERVISORS - COUNT));
        for id in [0, 1000, COUNT, first.base() - COUNT, first.base() + 1, second.base() - 1, SUPERVISORS, u32::MAX] {
            assert!(!is_base(id), "{id}");
        }
    }

    //= promises.sandbox.ids-host-maps
    //= promises.supervisor.once-sandbox-runs
    #[test]
    fn no_range_reaches_the_highest_ids() {
        assert!(u64::from(SUPERVISORS) + u64::from(RANGES) + 1 < u64::from(u32::MAX));
    }
}
