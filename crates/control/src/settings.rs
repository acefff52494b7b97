//! What an operator decides, and who asks.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use carrel_store::{Namespace, Sandbox, Timestamp};

use crate::descriptors::Descriptors;
use crate::spec::Host;

/// What an operator decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a sandbox may be idle that does not say so itself; 0 is for ever.
    pub idle_ttl: Duration,
    /// How long sandboxes are kept that do not run; 0 is for ever.
    pub cleanup_ttl: Duration,
    /// How much of the past is kept.
    pub retention: Retention,
    /// How long a sandbox has to end by itself.
    pub grace: Duration,
    /// How many may run.
    pub most_sandboxes: Option<u64>,
    /// How many of all users are kept, running or not; 0 is no bound.
    pub kept_sandboxes: u64,
    /// How many of one user other than the daemon's own are kept; 0 is no bound.
    pub user_sandboxes: u64,
    /// How many bytes what those are made from may have together; 0 is no bound.
    pub kept_specs: u64,
    /// How much memory they may use together.
    pub most_memory: Option<u64>,
    /// How much memory one may use that does not say so itself.
    pub default_memory: u64,
    /// What of the host may be named.
    pub host: Host,
    /// What time it is.
    pub clock: Clock,
    /// The file descriptors of this process.
    pub descriptors: Descriptors,
}

/// How much of the past is kept: what is beyond a bound is removed, the oldest first. 0 is no bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long deleted sandboxes are known; none is for as long as those are kept that do not run.
    pub deleted_age: Option<Duration>,
    /// How many deleted sandboxes are known.
    pub deleted_count: u64,
    /// How long the events of a sandbox are kept.
    pub events_age: Duration,
    /// How many events of a sandbox are kept.
    pub events_count: u64,
    /// How long execs are known that have ended.
    pub execs_age: Duration,
    /// How many execs of a sandbox are known.
    pub execs_count: u64,
    /// How long the output of execs is kept that have ended.
    pub logs_age: Duration,
    /// How long disks are quarantined that the store does not know. The provider removes them; this says how often it looks.
    pub orphans_age: Duration,
}

/// What time it is.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// How long this host has been up.
    uptime: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user, as the kernel says.
    pub user: u32,
    /// Its group, as the kernel says.
    pub group: u32,
    /// Whether it is the daemon's own user on this machine: it sees all sandboxes, and may name what is on the host.
    pub trusted: bool,
}

// === impl Settings ===

impl Settings {
    /// These, with what does not change while others are replaced.
    pub(crate) fn beside(self, former: &Self) -> Self {
        Self { clock: former.clock.clone(), descriptors: former.descriptors.clone(), ..self }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idle_ttl: Duration::from_secs(10 * 60),
            cleanup_ttl: Duration::from_secs(360 * 60 * 60),
            retention: Retention::default(),
            grace: Duration::from_secs(2),
            most_sandboxes: None,
            kept_sandboxes: 4096,
            user_sandboxes: 1024,
            kept_specs: 64 << 20,
            most_memory: None,
            default_memory: 1 << 30,
            host: Host::default(),
            clock: Clock::default(),
            descriptors: Descriptors::default(),
        }
    }
}

// === impl Retention ===

impl Default for Retention {
    fn default() -> Self {
        Self {
            deleted_age: None,
            deleted_count: 10_000,
            events_age: Duration::ZERO,
            events_count: 100_000,
            execs_age: Duration::ZERO,
            execs_count: 10_000,
            logs_age: Duration::ZERO,
            orphans_age: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}

// === impl Clock ===

impl Clock {
    /// A clock that says what it is told.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), uptime: Arc::new(uptime) }
    }

    /// The same on a host that says how long it has been up.
    #[must_use]
    pub fn with_uptime(self, uptime: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { uptime: Arc::new(uptime), ..self }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Whether a moment was before this host booted.
    pub(crate) fn is_before_boot(&self, moment: Timestamp) -> bool {
        self.since(moment) > (self.uptime)()
    }

    /// The moment that was so long ago.
    pub(crate) fn ago(&self, age: Duration) -> Timestamp {
        Timestamp(self.now().0.saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// How long ago a moment was. One that is still to come, since somebody set the clock back, was now.
    pub(crate) fn since(&self, moment: Timestamp) -> Duration {
        Duration::from_nanos(self.now().0.saturating_sub(moment.0).try_into().unwrap_or(0))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
        })
    }
}

/// Suspended or not: a sandbox is suspended with its host.
fn uptime() -> Duration {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(up).unwrap_or(Duration::MAX)
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

// === impl Caller ===

impl Caller {
    /// Somebody elsewhere who has the key.
    pub const KEY: Self = Self { user: u32::MAX, group: u32::MAX, trusted: false };

    /// Where the ids are unique that the caller chooses: nobody learns of an id because it is taken.
    pub fn namespace(&self) -> Namespace {
        match *self {
            Self { trusted: true, .. } => Namespace::Daemon,
            Self::KEY => Namespace::Key,
            Self { user, .. } => Namespace::User(user),
        }
    }

    /// Whether there is such a sandbox, as far as they are concerned.
    pub fn sees(&self, sandbox: &Sandbox) -> bool {
        self.trusted || self.user == sandbox.owner
    }
}
