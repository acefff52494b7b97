//! Ranges of user and group ids: every sandbox has one to itself for as long as anything of it exists.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How many ids a sandbox has.
pub(crate) const COUNT: u32 = 65_536;
/// Where the ranges begin: above what people and the usual tools for containers are given.
const FIRST: u32 = 0x4000_0000;
/// How many there are.
const RANGES: u32 = 8192;

/// How long the line is that says who holds a range.
const LINE: usize = 48;

/// The group of all supervisors that have given up being root, and behind it their users: one for each range.
pub const SUPERVISORS: u32 = FIRST + RANGES * COUNT;

/// A range of ids, held until dropped.
#[derive(Debug)]
pub struct IdRange {
    number: u32,
    _lock: File,
}

/// A range that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// The directory of locks cannot be used.
    #[error("the directory of id ranges: {0}")]
    Directory(std::io::Error),
    /// Every range is taken.
    #[error("all {RANGES} id ranges are taken")]
    Exhausted,
}

// === impl IdRange ===

impl IdRange {
    /// How many ids a sandbox has.
    pub const COUNT: u32 = COUNT;

    /// Takes the first range that nobody holds. The lock is the kernel's: it ends with its holder, however that ends.
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

    /// Takes one range, if nobody holds it: then no sandbox of it lives.
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

    /// The host's id behind the sandbox's 0.
    pub const fn base(&self) -> u32 {
        FIRST + self.number * COUNT
    }

    /// The user that the supervisor of this sandbox becomes: nobody else has it, inside or outside.
    pub const fn supervisor(&self) -> u32 {
        SUPERVISORS + 1 + self.number
    }

    /// The line that tells the kernel.
    pub(crate) fn map(&self) -> String {
        format!("0 {} {COUNT}\n", self.base())
    }
}

/// Whether the host's id is the one behind some sandbox's 0.
pub(crate) const fn is_base(id: u32) -> bool {
    FIRST <= id && id < SUPERVISORS && (id - FIRST) % COUNT == 0
}

/// Takes the lock of a range. It is kept by a descriptor that can only be read, and beside it the file says which process
/// took it: a supervisor that was taken over could let go of its lock, and is not to share its ids with the next one
/// while it lives.
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
    // What cannot be read was never written.
    let _nobody = (&mut file).take(LINE as u64).read_to_string(&mut holder);
    let (holder, ourselves) = (holder.trim_end(), process(std::process::id()).unwrap_or_default());
    if holder != ourselves && is_alive(holder) {
        return Ok(None);
    }
    // Always as long as before: a file that is cut to be written is one that some file systems hurry to write out.
    File::from(open(OFlags::WRONLY)?).write_all(format!("{ourselves:<LINE$}").as_bytes())?;
    Ok(Some(file))
}

/// Whether a process that was written down is still there, and the same.
fn is_alive(holder: &str) -> bool {
    let pid = holder.split(' ').next().and_then(|pid| pid.parse().ok());
    pid.and_then(process).is_some_and(|process| process == holder)
}

/// A process by its number and the time when it began, which no other has in the same boot of this host.
fn process(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may be anything; the twentieth word behind it is the time.
    let began = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.to_owned();
    // One that has ended and that nobody has buried holds nothing.
    let state = stat.rsplit_once(')')?.1.split_ascii_whitespace().next()?;
    (!matches!(state, "Z" | "X")).then(|| format!("{pid} {began}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until a range that was given back can be had. A process that another test is starting at this moment has a
    /// copy of every descriptor until it becomes its program, and with it the lock.
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
    fn a_range_is_held_by_one_and_free_again_afterwards() {
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
    fn a_range_whose_holder_let_go_of_its_lock_and_lives_is_not_given_to_another() {
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
        // Another process that has the number now is not the one that was written down.
        let another = format!("{:<LINE$}", format!("{} 1", std::process::id()));
        std::fs::write(dir.path().join(number.to_string()), another).unwrap();
        assert_eq!(free_again(dir.path(), number).base(), base);
    }

    #[test]
    fn a_holder_cannot_change_what_is_written_down_about_it() {
        let dir = tempfile::tempdir().unwrap();
        let range = IdRange::allocate(dir.path()).unwrap();
        let mode = rustix::fs::fcntl_getfl(&range._lock).unwrap();
        assert!(!mode.intersects(OFlags::WRONLY | OFlags::RDWR));
    }

    #[test]
    fn the_first_id_of_a_range_is_known_by_its_number() {
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
    fn no_range_reaches_the_ids_that_mean_nobody() {
        assert!(u64::from(SUPERVISORS) + u64::from(RANGES) + 1 < u64::from(u32::MAX));
    }
}
