//! While the sandbox lives: pausing it, its disk, its memory, and what it uses.

use std::time::{Duration, Instant};

use carrel_shim_client::messages::{Fact, FactKind, Statistics};

use super::Server;
use crate::failpoint::{Failpoint, reached};
use crate::log::wall_ms;

/// How often the host's own disk is looked at, where the sandbox writes to it.
const DISK: Duration = Duration::from_secs(1);
/// How often it is recorded that processes were ended for want of memory.
const KILLS: Duration = Duration::from_secs(1);
/// When is counted again who was ended for want of memory: the kernel says that memory ran out before it ends anybody.
const COUNTS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(5)];

impl Server {
    pub(super) fn pause(&mut self) -> Result<(), String> {
        if self.ending.is_some() {
            return Err("a sandbox that is ending cannot be paused".to_owned());
        }
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup cannot be paused")?;
        if self.paused.is_some() {
            return Ok(());
        }
        reached(Failpoint::Pausing);
        cgroup.freeze().map_err(|error| error.to_string())?;
        self.paused = Some(Instant::now());
        self.record(Fact::new(wall_ms(), FactKind::Paused));
        reached(Failpoint::Paused);
        Ok(())
    }

    pub(super) fn resume(&mut self) -> Result<(), String> {
        let cgroup = self.running.cgroup.as_ref().ok_or("a sandbox without a cgroup is never paused")?;
        cgroup.thaw().map_err(|error| error.to_string())?;
        self.disk_full = false;
        if let Some(since) = self.paused.take() {
            self.jobs.postpone(since, Instant::now());
            self.record(Fact::new(wall_ms(), FactKind::Resumed));
        }
        Ok(())
    }

    /// Records something that happened, for those who listen.
    pub(super) fn record(&mut self, fact: Fact) {
        self.log.note(fact);
        self.desk.stirred = true;
    }

    /// Pauses the sandbox before the host's own disk is full, and lets it continue when there is room again.
    pub(super) fn watch_disk(&mut self, now: Instant) {
        if self.disk.is_none_or(|due| now < due) {
            return;
        }
        // Whoever ends writes no more.
        self.disk = self.ending.is_none().then_some(now + DISK);
        if self.ending.is_some() {
            return;
        }
        let free = self.running.container.kept_disk().and_then(|disk| disk.host_free().ok());
        let full = free.is_some_and(|free| self.running.watermark.is_reached(free));
        if full && self.paused.is_none() {
            self.disk_full = self.pause().is_ok();
        } else if !full && std::mem::take(&mut self.disk_full) {
            let _continued = self.resume();
        }
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
