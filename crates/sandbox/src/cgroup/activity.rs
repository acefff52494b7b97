//! The disk activity of a group: the bytes that its processes write, and the system time that they use. Also slows a group
//! down without freezing it.

use std::collections::HashMap;

use rustix::io::Errno;
use rustix::process::Pid;

use super::directory::CgroupDirectory;
use super::error::CgroupError;
use super::host::Controller;
use super::limits::CpuShare;
use super::wait::keyed;
use super::{Cgroup, HierarchyGroup};

/// The CPU quota of a slowed group, in microseconds of each period. The period is short, so that a process that is throttled
/// inside a system call does not hold a file system lock for long.
const SLOW_QUOTA_MICROS: u64 = 1000;
const SLOW_PERIOD_MICROS: u64 = 20_000;

/// The disk activity of the processes of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskActivity {
    /// For each process, the bytes that it and its reaped children made the kernel write, less those that were truncated
    /// before.
    pub written: HashMap<u32, u64>,
    /// The system time of the group, in nanoseconds.
    pub system_nanos: u64,
}

// === impl DiskActivity ===

impl DiskActivity {
    /// The bytes that were written since an earlier sample. The count of a new process counts whole; that of a process that
    /// exited is in its parent's if it was reaped, and not seen otherwise.
    pub fn written_since(&self, earlier: &Self) -> u64 {
        let since = |(pid, now): (&u32, &u64)| now.saturating_sub(*earlier.written.get(pid).unwrap_or(&0));
        self.written.iter().map(since).sum()
    }

    /// The processes that wrote since an earlier sample, and how much.
    pub fn writers_since(&self, earlier: &Self) -> Vec<(u32, u64)> {
        let since = |(pid, now): (&u32, &u64)| (*pid, now.saturating_sub(*earlier.written.get(pid).unwrap_or(&0)));
        self.written.iter().map(since).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

// === impl Cgroup ===

impl Cgroup {
    /// Samples the group. Needs the right to read `/proc` of other users' processes.
    pub fn activity(&self) -> Result<DiskActivity, CgroupError> {
        let written = self.processes()?.into_iter().filter_map(|pid| {
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            // A process that exited meanwhile is counted in its parent.
            let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
            Some((pid, written(&text)?))
        });
        let written = written.collect();
        Ok(DiskActivity { written, system_nanos: self.system_nanos()? })
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

    /// The bytes of dirty pages of the group. Needs only its own directory.
    pub fn unwritten_bytes(&self) -> Result<u64, CgroupError> {
        let part = self.part(Controller::Memory).ok_or(CgroupError::Absent(Controller::Memory))?;
        let keys = if part.unified { ["file_dirty", "file_writeback"] } else { ["dirty", "writeback"] };
        let read = part.directory.read("memory.stat");
        let text = read.map_err(|errno| CgroupError::Read { file: part.directory.join("memory.stat"), errno })?;
        Ok(keys.into_iter().filter_map(|key| keyed(&text, key)).sum())
    }

    /// Reduces it to a small part of one CPU, whatever its limit is.
    pub fn slow_down(&self) -> Result<(), CgroupError> {
        self.share(Some(SLOW_QUOTA_MICROS), SLOW_PERIOD_MICROS)
    }

    /// Restores its limit.
    pub fn speed_up(&self, limit: Option<CpuShare>) -> Result<(), CgroupError> {
        self.share(limit.map(CpuShare::quota_micros), CpuShare::PERIOD_MICROS)
    }

    fn share(&self, quota: Option<u64>, period: u64) -> Result<(), CgroupError> {
        let part = self.part(Controller::Cpu).ok_or(CgroupError::Absent(Controller::Cpu))?;
        if part.unified {
            let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
            return set(&part.directory, "cpu.max", &format!("{quota} {period}"));
        }
        // In between it is unlimited: a quota of one period need not fit another.
        set(&part.directory, "cpu.cfs_quota_us", "-1")?;
        set(&part.directory, "cpu.cfs_period_us", &period.to_string())?;
        quota.map_or(Ok(()), |quota| set(&part.directory, "cpu.cfs_quota_us", &quota.to_string()))
    }

    /// Kills some of its processes, and none that is not in the group.
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

/// The written bytes in `/proc/PID/io`, of a process and its reaped children.
fn written(text: &str) -> Option<u64> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line?.trim().parse::<u64>().ok()
    };
    // Data that is deleted before writeback takes no space, whichever process deletes it.
    Some(value("write_bytes")?.saturating_sub(value("cancelled_write_bytes").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(written: &[(u32, u64)]) -> DiskActivity {
        DiskActivity { written: written.iter().copied().collect(), system_nanos: 0 }
    }

    #[test]
    fn the_written_bytes_are_the_growth_of_each_process_and_all_of_a_new_one() {
        let before = activity(&[(1, 100), (2, 50), (3, 7)]);
        let now = activity(&[(1, 150), (2, 50), (4, 1000)]);
        assert_eq!(now.written_since(&before), 1050);
        let mut writers = now.writers_since(&before);
        writers.sort_unstable();
        assert_eq!(writers, [(1, 50), (4, 1000)]);
    }

    #[test]
    fn data_deleted_before_writeback_does_not_count() {
        let text =
            "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 5\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        assert_eq!(written(text), Some(4096));
        assert_eq!(written("rchar: 9\n"), None);
    }

    #[test]
    fn the_io_file_of_this_process_is_parsed() {
        assert!(written(&std::fs::read_to_string("/proc/self/io").unwrap()).is_some());
    }
}
