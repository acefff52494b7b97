//! Converts limits to the values of cgroup files, in the order in which they are written.

use super::host::Controller;
use super::limits::{CgroupLimits, CpuShare};

/// A value for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupSetting {
    pub(super) file: &'static str,
    pub(super) value: String,
    /// Whether a kernel without that file still enforces the limit.
    pub(super) optional: bool,
}

/// The fraction of the memory limit that v1 allows for socket buffers in addition: v1 does not count them as memory.
/// Exceeding it slows connections down and breaks none.
const SOCKETS: u64 = 4;

pub(super) fn settings(controller: Controller, unified: bool, limits: &CgroupLimits) -> Vec<CgroupSetting> {
    let must = |file, value: String| CgroupSetting { file, value, optional: false };
    // A kernel without these files has no swap or no network, or does not count them for groups.
    let may = |file, value: String| CgroupSetting { file, value, optional: true };
    match (controller, unified) {
        // The limit with swap can never be below the limit without, so the latter is set first.
        (Controller::Memory, false) => limits.memory().map_or_else(Vec::new, |bytes| {
            vec![
                must("memory.limit_in_bytes", bytes.to_string()),
                may("memory.memsw.limit_in_bytes", bytes.to_string()),
                may("memory.kmem.tcp.limit_in_bytes", (bytes / SOCKETS).to_string()),
            ]
        }),
        // memory.oom.group stays off: with it, the OOM kill of one command would include pid 1 and thus the sandbox.
        (Controller::Memory, true) => limits.memory().map_or_else(Vec::new, |bytes| {
            vec![must("memory.max", bytes.to_string()), may("memory.swap.max", "0".to_owned())]
        }),
        (Controller::Pids, _) => limits.pids().map(|pids| must("pids.max", pids.to_string())).into_iter().collect(),
        (Controller::Cpu, false) => limits.cpus().map_or_else(Vec::new, |share| {
            vec![
                must("cpu.cfs_period_us", CpuShare::PERIOD_MICROS.to_string()),
                must("cpu.cfs_quota_us", share.quota_micros().to_string()),
            ]
        }),
        (Controller::Cpu, true) => limits
            .cpus()
            .map(|share| must("cpu.max", format!("{} {}", share.quota_micros(), CpuShare::PERIOD_MICROS)))
            .into_iter()
            .collect(),
        (Controller::Accounting | Controller::Freezer, _) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.sandbox.waits-sockets
    #[test]
    fn on_v1_swap_and_sockets_are_limited_with_the_memory() {
        let limits = CgroupLimits::new(Some(64 << 20), None, None).unwrap();
        let written: Vec<_> = settings(Controller::Memory, false, &limits)
            .into_iter()
            .map(|setting| (setting.file, setting.value, setting.optional))
            .collect();
        let whole = || (64 << 20).to_string();
        assert_eq!(
            written,
            [
                ("memory.limit_in_bytes", whole(), false),
                ("memory.memsw.limit_in_bytes", whole(), true),
                ("memory.kmem.tcp.limit_in_bytes", (16 << 20).to_string(), true),
            ]
        );
        assert_eq!(settings(Controller::Memory, false, &CgroupLimits::default()), []);
    }
}
