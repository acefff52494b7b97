//! A running sandbox: pause and resume, disk, memory, and statistics.

use std::time::{Duration, Instant};

use carrel_failpoint::Failpoints;
use carrel_shim_client::messages::{EndReason, Fact, FactKind, PauseReason, Statistics};

use super::ShimServer;
use crate::failpoint::Failpoint;
use crate::journal::wall_ms;

/// The interval for checking the host's disk: short only when it could fill up in between.
const DISK: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// The maximum rate at which a host dirties pages, in bytes per second.
const FASTEST: u64 = 4 << 30;
/// The dirty bytes from which on a sandbox counts as writing.
const WRITES: u64 = 1 << 20;
/// How long it is left alone after its user resumed it, so that it can free space, and what it may write meanwhile.
const GRACE: Duration = Duration::from_secs(10);
const GRANTED: u64 = 8 << 20;
/// The minimum interval of recorded OOM kills.
const KILLS: Duration = Duration::from_secs(1);
/// When OOM kills are counted again: the kernel notifies before it kills.
const COUNTS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

/// The interval for checking its kernel memory: while it is active, and while it is idle. In between it can allocate
/// unnoticed, 1.2 GB per second and CPU at worst. A check of an idle sandbox costs 2 µs, and the wakeup for it 50 µs on
/// a busy host.
const KERNEL_MEMORY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// The ratio of idle to checking time.
const LOOKS: u32 = 9;

/// The message for a sandbox that was OOM-killed.
pub(super) const OUT_OF_MEMORY: &str = "the sandbox ran out of memory";
/// The message for a pause by the shim.
const HOST_DISK: &str = "host disk low";

impl ShimServer {
    /// Pauses all processes. A sandbox paused for a reason and then by its owner must be resumed by its owner.
    pub(super) fn pause(&mut self, reason: Option<PauseReason>) -> Result<(), String> {
        if self.ending.is_some() {
            return Err("sandbox is shutting down and cannot be paused".to_owned());
        }
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup cannot be paused")?;
        if self.paused.is_some() {
            if reason.is_none() && self.pause_reason.take().is_some() {
                self.record(Fact::new(wall_ms(), FactKind::Paused));
            }
            return Ok(());
        }
        Failpoint::Pausing.reached();
        cgroup.freeze().map_err(|error| error.to_string())?;
        self.paused = Some(Instant::now());
        self.pause_reason = reason;
        let message = (reason == Some(PauseReason::HostDisk)).then(|| self.host_disk_message());
        self.record(Fact { message, pause_reason: reason, ..Fact::new(wall_ms(), FactKind::Paused) });
        Failpoint::Paused.reached();
        Ok(())
    }

    /// Resumes all processes; with a reason, only if the sandbox is paused for it.
    pub(super) fn resume(&mut self, reason: Option<PauseReason>) -> Result<(), String> {
        if reason.is_some() && reason != self.pause_reason {
            return Ok(());
        }
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup is never paused")?;
        cgroup.thaw().map_err(|error| error.to_string())?;
        if reason.is_none() && self.pause_reason == Some(PauseReason::HostDisk) {
            self.grace = Some((Instant::now() + GRACE, self.unwritten().saturating_add(GRANTED)));
        }
        (self.pause_reason, self.disk_full) = (None, None);
        self.kernel_memory.get_or_insert_with(Instant::now);
        if let Some(since) = self.paused.take() {
            self.jobs.postpone(since, Instant::now());
            self.record(Fact::new(wall_ms(), FactKind::Resumed));
        }
        Ok(())
    }

    /// The message for a low host disk, with the numbers.
    fn host_disk_message(&self) -> String {
        let reserve = self.running.reserve;
        let free = self.running.container.persistent_disk().and_then(|disk| disk.host_free().ok());
        match free.filter(|_| reserve.is_some()) {
            Some(free) => format!("{HOST_DISK}: {}", reserve.describe_pause(free, reserve.resume_threshold(free))),
            None => HOST_DISK.to_owned(),
        }
    }

    /// Records a fact and notifies subscribers.
    pub(super) fn record(&mut self, fact: Fact) {
        self.log.record(fact);
        self.control_socket.stirred = true;
    }

    /// Pauses the sandbox if it writes while the host's disk is below its reserve, and resumes it when there is space
    /// again. A supervising daemon reacts earlier: this is the fallback without one.
    pub(super) fn watch_disk(&mut self, now: Instant) {
        if self.disk.is_none_or(|due| now < due) {
            return;
        }
        // A sandbox that is shutting down writes no more.
        self.disk = None;
        if self.ending.is_some() {
            return;
        }
        let reserve = self.running.reserve;
        let Some(free) = self.running.container.persistent_disk().and_then(|disk| disk.host_free().ok()) else {
            return;
        };
        if reserve.is_touched(free) {
            if self.paused.is_none() && self.writes(now) {
                self.disk_full = self.pause(Some(PauseReason::HostDisk)).is_ok().then_some(free);
            }
        } else if self.disk_full.is_some_and(|paused_at| reserve.allows_resume(paused_at, free)) {
            let _continued = self.resume(Some(PauseReason::HostDisk));
        }
        let [shortest, longest] = DISK;
        let left = free.bytes.saturating_sub(reserve.bytes);
        let half = Duration::from_millis(left / (FASTEST / 1000) / 2);
        self.disk = Some(now + half.clamp(shortest, longest));
    }

    /// Whether the sandbox has written recently. Direct I/O is not visible here.
    fn writes(&mut self, now: Instant) -> bool {
        self.grace = self.grace.filter(|(until, _)| now < *until);
        self.unwritten() >= self.grace.map_or(WRITES, |(_, most)| most)
    }

    fn unwritten(&self) -> u64 {
        self.running.cgroup.as_ref().and_then(|cgroup| cgroup.unwritten_bytes().ok()).unwrap_or(0)
    }

    // --- memory

    /// The kernel reports that memory ran out.
    pub(super) fn handle_oom_event(&mut self) {
        let understood = self.running.memory.as_ref().is_none_or(|memory| memory.acknowledge().is_ok());
        if !understood {
            // It would be ready from now on.
            if let Some(memory) = self.running.memory.take() {
                self.poller.remove(&memory);
            }
        }
        self.count_again = Some((Instant::now(), 0));
    }

    /// Counts OOM kills when it is due; returns when it is due again.
    pub(super) fn count_when_due(&mut self, now: Instant) -> Option<Instant> {
        let (due, tries) = self.count_again?;
        if due > now {
            return Some(due);
        }
        let before = self.kills;
        self.count_again = None;
        self.record_kills();
        if self.count_again.is_none() {
            let next = COUNTS.get(tries as usize).filter(|_| self.kills == before);
            self.count_again = next.map(|wait| (now + *wait, tries + 1));
        }
        self.count_again.map(|(due, _)| due)
    }

    /// Records OOM kills, if is_connected are more than before.
    pub(super) fn record_kills(&mut self) {
        self.kills = self.count_kills().max(self.kills);
        let now = Instant::now();
        // Repeated kills are merged into one fact: a sandbox could fill its journal otherwise.
        let soon = self.recorded_kills.1.and_then(|recorded| recorded.checked_add(KILLS)).filter(|soon| *soon > now);
        match soon {
            _ if self.kills <= self.recorded_kills.0 => {}
            Some(soon) if !self.guest_exited => self.count_again = Some((soon, 0)),
            _ => {
                self.recorded_kills = (self.kills, Some(now));
                let kills = Some(self.kills);
                self.record(Fact { out_of_memory_kills: kills, ..Fact::new(wall_ms(), FactKind::OutOfMemory) });
            }
        }
    }

    pub(super) fn count_kills(&self) -> u64 {
        let counted = self.running.cgroup.as_ref().and_then(|cgroup| cgroup.out_of_memory_kills().ok());
        counted.unwrap_or(self.kills)
    }

    /// Ends a sandbox that uses too much kernel memory beyond its limit. One in which only the agent runs is left alone
    /// until there is work for it.
    pub(super) fn watch_kernel_memory(&mut self, now: Instant) {
        if self.kernel_memory.is_none_or(|due| now < due) {
            return;
        }
        self.kernel_memory = None;
        // Killed or paused processes allocate no more.
        if self.killed || self.paused.is_some() {
            return;
        }
        let sample = self.running.kernel_memory.check();
        if let Some(overuse) = sample.overuse {
            self.end(EndReason::OutOfMemory, format!("{OUT_OF_MEMORY}: {overuse}"), Duration::ZERO);
        } else if self.rest.is_some() || sample.busy || !self.is_alone() {
            let [busy, idle] = KERNEL_MEMORY;
            let took = now.elapsed();
            self.kernel_memory = Some(now + took + (took * LOOKS).max(if sample.busy { busy } else { idle }));
        }
    }

    /// Whether only the agent runs in the sandbox.
    fn is_alone(&self) -> bool {
        let processes = self.running.cgroup.as_ref().and_then(|cgroup| cgroup.processes().ok());
        processes.is_some_and(|processes| processes.len() <= 1)
    }

    pub(super) fn statistics(&self) -> Result<Statistics, String> {
        let used = match &self.running.cgroup {
            Some(cgroup) => cgroup.statistics().map_err(|error| error.to_string())?,
            None => carrel_sandbox::cgroup::CgroupStatistics::default(),
        };
        let totals = self.relay.totals();
        Ok(Statistics {
            memory_bytes: used.memory_bytes,
            memory_peak: used.memory_peak,
            out_of_memory_kills: used.out_of_memory_kills,
            pids: used.pids,
            cpu_nanos: used.cpu_nanos,
            clients: self.relay.clients() as u64,
            bytes_out: totals.to_clients,
            bytes_in: totals.from_clients,
            stray_frames: totals.stray_frames,
            paused: self.paused.is_some(),
        })
    }
}
