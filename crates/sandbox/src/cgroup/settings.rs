//! From limits to the values of files, in the order in which they are written.

use super::host::Controller;
use super::limits::{CpuShare, Limits};

/// One value for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) file: &'static str,
    pub(super) value: String,
    /// Whether a kernel without that file still enforces the limit.
    pub(super) optional: bool,
}

/// What to write for one controller.
pub(super) fn settings(controller: Controller, unified: bool, limits: &Limits) -> Vec<Setting> {
    let must = |file, value: String| Setting { file, value, optional: false };
    // A kernel without these files has no swap, or does not count it for groups.
    let swap = |file, value: String| Setting { file, value, optional: true };
    let memory = limits.memory().map(|bytes| bytes.to_string());
    match (controller, unified) {
        // Memory with swap can never be less than memory alone, so memory comes first.
        (Controller::Memory, false) => memory.map_or_else(Vec::new, |bytes| {
            vec![must("memory.limit_in_bytes", bytes.clone()), swap("memory.memsw.limit_in_bytes", bytes)]
        }),
        // memory.oom.group stays off: with it, one greedy command would take pid 1 and so the sandbox with it.
        (Controller::Memory, true) => memory
            .map_or_else(Vec::new, |bytes| vec![must("memory.max", bytes), swap("memory.swap.max", "0".to_owned())]),
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
