//! The CPU time of a group, at low cost.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use super::host::Controller;
use super::wait::keyed;
use super::{Cgroup, HierarchyGroup};

/// An open file with the CPU time of a group.
#[derive(Debug)]
pub struct CpuClock {
    file: File,
    unified: bool,
}

// === impl Cgroup ===

impl Cgroup {
    /// The CPU clock of the group, where this host counts it.
    pub fn cpu_clock(&self) -> Option<CpuClock> {
        let HierarchyGroup { unified, directory, .. } = self.part(Controller::Accounting)?;
        let name = if *unified { "cpu.stat" } else { "cpuacct.usage" };
        let file = directory.open_file(name, OFlags::RDONLY).ok()?;
        Some(CpuClock { file: file.into(), unified: *unified })
    }
}

// === impl CpuClock ===

impl CpuClock {
    /// The CPU time in nanoseconds.
    pub fn nanos(&self) -> Option<u64> {
        // The value is at the beginning of the file.
        let mut buffer = [0; 512];
        let count = self.file.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(buffer.get(..count)?).ok()?;
        if self.unified { keyed(text, "usage_usec")?.checked_mul(1000) } else { text.trim().parse().ok() }
    }
}
