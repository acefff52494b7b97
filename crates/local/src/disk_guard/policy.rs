//! The decisions of the disk guard: which sandbox to restrict before the host's disk is full. Pure: it does no I/O and reads
//! no clock.
//!
//! The rate at which free space falls predicts when it is used up. Below a few seconds, the sandbox that writes is slowed
//! down; if the fall then stops, that sandbox was the cause. Below one second it is paused. No other sandbox is restricted.
//! A slowed sandbox is paused if it keeps writing, and released when it is quiet.

mod restriction;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use carrel_sandbox::{FreeSpace, FreeSpaceReserve, ResumeThreshold, resume_free_bytes};

use self::restriction::{Restriction, RestrictionKind, TrialResult};

/// The highest rate at which a host can dirty bytes or create inodes, per second.
const FASTEST: [f64; 2] = [(4_u64 << 30) as f64, 200_000.0];
/// A slower fall is not treated as an attack.
const SLOWEST: [f64; 2] = [(1 << 20) as f64, 100.0];
/// The check intervals: the longest, the shortest, and the one during a fast fall.
const LONGEST: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_millis(20);
const ALARMED: Duration = Duration::from_millis(10);
/// The check interval when only the reserve is left.
const SPENT: Duration = Duration::from_millis(100);
/// The predicted seconds until the space is used up below which a sandbox is slowed down, and below which it is paused.
const SLOW: f64 = 4.0;
const STOP: f64 = 1.0;
/// The window over which the rate is measured, so that a burst does not count as a sustained rate.
const WINDOW: Duration = Duration::from_millis(250);
/// How long it takes to see whether a fall has stopped.
const TRIAL: Duration = Duration::from_millis(100);
/// How long usage is accumulated.
const ACCOUNT: Duration = Duration::from_millis(500);
/// For how long a cleared sandbox is not suspected again.
const CLEARED: Duration = Duration::from_secs(2);
/// For how long a slowed sandbox may continue, and for how many seconds the space must last at its current rate.
const SLOWED: Duration = Duration::from_secs(5);
const LASTS: f64 = 100.0;
/// How long a slowed sandbox is observed before it counts as quiet, and the highest rate of a quiet one: so low that it would
/// not count as an attack at its full CPU share either.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_RATE: [f64; 2] = [(64 << 10) as f64, 5.0];
/// For how long all sandboxes are sampled after a fall: a sandbox that writes in bursts is found at its next burst.
const WARY: Duration = Duration::from_secs(300);
/// For how long a sandbox that its user resumed is left alone, so that it can free space.
const GRACE: Duration = Duration::from_secs(10);
/// How much may be written in total, too slowly to count as an attack, when almost only the reserve is left. It is kept free
/// in addition to the reserve.
const ALLOWANCE: u64 = 16 << 20;
/// The least written bytes per sample, and the least share of system time, that make a sandbox a suspect.
const MIN_WRITTEN: u64 = 64 << 10;
const MIN_WORK: f64 = 0.05;

/// The usage of a sandbox since the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SandboxUsage {
    /// The bytes that it wrote.
    pub(super) written: u64,
    /// The system CPU time that it used.
    pub(super) system: Duration,
}

/// An action on a sandbox, named by its incarnation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GuardAction {
    /// Reduce its CPU share.
    SlowDown(String),
    /// Restore the CPU share of its limit.
    SpeedUp(String),
    /// Freeze all its processes.
    Pause(String),
    /// Pausing did not stop its writes: kill the processes that write.
    KillWriters(String),
    /// Thaw its processes.
    Resume(String),
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuardDecision {
    pub(super) actions: Vec<GuardAction>,
    /// The time until the next check.
    pub(super) next: Duration,
    /// Whether the next check needs the usage of each sandbox.
    pub(super) measure: bool,
}

/// The state that is kept between checks.
#[derive(Debug)]
pub(super) struct GuardPolicy {
    /// What is kept free: the configured reserve plus the allowance.
    reserve: FreeSpaceReserve,
    allowance: u64,
    /// The free space at recent checks.
    samples: VecDeque<(Instant, [u64; 2])>,
    /// The usage of each sandbox since some time, and the free space then; none while sandboxes are not sampled.
    usage_window: Option<UsageWindow>,
    restricted: HashMap<String, Restriction>,
    /// The sandboxes that were cleared, and until when.
    cleared: HashMap<String, Instant>,
    /// The bytes that each sandbox wrote since only the reserve is left.
    spent: HashMap<String, u64>,
    /// The sandboxes that their users resumed: until when, and for how many bytes, they are left alone.
    graced: HashMap<String, (Instant, u64)>,
    /// The bytes that those wrote since only the reserve is left.
    granted: HashMap<String, u64>,
    /// Until when another burst is expected.
    watch_until: Option<Instant>,
}

/// The usage of each sandbox over some time, with the free space at its start.
#[derive(Debug)]
struct UsageWindow {
    since: Instant,
    free: [u64; 2],
    usage: HashMap<String, SandboxUsage>,
}

/// The remaining space and the rate at which it falls.
struct FreeSpaceTrend {
    free: [u64; 2],
    left: [u64; 2],
    all: [u64; 2],
    rate: [f64; 2],
    /// The rate averaged over the whole window.
    window_rate: [f64; 2],
    /// The resource that is used up first, and in how many seconds.
    resource: usize,
    seconds: f64,
}

// === impl GuardPolicy ===

impl GuardPolicy {
    pub(super) fn new(reserve: FreeSpaceReserve) -> Self {
        let allowance = ALLOWANCE.min(reserve.bytes / 16);
        let inodes = reserve.inodes.map(|inodes| inodes.saturating_add(inodes / 8));
        let reserve = FreeSpaceReserve { bytes: reserve.bytes.saturating_add(2 * allowance), inodes };
        Self {
            reserve,
            allowance,
            samples: VecDeque::new(),
            usage_window: None,
            restricted: HashMap::new(),
            cleared: HashMap::new(),
            spent: HashMap::new(),
            graced: HashMap::new(),
            granted: HashMap::new(),
            watch_until: None,
        }
    }

    /// Adds a sandbox that was paused before the guard started.
    pub(super) fn was_paused(&mut self, sandbox: String, now: Instant, free: FreeSpace) {
        let [left, _] = self.left(free);
        let restricted = Restriction::new(RestrictionKind::Paused, now, true);
        self.restricted.insert(sandbox, Restriction { left, free: free.bytes, all: free.all_bytes, ..restricted });
    }

    /// The user resumed a paused sandbox: it is left alone for a while, so that it can free space. When only the reserve is
    /// left, it may write a limited amount, which repeated resumes do not extend.
    pub(super) fn was_resumed(&mut self, sandbox: String, now: Instant, free: FreeSpace) {
        if self.restricted.get(&sandbox).is_none_or(|restricted| restricted.kind != RestrictionKind::Paused) {
            return;
        }
        self.restricted.remove(&sandbox);
        let bytes = match self.left(free) {
            [0, _] => self.allowance.saturating_sub(self.granted.get(&sandbox).copied().unwrap_or(0)),
            [left, _] => (left / 4).max(self.allowance.min(left)),
        };
        self.graced.insert(sandbox, (now + GRACE, bytes));
    }

    /// Removes a sandbox that is gone or could not be paused.
    pub(super) fn forget(&mut self, sandbox: &str) {
        self.restricted.remove(sandbox);
    }

    /// Whether any sandbox is restricted.
    pub(super) fn has_restrictions(&self) -> bool {
        !self.restricted.is_empty()
    }

    /// The free space at which the last paused sandbox resumes; none if none is paused.
    pub(super) fn resumes_at(&self) -> Option<ResumeThreshold> {
        let paused = || self.restricted.values().filter(|restricted| restricted.kind == RestrictionKind::Paused);
        let most = |resource: usize| {
            paused()
                .filter(|restricted| restricted.resource == resource)
                .map(|restricted| self.resume_free(restricted))
                .max()
        };
        most(0).map(ResumeThreshold::Bytes).or_else(|| most(1).map(ResumeThreshold::Inodes))
    }

    /// The free space at which a sandbox resumes, of the resource that it was paused for.
    fn resume_free(&self, restricted: &Restriction) -> u64 {
        let (reserved, more, least) = match restricted.resource {
            0 => (self.reserve.bytes, self.reserve.bytes, self.allowance.max(1)),
            _ => (restricted.free.saturating_sub(restricted.left), restricted.left.max(1), 1),
        };
        resume_free_bytes(more, restricted.free, restricted.all).max(reserved.saturating_add(least))
    }

    /// Decides what to do. Without usage, the sandboxes were not sampled.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        free: FreeSpace,
        usage: Option<&HashMap<String, SandboxUsage>>,
    ) -> GuardDecision {
        let fall = self.free_space_trend(now, free);
        self.cleared.retain(|_, until| *until > now);
        let alarmed = fall.seconds < SLOW;
        self.watch_until = if alarmed { Some(now + WARY) } else { self.watch_until.filter(|until| *until > now) };
        let spent = fall.left.contains(&0);
        self.count(now, &fall, usage);
        let mut actions = self.review_restrictions(now, &fall, usage);
        actions.extend(self.end_grace(now, &fall, usage));
        match usage {
            Some(_) if alarmed => actions.extend(self.suspect(now, &fall)),
            None if alarmed => {}
            _ => actions.extend(self.release(&fall)),
        }
        if spent {
            actions.extend(self.charge(now, &fall, usage));
        } else {
            self.spent.clear();
            self.granted.clear();
        }
        if !actions.is_empty() {
            // The fall so far does not tell which of the remaining sandboxes causes it.
            self.samples.drain(..self.samples.len().saturating_sub(1));
            self.usage_window = None;
        }
        let trial = self.restricted.values().any(|restricted| !restricted.confirmed);
        let slowed = self.restricted.values().any(|restricted| restricted.kind == RestrictionKind::Slowed);
        let next = match self.check_interval(&fall) {
            _ if alarmed || trial => ALARMED,
            _ if !self.graced.is_empty() => ALARMED,
            check_interval if slowed => check_interval.min(SPENT),
            check_interval => check_interval,
        };
        let measure = alarmed || trial || slowed || spent || self.watch_until.is_some() || !self.graced.is_empty();
        GuardDecision { actions, next, measure }
    }

    /// Ends the grace of resumed sandboxes after its time or bytes. One that writes more when only the reserve is left is
    /// paused again.
    fn end_grace(
        &mut self,
        now: Instant,
        fall: &FreeSpaceTrend,
        usage: Option<&HashMap<String, SandboxUsage>>,
    ) -> Vec<GuardAction> {
        let (mut actions, spent) = (Vec::new(), fall.left.contains(&0));
        self.graced.retain(|sandbox, (until, bytes)| {
            let written = usage.and_then(|usage| usage.get(sandbox)).map_or(0, |usage| usage.written);
            if spent && written > 0 {
                let granted = self.granted.entry(sandbox.clone()).or_default();
                *granted = granted.saturating_add(written);
            }
            let enough = written <= *bytes;
            *bytes = bytes.saturating_sub(written);
            if spent && !enough {
                let restricted = fall.restricted(fall.resource, RestrictionKind::Paused, now, true);
                self.restricted.insert(sandbox.clone(), restricted);
                actions.push(GuardAction::Pause(sandbox.clone()));
            }
            enough && *until > now
        });
        actions
    }

    /// Adds the usage since the last sample.
    fn count(&mut self, now: Instant, fall: &FreeSpaceTrend, usage: Option<&HashMap<String, SandboxUsage>>) {
        let Some(usage) = usage else {
            self.usage_window = None;
            return;
        };
        let before = self.samples.iter().rev().nth(1).copied().unwrap_or((now, fall.free));
        let lasts = |usage_window: &UsageWindow| now.saturating_duration_since(usage_window.since) < ACCOUNT;
        let new = || UsageWindow { since: before.0, free: before.1, usage: HashMap::new() };
        let usage_window = self.usage_window.take().filter(lasts).unwrap_or_else(new);
        let usage_window = self.usage_window.insert(usage_window);
        for (sandbox, usage) in usage {
            usage_window.usage.entry(sandbox.clone()).or_default().add(*usage);
        }
    }

    fn left(&self, free: FreeSpace) -> [u64; 2] {
        let inodes = free.inodes.map_or(u64::MAX, |inodes| inodes.saturating_sub(self.reserve.inodes_on(free)));
        [free.bytes.saturating_sub(self.reserve.bytes), inodes]
    }

    fn free_space_trend(&mut self, now: Instant, free: FreeSpace) -> FreeSpaceTrend {
        let (left, all) = (self.left(free), [free.all_bytes, free.all_inodes]);
        let free = [free.bytes, free.inodes.unwrap_or(u64::MAX)];
        self.samples.push_back((now, free));
        // The newest sample older than the window marks its start.
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.samples.pop_front();
        }
        let (began, were) = self.samples.front().copied().unwrap_or((now, free));
        let window = now.saturating_duration_since(began);
        let (rate, window_rate) =
            (per_second(decrease(were, free), window), per_second(decrease(were, free), window.max(WINDOW)));
        let seconds = [0, 1].map(|kind: usize| match (left.get(kind), window_rate.get(kind), SLOWEST.get(kind)) {
            (Some(left), Some(rate), Some(slowest)) if rate >= slowest => *left as f64 / rate,
            _ => f64::INFINITY,
        });
        let [bytes, inodes] = seconds;
        let (resource, seconds) = if inodes < bytes { (1, inodes) } else { (0, bytes) };
        FreeSpaceTrend { free, left, all, rate, window_rate, resource, seconds }
    }

    /// The time until the next check: half of what the highest possible rate would need to use up the rest.
    fn check_interval(&self, fall: &FreeSpaceTrend) -> Duration {
        if fall.left.contains(&0) {
            return SPENT;
        }
        let times = fall.left.iter().zip(FASTEST).map(|(left, fastest)| *left as f64 / fastest / 2.0);
        let seconds = times.fold(LONGEST.as_secs_f64(), f64::min);
        Duration::from_secs_f64(seconds).max(SHORTEST)
    }

    /// Judges whether the restricted sandboxes caused the fall.
    fn review_restrictions(
        &mut self,
        now: Instant,
        fall: &FreeSpaceTrend,
        usage: Option<&HashMap<String, SandboxUsage>>,
    ) -> Vec<GuardAction> {
        let (mut actions, mut quick) = (Vec::new(), Vec::new());
        let Some(usage) = usage else { return actions };
        self.restricted.retain(|sandbox, _| usage.contains_key(sandbox));
        for (sandbox, restricted) in &mut self.restricted {
            let usage = usage.get(sandbox).copied().unwrap_or_default();
            restricted.add(now, usage);
            if restricted.kind == RestrictionKind::Paused && usage.written >= MIN_WRITTEN && fall.seconds < STOP {
                actions.push(GuardAction::KillWriters(sandbox.clone()));
                continue;
            }
            let elapsed = now.saturating_duration_since(restricted.since);
            if elapsed < TRIAL {
                continue;
            }
            if !std::mem::replace(&mut restricted.confirmed, true) {
                let trial = restricted.tried(fall, elapsed);
                restricted.unclear = trial == TrialResult::Inconclusive;
                if trial == TrialResult::Cleared {
                    actions.push(match restricted.kind {
                        RestrictionKind::Slowed => GuardAction::SpeedUp(sandbox.clone()),
                        RestrictionKind::Paused => GuardAction::Resume(sandbox.clone()),
                    });
                    self.cleared.insert(sandbox.clone(), now + CLEARED);
                    continue;
                }
            }
            if restricted.kind == RestrictionKind::Paused {
                continue;
            }
            let left = fall.left.get(restricted.resource).copied().unwrap_or(0) as f64;
            let takes = restricted.takes(now, fall);
            let quiet = QUIET_RATE.get(restricted.resource).is_none_or(|quiet| takes < *quiet);
            // The last observed rate of a sandbox is assumed for a little longer.
            let (fastest, quiet_time) =
                if restricted.identified { (takes, QUIET) } else { (takes.max(restricted.rate), SLOWED) };
            if !quiet && (left < fastest * STOP || elapsed >= SLOWED && left < takes * LASTS) {
                // What slowing down did not show, the pause shows.
                *restricted = fall.restricted(restricted.resource, RestrictionKind::Paused, now, !restricted.unclear);
                actions.push(GuardAction::Pause(sandbox.clone()));
            } else if elapsed >= SLOWED || quiet && elapsed >= quiet_time {
                actions.push(GuardAction::SpeedUp(sandbox.clone()));
                quick.push(sandbox.clone());
            }
        }
        let cleared = &self.cleared;
        self.restricted.retain(|sandbox, _| !cleared.contains_key(sandbox) && !quick.contains(sandbox));
        actions
    }

    /// Restricts the sandboxes that write.
    fn suspect(&mut self, now: Instant, fall: &FreeSpaceTrend) -> Vec<GuardAction> {
        let (named, sure) = self.writers(now, fall);
        let mut actions = Vec::new();
        for sandbox in named {
            let restricted = self.restricted.get(&sandbox).copied();
            let confirmed = restricted.is_some_and(|restricted| restricted.confirmed);
            let action = match restricted.map(|restricted| restricted.kind) {
                Some(RestrictionKind::Paused) => continue,
                // A sandbox that wrote most of what fell is the cause; any other must be confirmed by a trial first. A burst
                // may be over, unless another one of its size would not fit.
                None if fall.seconds < STOP / 2.0 && sure => GuardAction::Pause(sandbox.clone()),
                Some(RestrictionKind::Slowed) if fall.seconds < STOP && (sure || confirmed) => {
                    GuardAction::Pause(sandbox.clone())
                }
                Some(RestrictionKind::Slowed) => continue,
                None => GuardAction::SlowDown(sandbox.clone()),
            };
            let kind =
                if matches!(action, GuardAction::Pause(_)) { RestrictionKind::Paused } else { RestrictionKind::Slowed };
            let work = self.usage_window.as_ref().map_or(0.0, |usage_window| usage_window.work(&sandbox, now));
            let restricted = fall.restricted(fall.resource, kind, now, confirmed && kind == RestrictionKind::Paused);
            self.restricted.insert(sandbox, Restriction { work, identified: sure, ..restricted });
            actions.push(action);
        }
        actions
    }

    /// The suspects of a fall, and whether they are certain.
    fn writers(&self, now: Instant, fall: &FreeSpaceTrend) -> (Vec<String>, bool) {
        let no_suspects = (Vec::new(), false);
        let Some(usage_window) = &self.usage_window else { return no_suspects };
        let left_alone = |sandbox: &String| self.cleared.contains_key(sandbox) || self.graced.contains_key(sandbox);
        let known = usage_window.usage.iter().filter(|(sandbox, _)| !left_alone(sandbox));
        let fell = decrease(usage_window.free, fall.free);
        let most = known.clone().map(|(_, usage)| usage.written).max().unwrap_or(0);
        let all: u64 = known.clone().map(|(_, usage)| usage.written).sum();
        if fall.resource == 0 && most >= MIN_WRITTEN && all >= fell[0] / 4 {
            let named = known.filter(|(_, usage)| usage.written >= (most / 2).max(MIN_WRITTEN));
            return (named.map(|(sandbox, _)| sandbox.clone()).collect(), true);
        }
        // A sandbox that creates inodes, or whose writes are not counted, still uses system time. One suspect is tried at
        // a time, if the fall continued while it was sampled.
        let elapsed = now.saturating_duration_since(usage_window.since);
        let rate = per_second(fell, elapsed)[fall.resource];
        let lasts = rate >= SLOWEST[fall.resource] && rate * SLOW >= fall.left[fall.resource] as f64;
        if elapsed < TRIAL || !lasts || self.restricted.values().any(|restricted| !restricted.confirmed) {
            return no_suspects;
        }
        let least = MIN_WORK * elapsed.as_secs_f64();
        let busy = known
            .filter(|(sandbox, usage)| !self.restricted.contains_key(*sandbox) && usage.system.as_secs_f64() >= least);
        (busy.max_by_key(|(_, usage)| usage.system).map(|(sandbox, _)| sandbox.clone()).into_iter().collect(), false)
    }

    /// Resumes paused sandboxes when enough space is free that pauses and resumes do not alternate.
    fn release(&mut self, fall: &FreeSpaceTrend) -> Vec<GuardAction> {
        let mut actions = Vec::new();
        let least = self.allowance.max(1);
        let mut restricted = std::mem::take(&mut self.restricted);
        restricted.retain(|sandbox, restricted| {
            let of = |values: [u64; 2]| values.get(restricted.resource).copied().unwrap_or(0);
            let least = if restricted.resource == 0 { least } else { 1 };
            let room = of(fall.left) >= least && of(fall.free) >= self.resume_free(restricted);
            let goes_on = room && restricted.kind == RestrictionKind::Paused;
            if goes_on {
                actions.push(GuardAction::Resume(sandbox.clone()));
            }
            !goes_on
        });
        self.restricted = restricted;
        actions
    }

    /// Pauses sandboxes that keep writing when only the reserve is left, however slowly, and whatever used up the rest.
    fn charge(
        &mut self,
        now: Instant,
        fall: &FreeSpaceTrend,
        usage: Option<&HashMap<String, SandboxUsage>>,
    ) -> Vec<GuardAction> {
        for (sandbox, usage) in usage.into_iter().flatten().filter(|(sandbox, _)| !self.graced.contains_key(*sandbox)) {
            let spent = self.spent.entry(sandbox.clone()).or_default();
            *spent = spent.saturating_add(usage.written);
        }
        let (all, most) = (self.spent.values().sum::<u64>(), self.spent.values().copied().max().unwrap_or(0));
        if all <= self.allowance || fall.left[0] > 0 {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let spenders = self.spent.iter().filter(|(_, spent)| **spent >= (most / 2).max(1));
        for sandbox in spenders.map(|(sandbox, _)| sandbox.clone()).collect::<Vec<_>>() {
            self.spent.remove(&sandbox);
            let restricted = Restriction { left: 0, ..fall.restricted(0, RestrictionKind::Paused, now, true) };
            let before = self.restricted.insert(sandbox.clone(), restricted);
            if before.is_none_or(|restricted| restricted.kind != RestrictionKind::Paused) {
                actions.push(GuardAction::Pause(sandbox));
            }
        }
        actions
    }
}

// === impl SandboxUsage ===

impl SandboxUsage {
    fn add(&mut self, other: Self) {
        self.written = self.written.saturating_add(other.written);
        self.system += other.system;
    }
}

// === impl UsageWindow ===

impl UsageWindow {
    /// The share of time that the kernel worked for a sandbox.
    fn work(&self, sandbox: &str, now: Instant) -> f64 {
        let system = self.usage.get(sandbox).map_or(0.0, |usage| usage.system.as_secs_f64());
        system / now.saturating_duration_since(self.since).as_secs_f64().max(0.001)
    }
}

// === impl FreeSpaceTrend ===

impl FreeSpaceTrend {
    /// The restriction of a sandbox for this fall.
    fn restricted(&self, resource: usize, kind: RestrictionKind, now: Instant, confirmed: bool) -> Restriction {
        let of = |values: [u64; 2]| values.get(resource).copied().unwrap_or(0);
        Restriction {
            resource,
            rate: self.rate.get(resource).copied().unwrap_or(0.0),
            free: of(self.free),
            left: of(self.left),
            all: of(self.all),
            ..Restriction::new(kind, now, confirmed)
        }
    }
}

fn decrease(were: [u64; 2], are: [u64; 2]) -> [u64; 2] {
    let ([bytes, inodes], [bytes_now, inodes_now]) = (were, are);
    [bytes.saturating_sub(bytes_now), inodes.saturating_sub(inodes_now)]
}

fn per_second(fallen: [u64; 2], time: Duration) -> [f64; 2] {
    fallen.map(|fallen| fallen as f64 / time.as_secs_f64().max(0.001))
}

#[cfg(test)]
mod tests;
