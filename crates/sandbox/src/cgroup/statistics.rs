//! Resource usage of a group.

use rustix::io::Errno;

use super::directory::CgroupDirectory;
use super::error::CgroupError;
use super::host::Controller;
use super::wait::keyed;
use super::{Cgroup, HierarchyGroup};

/// The resource usage of a group; what this host does not count is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupStatistics {
    /// Bytes of memory in use, including cached files.
    pub memory_bytes: Option<u64>,
    /// The highest memory usage so far, in bytes.
    pub memory_peak: Option<u64>,
    /// The number of OOM kills.
    pub out_of_memory_kills: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// CPU time in nanoseconds.
    pub cpu_nanos: Option<u64>,
    /// Periods in which the CPU quota was used up.
    pub throttled_periods: Option<u64>,
    /// Throttled time in nanoseconds.
    pub throttled_nanos: Option<u64>,
}

// === impl Cgroup ===

impl Cgroup {
    /// Reads the usage of the group.
    pub fn statistics(&self) -> Result<CgroupStatistics, CgroupError> {
        let mut statistics = CgroupStatistics::default();
        if let Some(HierarchyGroup { unified, directory, .. }) = self.part(Controller::Memory) {
            let [now, peak] = if *unified {
                ["memory.current", "memory.peak"]
            } else {
                ["memory.usage_in_bytes", "memory.max_usage_in_bytes"]
            };
            statistics.memory_bytes = number(directory, now)?;
            statistics.memory_peak = number(directory, peak)?;
            statistics.out_of_memory_kills = Some(self.out_of_memory_kills()?);
        }
        if let Some(HierarchyGroup { directory, .. }) = self.part(Controller::Pids) {
            statistics.pids = number(directory, "pids.current")?;
        }
        if let Some(HierarchyGroup { unified, directory, .. }) = self.part(Controller::Accounting) {
            statistics.cpu_nanos = if *unified {
                Some(value(directory, "cpu.stat", "usage_usec")?.saturating_mul(1000))
            } else {
                number(directory, "cpuacct.usage")?
            };
        }
        if let Some(HierarchyGroup { unified, directory, .. }) = self.part(Controller::Cpu) {
            statistics.throttled_periods = Some(value(directory, "cpu.stat", "nr_throttled")?);
            statistics.throttled_nanos = Some(if *unified {
                value(directory, "cpu.stat", "throttled_usec")?.saturating_mul(1000)
            } else {
                value(directory, "cpu.stat", "throttled_time")?
            });
        }
        Ok(statistics)
    }

    /// The number of OOM kills.
    pub fn out_of_memory_kills(&self) -> Result<u64, CgroupError> {
        let part = self.part(Controller::Memory).ok_or(CgroupError::Absent(Controller::Memory))?;
        value(&part.directory, if part.unified { "memory.events" } else { "memory.oom_control" }, "oom_kill")
    }
}

/// The number in a file; none if this kernel has no such file.
fn number(directory: &CgroupDirectory, file: &str) -> Result<Option<u64>, CgroupError> {
    let text = match directory.read(file) {
        Ok(text) => text,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(CgroupError::Read { file: directory.join(file), errno }),
    };
    let number = text.trim().parse().ok();
    number.map(Some).ok_or_else(|| CgroupError::Malformed { file: directory.join(file), text })
}

/// The value of a key in a file.
fn value(directory: &CgroupDirectory, file: &str, key: &str) -> Result<u64, CgroupError> {
    let text = directory.read(file).map_err(|errno| CgroupError::Read { file: directory.join(file), errno })?;
    keyed(&text, key).ok_or_else(|| CgroupError::Malformed { file: directory.join(file), text })
}
