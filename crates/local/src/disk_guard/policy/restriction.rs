//! A sandbox that is slowed down or paused, and what it does meanwhile.

use std::time::{Duration, Instant};

use super::{FreeSpaceTrend, SandboxUsage};

/// The share of system time above which a slowed sandbox counts as still active.
const SLOW_WORK: f64 = 0.01;
/// Recent usage covers between one and two times this long.
const RECENT: Duration = Duration::from_millis(500);

/// A restricted sandbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restriction {
    pub(super) kind: RestrictionKind,
    pub(super) since: Instant,
    /// The resource that fell, its rate before, and its free, remaining and total amounts at that time.
    pub(super) resource: usize,
    pub(super) rate: f64,
    pub(super) free: u64,
    pub(super) left: u64,
    pub(super) all: u64,
    /// The usage since the restriction.
    pub(super) written: u64,
    pub(super) system: Duration,
    pub(super) recent: RecentUsage,
    /// The share of system time before.
    pub(super) work: f64,
    /// Whether counted writes identified it, rather than its system time.
    pub(super) identified: bool,
    /// Whether a trial confirmed it, and whether the trial was inconclusive.
    pub(super) confirmed: bool,
    pub(super) unclear: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestrictionKind {
    Slowed,
    Paused,
}

/// The result of restricting a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialResult {
    /// The fall stopped.
    Confirmed,
    /// The fall continued.
    Cleared,
    /// The fall continued, and the suspect's usage did not drop either.
    Inconclusive,
}

/// The usage in a current and a previous period.
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
            identified: false,
            confirmed,
            unclear: false,
        }
    }

    pub(super) fn add(&mut self, now: Instant, usage: SandboxUsage) {
        self.written = self.written.saturating_add(usage.written);
        self.system += usage.system;
        self.recent.add(now, usage);
    }

    /// Judges by whether the fall stopped after the restriction.
    pub(super) fn tried(&self, fall: &FreeSpaceTrend, elapsed: Duration) -> TrialResult {
        let fell = self.free.saturating_sub(fall.free.get(self.resource).copied().unwrap_or(0));
        let lasts = fell as f64 / elapsed.as_secs_f64() > self.rate / 2.0;
        // A process inside a long system call slows down only after it.
        let writes_on = self.resource == 0 && self.written >= fell / 2;
        // On a busy host it may have had so little CPU time before that slowing down changes nothing.
        let works_on =
            self.kind == RestrictionKind::Slowed && self.system.as_secs_f64() / elapsed.as_secs_f64() > self.work / 2.0;
        match (lasts && !writes_on, works_on) {
            (false, _) => TrialResult::Confirmed,
            (true, true) => TrialResult::Inconclusive,
            (true, false) => TrialResult::Cleared,
        }
    }

    /// Its recent rate per second. For a sandbox whose writes are not counted, that is the rate of the whole fall while it
    /// uses system time.
    pub(super) fn takes(&self, now: Instant, fall: &FreeSpaceTrend) -> f64 {
        let (written, work) = self.recent.per_second(now);
        // On a busy host it may have had little CPU time before.
        match (self.identified && self.resource == 0, work >= SLOW_WORK.min(self.work / 25.0)) {
            (true, _) => written,
            (false, true) => fall.window_rate.get(self.resource).copied().unwrap_or(0.0),
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

    /// The bytes and system time per second.
    fn per_second(&self, now: Instant) -> (f64, f64) {
        let (time, mut usage) = self.before;
        usage.add(self.usage);
        let time = (time + now.saturating_duration_since(self.since)).as_secs_f64().max(0.001);
        (usage.written as f64 / time, usage.system.as_secs_f64() / time)
    }
}
