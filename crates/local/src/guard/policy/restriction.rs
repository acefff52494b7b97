//! One who is kept from writing, and what it does all the same.

use std::time::{Duration, Instant};

use super::{FreeSpaceTrend, SandboxUsage};

/// How much of the time the kernel works for one who goes on although it was slowed down.
const SLOW_WORK: f64 = 0.01;
/// What one does is looked at for once to twice this long.
const RECENT: Duration = Duration::from_millis(500);

/// One who is kept from writing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restriction {
    pub(super) kind: RestrictionKind,
    pub(super) since: Instant,
    /// What fell, how fast it fell before, and what was free, left and there in all then.
    pub(super) resource: usize,
    pub(super) rate: f64,
    pub(super) free: u64,
    pub(super) left: u64,
    pub(super) all: u64,
    /// What it has written since, and how long the kernel has worked for it.
    pub(super) written: u64,
    pub(super) system: Duration,
    /// The same in the last moments.
    pub(super) recent: RecentUsage,
    /// How much of the time the kernel worked for it before.
    pub(super) work: f64,
    /// Whether it was found by what it was seen to write, and not by how busy it keeps the kernel.
    pub(super) seen: bool,
    /// Whether it was looked at whether it was the one, and whether that could be told.
    pub(super) confirmed: bool,
    pub(super) unclear: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestrictionKind {
    Slowed,
    Paused,
}

/// What is seen when one is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialResult {
    /// The fall ended with that.
    Guilty,
    /// It did not.
    Innocent,
    /// It did not, and the one that was held did not do less either.
    Unclear,
}

/// What one did in the last moments: since some moment, and for some time before that.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentUsage {
    since: Instant,
    usage: SandboxUsage,
    before: (Duration, SandboxUsage),
}

// === impl Restriction ===

impl Restriction {
    pub(super) fn new(kind: RestrictionKind, since: Instant, confirmed: bool) -> Self {
        Self {
            kind,
            since,
            resource: 0,
            rate: 0.0,
            free: 0,
            left: 0,
            all: 0,
            written: 0,
            system: Duration::ZERO,
            recent: RecentUsage {
                since,
                usage: SandboxUsage::default(),
                before: (Duration::ZERO, SandboxUsage::default()),
            },
            work: 0.0,
            seen: false,
            confirmed,
            unclear: false,
        }
    }

    /// Adds what it did until now.
    pub(super) fn add(&mut self, now: Instant, usage: SandboxUsage) {
        self.written = self.written.saturating_add(usage.written);
        self.system += usage.system;
        self.recent.add(now, usage);
    }

    /// What is seen from a fall that ended when it was held, or did not.
    pub(super) fn tried(&self, fall: &FreeSpaceTrend, elapsed: Duration) -> TrialResult {
        let fell = self.free.saturating_sub(fall.free.get(self.resource).copied().unwrap_or(0));
        let lasts = fell as f64 / elapsed.as_secs_f64() > self.rate / 2.0;
        // One who writes in the middle of a system call is slowed down only after that.
        let writes_on = self.resource == 0 && self.written >= fell / 2;
        // On a busy host one may have had so little before that it has as much now.
        let works_on =
            self.kind == RestrictionKind::Slowed && self.system.as_secs_f64() / elapsed.as_secs_f64() > self.work / 2.0;
        match (lasts && !writes_on, works_on) {
            (false, _) => TrialResult::Guilty,
            (true, true) => TrialResult::Unclear,
            (true, false) => TrialResult::Innocent,
        }
    }

    /// How much it takes in a second, by what it did in the last moments. Of one who is not seen to write that is all
    /// that falls, as long as it keeps the kernel busy.
    pub(super) fn takes(&self, now: Instant, fall: &FreeSpaceTrend) -> f64 {
        let (written, work) = self.recent.per_second(now);
        // On a busy host it may have had little before.
        match (self.seen && self.resource == 0, work >= SLOW_WORK.min(self.work / 25.0)) {
            (true, _) => written,
            (false, true) => fall.lasting.get(self.resource).copied().unwrap_or(0.0),
            (false, false) => 0.0,
        }
    }
}

// === impl RecentUsage ===

impl RecentUsage {
    fn add(&mut self, now: Instant, usage: SandboxUsage) {
        self.usage.add(usage);
        let time = now.saturating_duration_since(self.since);
        if time >= RECENT {
            *self = Self { since: now, usage: SandboxUsage::default(), before: (time, self.usage) };
        }
    }

    /// How many bytes are written, and how long the kernel works.
    fn per_second(&self, now: Instant) -> (f64, f64) {
        let (time, mut usage) = self.before;
        usage.add(self.usage);
        let time = (time + now.saturating_duration_since(self.since)).as_secs_f64().max(0.001);
        (usage.written as f64 / time, usage.system.as_secs_f64() / time)
    }
}
