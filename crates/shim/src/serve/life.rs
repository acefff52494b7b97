//! While the sandbox lives: pausing it, its disk, its memory, and what it uses.

use std::time::{Duration, Instant};

use carrel_shim_client::messages::{EndReason, Fact, FactKind, PauseReason, Statistics};

use super::Server;
use crate::failpoint::{Failpoint, reached};
use crate::log::wall_ms;

/// How often the host's own disk is looked at, where the sandbox writes to it: rarely while nobody could fill it in between.
const DISK: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// No host makes files dirty faster than this, in bytes a second.
const FASTEST: u64 = 4 << 30;
/// What the sandbox has to have written that is on no disk yet to be one who writes.
const WRITES: u64 = 1 << 20;
/// For how long it is left alone when its user lets it continue, so that it can make room, and what it may write meanwhile.
const GRACE: Duration = Duration::from_secs(10);
const GRANTED: u64 = 8 << 20;
/// How often it is recorded that processes were ended for want of memory.
const KILLS: Duration = Duration::from_secs(1);
/// When is counted again who was ended for want of memory: the kernel says that memory ran out before it ends anybody.
const COUNTS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

/// How often is looked at what it takes of the kernel's memory: while it does something, and while it does not. For as
/// long it takes some unseen, 1.2 GB a second and processor at worst. A look at one that does nothing costs 2 µs, and to wake up for it
/// 50 µs on a host that does something else meanwhile.
const KERNEL_MEMORY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// What is looked at for long is left alone for so many times as long.
const LOOKS: u32 = 9;

/// What is said of one that ended for want of memory.
pub(super) const OUT_OF_MEMORY: &str = "the sandbox ran out of memory";
/// What is said of a pause that nobody asked for.
const HOST_DISK: &str = "host disk low";

impl Server {
    /// Stops all processes. One who is paused for a reason and then by its owner is its owner's to resume.
    pub(super) fn pause(&mut self, reason: Option<PauseReason>) -> Result<(), String> {
        if self.ending.is_some() {
            return Err("a sandbox that is ending cannot be paused".to_owned());
        }
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup cannot be paused")?;
        if self.paused.is_some() {
            if reason.is_none() && self.pause_reason.take().is_some() {
                self.record(Fact::new(wall_ms(), FactKind::Paused));
            }
            return Ok(());
        }
        reached(Failpoint::Pausing);
        cgroup.freeze().map_err(|error| error.to_string())?;
        self.paused = Some(Instant::now());
        self.pause_reason = reason;
        let message = (reason == Some(PauseReason::HostDisk)).then(|| self.host_disk());
        self.record(Fact { message, pause_reason: reason, ..Fact::new(wall_ms(), FactKind::Paused) });
        reached(Failpoint::Paused);
        Ok(())
    }

    /// Lets all processes continue; if only a pause for some reason is to end, no other does.
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

    /// That the host's disk is low, with how low it is.
    fn host_disk(&self) -> String {
        let reserve = self.running.reserve;
        let free = self.running.container.kept_disk().and_then(|disk| disk.host_free().ok());
        match free.filter(|_| reserve.is_some()) {
            Some(free) => format!("{HOST_DISK}: {}", reserve.describe_pause(free, reserve.resume_threshold(free))),
            None => HOST_DISK.to_owned(),
        }
    }

    /// Records something that happened, for those who listen.
    pub(super) fn record(&mut self, fact: Fact) {
        self.log.note(fact);
        self.desk.stirred = true;
    }

    /// Pauses the sandbox if it writes while less is free on the host's own disk than has to be, and lets it continue
    /// when there is room again. Whoever supervises it sees to the disk earlier and better: this is for when nobody does.
    pub(super) fn watch_disk(&mut self, now: Instant) {
        if self.disk.is_none_or(|due| now < due) {
            return;
        }
        // Whoever ends writes no more.
        self.disk = None;
        if self.ending.is_some() {
            return;
        }
        let reserve = self.running.reserve;
        let Some(free) = self.running.container.kept_disk().and_then(|disk| disk.host_free().ok()) else { return };
        if reserve.is_touched(free) {
            if self.paused.is_none() && self.writes(now) {
                self.disk_full = self.pause(Some(PauseReason::HostDisk)).is_ok().then_some(free);
            }
        } else if self.disk_full.is_some_and(|paused_at| reserve.has_room_again(paused_at, free)) {
            let _continued = self.resume(Some(PauseReason::HostDisk));
        }
        let [shortest, longest] = DISK;
        let left = free.bytes.saturating_sub(reserve.bytes);
        let half = Duration::from_millis(left / (FASTEST / 1000) / 2);
        self.disk = Some(now + half.clamp(shortest, longest));
    }

    /// Whether the sandbox has written just now. What it writes past the memory of the host is not seen from here.
    fn writes(&mut self, now: Instant) -> bool {
        self.grace = self.grace.filter(|(until, _)| now < *until);
        self.unwritten() >= self.grace.map_or(WRITES, |(_, most)| most)
    }

    fn unwritten(&self) -> u64 {
        self.running.cgroup.as_ref().and_then(|cgroup| cgroup.unwritten_bytes().ok()).unwrap_or(0)
    }

    // --- memory

    /// The kernel says that memory ran out.
    pub(super) fn hear_memory(&mut self) {
        let understood = self.running.memory.as_ref().is_none_or(|memory| memory.acknowledge().is_ok());
        if !understood {
            // It would be ready from now on.
            if let Some(memory) = self.running.memory.take() {
                self.poller.remove(&memory);
            }
        }
        self.count_again = Some((Instant::now(), 0));
    }

    /// Counts when that is due; returns when it is due again.
    pub(super) fn count_when_due(&mut self, now: Instant) -> Option<Instant> {
        let (due, tries) = self.count_again?;
        if due > now {
            return Some(due);
        }
        let before = self.kills;
        self.count_again = None;
        self.note_kills();
        if self.count_again.is_none() {
            let next = COUNTS.get(tries as usize).filter(|_| self.kills == before);
            self.count_again = next.map(|wait| (now + *wait, tries + 1));
        }
        self.count_again.map(|(due, _)| due)
    }

    /// Records that processes were ended for want of memory, if there are more than before.
    pub(super) fn note_kills(&mut self) {
        self.kills = self.count_kills().max(self.kills);
        let now = Instant::now();
        // One after the other is one fact: a sandbox could fill its journal with them.
        let soon = self.kills_told.1.and_then(|told| told.checked_add(KILLS)).filter(|soon| *soon > now);
        match soon {
            _ if self.kills <= self.kills_told.0 => {}
            Some(soon) if !self.over => self.count_again = Some((soon, 0)),
            _ => {
                self.kills_told = (self.kills, Some(now));
                let kills = Some(self.kills);
                self.record(Fact { out_of_memory_kills: kills, ..Fact::new(wall_ms(), FactKind::OutOfMemory) });
            }
        }
    }

    pub(super) fn count_kills(&self) -> u64 {
        let counted = self.running.cgroup.as_ref().and_then(|cgroup| cgroup.out_of_memory_kills().ok());
        counted.unwrap_or(self.kills)
    }

    /// Ends a sandbox that takes more of the kernel's memory than it may besides its limit. One in which nothing runs but
    /// the agent is left alone until there is something to do for it.
    pub(super) fn watch_kernel_memory(&mut self, now: Instant) {
        if self.kernel_memory.is_none_or(|due| now < due) {
            return;
        }
        self.kernel_memory = None;
        // Whoever is killed, or stopped, takes no more.
        if self.killed || self.paused.is_some() {
            return;
        }
        let look = self.running.kernel_memory.look();
        if let Some(overuse) = look.overuse {
            self.end(EndReason::OutOfMemory, format!("{OUT_OF_MEMORY}: {overuse}"), Duration::ZERO);
        } else if self.rest.is_some() || look.busy || !self.is_alone() {
            let [busy, idle] = KERNEL_MEMORY;
            let took = now.elapsed();
            self.kernel_memory = Some(now + took + (took * LOOKS).max(if look.busy { busy } else { idle }));
        }
    }

    /// Whether the agent is all that runs in the sandbox.
    fn is_alone(&self) -> bool {
        let processes = self.running.cgroup.as_ref().and_then(|cgroup| cgroup.processes().ok());
        processes.is_some_and(|processes| processes.len() <= 1)
    }

    pub(super) fn statistics(&self) -> Result<Statistics, String> {
        let used = match &self.running.cgroup {
            Some(cgroup) => cgroup.statistics().map_err(|error| error.to_string())?,
            None => carrel_sandbox::cgroup::Statistics::default(),
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
