//! Samples how much each running sandbox of a home writes.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use carrel_sandbox::cgroup::{
    Cgroup, CgroupError, Controller, ControllerLocation, CpuShare, DiskActivity, HostCgroups, MissingController,
};
use carrel_shim_client::{DiscoveredSandbox, DiscoveryError, Liveness};

use super::policy::SandboxUsage;

/// How often the list of sandboxes is refreshed.
const LISTED: Duration = Duration::from_millis(250);

/// The running sandboxes of a home.
#[derive(Debug)]
pub(super) struct ActivitySampler {
    host: HostCgroups,
    listed: Option<Instant>,
    /// By incarnation.
    sandboxes: HashMap<String, SampledSandbox>,
}

#[derive(Debug)]
struct SampledSandbox {
    found: DiscoveredSandbox,
    name: String,
    cgroup: Cgroup,
    /// The CPU share of its limit.
    share: Option<CpuShare>,
    /// The counters of the last sample; none before the first.
    last: Option<DiskActivity>,
    /// The highest count of bytes that its processes were seen to have written. The count of a process that exited is
    /// missing until its parent waits for it, and then reappears in the parent.
    peak: u64,
    /// The usage between the last two samples, and the processes that wrote.
    usage: SandboxUsage,
    writers: Vec<u32>,
}

// === impl ActivitySampler ===

impl ActivitySampler {
    pub(super) fn new() -> Result<Self, CgroupError> {
        Ok(Self { host: HostCgroups::detect()?, listed: None, sandboxes: HashMap::new() })
    }

    /// Samples all sandboxes; what one did before its first sample does not count.
    pub(super) fn sample(&mut self, home: &Path) -> Result<HashMap<String, SandboxUsage>, DiscoveryError> {
        if self.listed.is_none_or(|at| at.elapsed() >= LISTED) {
            self.list(home)?;
            self.listed = Some(Instant::now());
        }
        self.sandboxes.retain(|_, one| one.sample().is_ok());
        Ok(self.sandboxes.iter().map(|(incarnation, one)| (incarnation.clone(), one.usage)).collect())
    }

    fn list(&mut self, home: &Path) -> Result<(), DiscoveryError> {
        let mut before = std::mem::take(&mut self.sandboxes);
        for found in carrel_shim_client::sandboxes(home)? {
            let Some(record) = found.record.as_ref().filter(|_| found.life == Liveness::Running) else { continue };
            let incarnation = record.incarnation.clone();
            if let Some(known) = before.remove(&incarnation) {
                self.sandboxes.insert(incarnation, known);
                continue;
            }
            // The usage of a sandbox without a cgroup cannot be attributed.
            let Ok(cgroup) = Cgroup::adopt(&self.host, &record.cgroup) else { continue };
            let share = record.create.limits.cpu_millis.and_then(|share| CpuShare::from_thousandths(share).ok());
            let name = record.name.clone();
            let one = SampledSandbox {
                found,
                name,
                cgroup,
                share,
                last: None,
                writers: Vec::new(),
                peak: 0,
                usage: SandboxUsage::default(),
            };
            self.sandboxes.insert(incarnation, one);
        }
        Ok(())
    }

    /// Resets the counters: only usage from the next sample on counts.
    pub(super) fn reset(&mut self) {
        for one in self.sandboxes.values_mut() {
            (one.last, one.peak, one.usage) = (None, 0, SandboxUsage::default());
            one.writers.clear();
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &DiscoveredSandbox> {
        self.sandboxes.values().map(|one| &one.found)
    }

    pub(super) fn name(&self, incarnation: &str) -> &str {
        self.sandboxes.get(incarnation).map_or("", |one| &one.name)
    }

    /// Why this host cannot pause a sandbox, if so.
    pub(super) fn no_freezer(&self) -> Option<&MissingController> {
        match self.host.location(Controller::Freezer) {
            ControllerLocation::Missing(missing) => Some(missing),
            ControllerLocation::V1(_) | ControllerLocation::V2(_) => None,
        }
    }

    pub(super) fn slow_down(&self, incarnation: &str) {
        self.of(incarnation, |one| one.cgroup.slow_down());
    }

    pub(super) fn speed_up(&self, incarnation: &str) {
        self.of(incarnation, |one| one.cgroup.speed_up(one.share));
    }

    /// Restores the CPU shares of all sandboxes.
    pub(super) fn speed_up_all(&self) {
        self.sandboxes.keys().for_each(|incarnation| self.speed_up(incarnation));
    }

    /// Kills the processes that wrote before the last sample, except for pid 1, which would end the sandbox.
    pub(super) fn kill_writers(&self, incarnation: &str) {
        self.of(incarnation, |one| {
            let writers: Vec<u32> = one.writers.iter().copied().filter(|pid| !is_first(*pid)).collect();
            one.cgroup.kill(&writers)
        });
    }

    fn of(&self, incarnation: &str, act: impl FnOnce(&SampledSandbox) -> Result<(), CgroupError>) {
        let Some(one) = self.sandboxes.get(incarnation) else { return };
        if let Err(error) = act(one) {
            // A host without that limit: it can still be paused.
            tracing::debug!(sandbox = one.name, %error, "failed to slow down a sandbox");
        }
    }
}

// === impl SampledSandbox ===

impl SampledSandbox {
    fn sample(&mut self) -> Result<(), CgroupError> {
        let now = self.cgroup.activity()?;
        let total = now.written.values().sum();
        if let Some(last) = &self.last {
            let written = u64::saturating_sub(total, self.peak);
            let system = Duration::from_nanos(now.system_nanos.saturating_sub(last.system_nanos));
            self.usage = SandboxUsage { written, system };
            self.writers = now.writers_since(last).into_iter().map(|(pid, _)| pid).collect();
        }
        self.peak = self.peak.max(total);
        self.last = Some(now);
        Ok(())
    }
}

/// Whether a process is pid 1 of its sandbox.
fn is_first(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.and_then(|ids| ids.split_whitespace().last()).is_none_or(|id| id == "1")
}
