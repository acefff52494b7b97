//! FileLocks of files: no limit counts them, neither by number nor as memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use super::{ChargeKind, Overuse, start_of};

/// What a lock takes.
const LOCK: u64 = 200;
/// How long the list of its locks may be: from 30,000 to 50,000 locks, by how much the kernel has to say about each.
const LENGTH: u64 = 2 << 20;
/// The longest line there is, nearly: fewer locks make no list of that length.
const LONGEST_LINE: u64 = 72;
/// What 20,000 locks are taken to cost at least, in nanoseconds of processor time: an eighth of what was measured.
const WORK: u64 = 4_000_000;
/// How many objects there are on this host of the size of a lock, locks among them.
const OBJECTS: &str = "/sys/kernel/slab/file_lock_cache/total_objects";

/// The locks of the processes of a sandbox.
#[derive(Debug)]
pub(super) struct FileLocks {
    /// Shows the locks whose owners are in the process file system that it belongs to, and those that have none.
    list: File,
    /// How many locks there can be on the whole host.
    host: Option<File>,
    /// How long the sandbox had worked at the last look.
    worked: u64,
}

// === impl FileLocks ===

impl FileLocks {
    pub(super) fn new(list: OwnedFd) -> Self {
        Self { list: list.into(), host: File::open(OBJECTS).ok(), worked: 0 }
    }

    /// What there is too much of. To show the list, the kernel stops everybody on the host who locks something: 20 to
    /// 28 ms were measured with 84,000 locks, for one who has none of them. So it is looked at only where there are many, and for one who has worked since.
    pub(super) fn look(&mut self, worked: Option<u64>) -> Option<Overuse> {
        if worked.is_some_and(|worked| worked.saturating_sub(self.worked) < WORK) {
            return None;
        }
        self.worked = worked.unwrap_or(0);
        let few = LENGTH / LONGEST_LINE;
        if self.on_host().is_some_and(|locks| locks < few) {
            return None;
        }
        // A list is read in time that grows with the square of its length. One place of it takes one pass.
        let long = [LENGTH, LENGTH / 2, 0].into_iter().all(|place| self.is_own(place));
        long.then_some(Overuse { kind: ChargeKind::FileLocks, allowance: few * LOCK })
    }

    fn on_host(&self) -> Option<u64> {
        let text = start_of(self.host.as_ref()?, &mut [0; 64])?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }

    /// Whether there is a page of the list at this place, most of it of the sandbox's own locks: those that belong to
    /// an open file and to no process are shown to everybody.
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

    fn list(owner: &str, lines: usize) -> FileLocks {
        let mut file = tempfile::tempfile().unwrap();
        for line in 1..=lines {
            writeln!(file, "{line}: POSIX  ADVISORY  WRITE {owner} 00:2e:5573526 600 600").unwrap();
        }
        FileLocks { list: file, host: None, worked: 0 }
    }

    #[test]
    fn many_locks_are_too_many_and_those_of_others_are_not() {
        let overuse = list("12", 45_000).look(None).unwrap();
        assert_eq!(overuse.kind, ChargeKind::FileLocks);
        assert_eq!(list("12", 30_000).look(None), None);
        assert_eq!(list("-1", 100_000).look(None), None);
        assert_eq!(list("12", 0).look(None), None);
    }

    #[test]
    fn who_did_not_work_has_made_none() {
        let mut locks = list("12", 45_000);
        assert_eq!(locks.look(Some(WORK - 1)), None);
        assert!(locks.look(Some(WORK)).is_some());
        assert_eq!(locks.look(Some(WORK + 1)), None);
    }

    #[test]
    fn where_the_whole_host_has_few_nothing_is_read() {
        let mut host = tempfile::tempfile().unwrap();
        write!(host, "588 N0=588").unwrap();
        let mut locks = list("12", 45_000);
        locks.host = Some(host);
        assert_eq!((locks.on_host(), locks.look(None)), (Some(588), None));
    }
}
