//! The settings of the operator, and the caller of a request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use carrel_store::{IdNamespace, Sandbox, Timestamp};

use crate::descriptors::Descriptors;
use crate::spec::Host;

/// The settings of the operator.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// The default idle timeout of sandboxes; 0 is forever.
    pub idle_ttl: Duration,
    /// How long sandboxes that do not run are retained; 0 is forever.
    pub cleanup_ttl: Duration,
    /// How long deleted sandboxes, events, execs and logs are retained.
    pub retention: Retention,
    /// The grace period of a stop, before processes are killed.
    pub grace: Duration,
    /// The maximum number of running sandboxes.
    pub max_sandboxes: Option<u64>,
    /// The maximum number of sandboxes of all users, running or not; 0 is unlimited.
    pub kept_sandboxes: u64,
    /// The maximum number of sandboxes of each user but the daemon's own; 0 is unlimited.
    pub user_sandboxes: u64,
    /// The maximum size of their specs in total, in bytes; 0 is unlimited.
    pub kept_specs: u64,
    /// The maximum memory of running sandboxes in total.
    pub max_memory: Option<u64>,
    /// The memory limit of a sandbox without one.
    pub default_memory: u64,
    /// What sandboxes may use of the host.
    pub host: Host,
    pub clock: Clock,
    /// The file descriptors of this process.
    pub descriptors: Descriptors,
}

/// The retention limits. What exceeds one is removed, the oldest first. 0 is unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long deleted sandboxes are retained; `None` is the `cleanup_ttl`.
    pub deleted_age: Option<Duration>,
    /// How many deleted sandboxes are retained.
    pub deleted_count: u64,
    /// How long the events of a sandbox are retained.
    pub events_age: Duration,
    /// How many events of a sandbox are retained.
    pub events_count: u64,
    /// How long execs that have ended are retained.
    pub execs_age: Duration,
    /// How many execs of a sandbox are retained.
    pub execs_count: u64,
    /// How long the output of execs that have ended is retained.
    pub logs_age: Duration,
    /// How long orphans stay in quarantine. The provider removes them; this decides how often it is called.
    pub orphans_age: Duration,
}

#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// The uptime of the host.
    uptime: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user id from the kernel.
    pub user: u32,
    /// The group id from the kernel.
    pub group: u32,
    /// Whether it is the daemon's own user on this host, who sees all sandboxes and may use any path of the host.
    pub trusted: bool,
}

// === impl ControlSettings ===

impl ControlSettings {
    /// Keeps the settings of `former` that a reload does not change.
    pub(crate) fn with_fixed_parts_of(self, former: &Self) -> Self {
        Self { clock: former.clock.clone(), descriptors: former.descriptors.clone(), ..self }
    }
}

impl Default for ControlSettings {
    fn default() -> Self {
        Self {
            idle_ttl: Duration::from_secs(10 * 60),
            cleanup_ttl: Duration::from_secs(360 * 60 * 60),
            retention: Retention::default(),
            grace: Duration::from_secs(2),
            max_sandboxes: None,
            kept_sandboxes: 4096,
            user_sandboxes: 1024,
            kept_specs: 64 << 20,
            max_memory: None,
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
    /// A clock with this time.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), uptime: Arc::new(uptime) }
    }

    /// Replaces the uptime.
    #[must_use]
    pub fn with_uptime(self, uptime: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { uptime: Arc::new(uptime), ..self }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Whether a time is before the boot of this host.
    pub(crate) fn is_before_boot(&self, time: Timestamp) -> bool {
        self.since(time) > (self.uptime)()
    }

    /// The time that is this long ago.
    pub(crate) fn ago(&self, age: Duration) -> Timestamp {
        Timestamp(self.now().0.saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// How long ago a time is. A time in the future, after the clock was set back, counts as now.
    pub(crate) fn since(&self, time: Timestamp) -> Duration {
        Duration::from_nanos(self.now().0.saturating_sub(time.0).try_into().unwrap_or(0))
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

/// Includes the time of a suspend, since a sandbox is suspended with its host.
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
    /// A remote client with the API key.
    pub const KEY: Self = Self { user: u32::MAX, group: u32::MAX, trusted: false };

    /// The namespace of the caller's ids. It keeps callers from learning each other's ids.
    pub fn namespace(&self) -> IdNamespace {
        match *self {
            Self { trusted: true, .. } => IdNamespace::Daemon,
            Self::KEY => IdNamespace::Key,
            Self { user, .. } => IdNamespace::User(user),
        }
    }

    /// Whether the caller may see a sandbox.
    pub fn sees(&self, sandbox: &Sandbox) -> bool {
        self.trusted || self.user == sandbox.owner
    }
}
