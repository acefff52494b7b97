//! File locks: no limit covers them, neither by number nor as memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use super::{ChargeKind, KernelMemoryOveruse, start_of};

/// The size of a lock.
const LOCK: u64 = 200;
/// The limit of the list's length: 30,000 to 50,000 locks, by the length of their lines.
const LENGTH: u64 = 2 << 20;
/// Nearly the longest line: fewer locks do not make a list of that length.
const LONGEST_LINE: u64 = 72;
/// The assumed minimum cost of 20,000 locks, in nanoseconds of CPU time: an eighth of the measured one.
const WORK: u64 = 4_000_000;
/// The kernel's slab counters, with the number of objects of a lock's size on this host.
const OBJECTS: &str = "/sys/kernel/slab/file_lock_cache/total_objects";

/// The file locks of a sandbox.
#[derive(Debug)]
pub(super) struct FileLockMonitor {
    /// `/proc/locks` of the sandbox: locks of its own processes, and those without a process.
    list: File,
    /// The upper bound of locks on the whole host.
    host: Option<File>,
    /// The CPU time at the last check.
    worked: u64,
}

// === impl FileLockMonitor ===

impl FileLockMonitor {
    pub(super) fn new(list: OwnedFd) -> Self {
        Self { list: list.into(), host: File::open(OBJECTS).ok(), worked: 0 }
    }

    /// Checks for too many locks. To print the list, the kernel blocks all locking on the host: 20 to 28 ms were measured with
    /// 84,000 locks. So it is read only where there are many, and for a sandbox that was active since.
    pub(super) fn check(&mut self, worked: Option<u64>) -> Option<KernelMemoryOveruse> {
        if worked.is_some_and(|worked| worked.saturating_sub(self.worked) < WORK) {
            return None;
        }
        self.worked = worked.unwrap_or(0);
        let few = LENGTH / LONGEST_LINE;
        if self.on_host().is_some_and(|locks| locks < few) {
            return None;
        }
        // Reading the whole list takes quadratic time. Reading one page at an offset takes one pass.
        let long = [LENGTH, LENGTH / 2, 0].into_iter().all(|place| self.is_own(place));
        long.then_some(KernelMemoryOveruse { kind: ChargeKind::FileLocks, allowance: few * LOCK })
    }

    fn on_host(&self) -> Option<u64> {
        let text = start_of(self.host.as_ref()?, &mut [0; 64])?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }

    /// Whether the list has a page at this offset with mostly the sandbox's own locks: those of an open file description
    /// belong to no process and are shown in every sandbox.
    fn is_own(&self, place: u64) -> bool {
        let mut page = [0; 4096];
        let Ok(count) = self.list.read_at(&mut page, place) else { return false };
        let text = String::from_utf8_lossy(page.get(..count).unwrap_or_default()).into_owned();
        let (others, own): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.contains(" -1 "));
        own.len() > others.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn list(owner: &str, lines: usize) -> FileLockMonitor {
        let mut file = tempfile::tempfile().unwrap();
        for line in 1..=lines {
            writeln!(file, "{line}: POSIX  ADVISORY  WRITE {owner} 00:2e:5573526 600 600").unwrap();
        }
        FileLockMonitor { list: file, host: None, worked: 0 }
    }

    #[test]
    fn many_locks_are_reported_and_those_of_others_are_not() {
        let overuse = list("12", 45_000).check(None).unwrap();
        assert_eq!(overuse.kind, ChargeKind::FileLocks);
        assert_eq!(list("12", 30_000).check(None), None);
        assert_eq!(list("-1", 100_000).check(None), None);
        assert_eq!(list("12", 0).check(None), None);
    }

    #[test]
    fn a_sandbox_without_cpu_time_has_made_no_locks() {
        let mut locks = list("12", 45_000);
        assert_eq!(locks.check(Some(WORK - 1)), None);
        assert!(locks.check(Some(WORK)).is_some());
        assert_eq!(locks.check(Some(WORK + 1)), None);
    }

    #[test]
    fn proc_locks_is_not_read_while_the_host_has_few_locks() {
        let mut host = tempfile::tempfile().unwrap();
        write!(host, "588 N0=588").unwrap();
        let mut locks = list("12", 45_000);
        locks.host = Some(host);
        assert_eq!((locks.on_host(), locks.check(None)), (Some(588), None));
    }
}
