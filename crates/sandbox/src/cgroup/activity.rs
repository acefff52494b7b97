//! What a group does to the disk that all share: what its processes write, and how long the kernel works for them. And
//! slowing it down without stopping it.

use std::collections::HashMap;

use rustix::io::Errno;
use rustix::process::Pid;

use super::directory::CgroupDirectory;
use super::error::CgroupError;
use super::host::Controller;
use super::limits::CpuShare;
use super::wait::keyed;
use super::{Cgroup, HierarchyGroup};

/// The share of one processor that a group has while it is slowed down, in microseconds of each period. The period is
/// short, so that one who is stopped in the middle of a system call does not hold a lock of the file system for long.
const SLOW_QUOTA_MICROS: u64 = 1000;
const SLOW_PERIOD_MICROS: u64 = 20_000;

/// What the processes of a group have done to disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// For each process, how many bytes it and the children that it waited for have made the kernel write, less what
    /// was deleted before that happened.
    pub written: HashMap<u32, u64>,
    /// How long the kernel has worked for all of them, in nanoseconds.
    pub system_nanos: u64,
}

// === impl Activity ===

impl Activity {
    /// How many bytes were written since an earlier look. What a process has written that was not there before counts
    /// whole; what one wrote that is gone is its parent's if that waited for it, and not seen otherwise.
    pub fn written_since(&self, earlier: &Self) -> u64 {
        let since = |(pid, now): (&u32, &u64)| now.saturating_sub(*earlier.written.get(pid).unwrap_or(&0));
        self.written.iter().map(since).sum()
    }

    /// The processes that wrote since an earlier look, and how much.
    pub fn writers_since(&self, earlier: &Self) -> Vec<(u32, u64)> {
        let since = |(pid, now): (&u32, &u64)| (*pid, now.saturating_sub(*earlier.written.get(pid).unwrap_or(&0)));
        self.written.iter().map(since).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

// === impl Cgroup ===

impl Cgroup {
    /// What its processes have done to disks. For one who may read `/proc` of others.
    pub fn activity(&self) -> Result<Activity, CgroupError> {
        let written = self.processes()?.into_iter().filter_map(|pid| {
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            // One that has ended meanwhile has handed on what it wrote.
            let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
            Some((pid, written(&text)?))
        });
        let written = written.collect();
        Ok(Activity { written, system_nanos: self.system_nanos()? })
    }

    fn system_nanos(&self) -> Result<u64, CgroupError> {
        let Some(HierarchyGroup { unified, directory, .. }) = self.part(Controller::Accounting) else { return Ok(0) };
        let read = |file: &str| match directory.read(file) {
            Ok(text) => Ok(text),
            Err(Errno::NOENT) => Ok(String::new()),
            Err(errno) => Err(CgroupError::Read { file: directory.join(file), errno }),
        };
        Ok(if *unified {
            keyed(&read("cpu.stat")?, "system_usec").unwrap_or(0).saturating_mul(1000)
        } else {
            read("cpuacct.usage_sys")?.trim().parse().unwrap_or(0)
        })
    }

    /// How many bytes of files it has written that are not on a disk yet. Needs nothing but its own directory.
    pub fn unwritten_bytes(&self) -> Result<u64, CgroupError> {
        let part = self.part(Controller::Memory).ok_or(CgroupError::Absent(Controller::Memory))?;
        let keys = if part.unified { ["file_dirty", "file_writeback"] } else { ["dirty", "writeback"] };
        let read = part.directory.read("memory.stat");
        let text = read.map_err(|errno| CgroupError::Read { file: part.directory.join("memory.stat"), errno })?;
        Ok(keys.into_iter().filter_map(|key| keyed(&text, key)).sum())
    }

    /// Lets it have a small share of one processor, whatever its limit is.
    pub fn slow_down(&self) -> Result<(), CgroupError> {
        self.share(Some(SLOW_QUOTA_MICROS), SLOW_PERIOD_MICROS)
    }

    /// Gives it back what its limit says.
    pub fn speed_up(&self, limit: Option<CpuShare>) -> Result<(), CgroupError> {
        self.share(limit.map(CpuShare::quota_micros), CpuShare::PERIOD_MICROS)
    }

    fn share(&self, quota: Option<u64>, period: u64) -> Result<(), CgroupError> {
        let part = self.part(Controller::Cpu).ok_or(CgroupError::Absent(Controller::Cpu))?;
        if part.unified {
            let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
            return set(&part.directory, "cpu.max", &format!("{quota} {period}"));
        }
        // In between it has no limit: a quota of one period need not fit another.
        set(&part.directory, "cpu.cfs_quota_us", "-1")?;
        set(&part.directory, "cpu.cfs_period_us", &period.to_string())?;
        quota.map_or(Ok(()), |quota| set(&part.directory, "cpu.cfs_quota_us", &quota.to_string()))
    }

    /// Kills some of its processes, and none that has left it or was never in it.
    pub fn kill(&self, pids: &[u32]) -> Result<(), CgroupError> {
        let Some(part) = self.groups.first() else { return Ok(()) };
        let pids: Vec<Pid> = pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)).collect();
        part.signal(&pids)
    }
}

fn set(directory: &CgroupDirectory, file: &'static str, value: &str) -> Result<(), CgroupError> {
    let written = directory.write(file, value);
    written.map_err(|errno| CgroupError::Limit { file: directory.join(file), value: value.to_owned(), errno })
}

/// What `/proc/PID/io` says of a process and of the children that it waited for.
fn written(text: &str) -> Option<u64> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line?.trim().parse::<u64>().ok()
    };
    // What is deleted before it is written takes no room, whoever deletes it.
    Some(value("write_bytes")?.saturating_sub(value("cancelled_write_bytes").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(written: &[(u32, u64)]) -> Activity {
        Activity { written: written.iter().copied().collect(), system_nanos: 0 }
    }

    #[test]
    fn what_was_written_is_what_each_wrote_since_and_all_of_a_new_one() {
        let before = activity(&[(1, 100), (2, 50), (3, 7)]);
        let now = activity(&[(1, 150), (2, 50), (4, 1000)]);
        assert_eq!(now.written_since(&before), 1050);
        let mut writers = now.writers_since(&before);
        writers.sort_unstable();
        assert_eq!(writers, [(1, 50), (4, 1000)]);
    }

    #[test]
    fn what_was_deleted_before_it_was_written_does_not_count() {
        let text =
            "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 5\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        assert_eq!(written(text), Some(4096));
        assert_eq!(written("rchar: 9\n"), None);
    }

    #[test]
    fn this_process_has_a_file_that_is_understood() {
        assert!(written(&std::fs::read_to_string("/proc/self/io").unwrap()).is_some());
    }
}
