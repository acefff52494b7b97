//! The number of open file descriptors of this process, and its limit.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::codes::reason;
use crate::refusal::{Code, Refusal};

/// Descriptors that the daemon holds for a running sandbox: its channel, its journal and a handle of its supervisor
/// (measured with ten sandboxes: 31 descriptors), and one for a client.
pub const PER_SANDBOX: u64 = 4;
/// Descriptors that a sandbox may hold briefly while it starts.
const PER_START: u64 = 16;
/// Descriptors that an exec, or a stream to a client, may hold.
const PER_STREAM: u64 = 4;
/// The minimum and the maximum reserve, and the fraction of the limit in between.
const RESERVE: (u64, u64, u64) = (32, 1024, 16);
/// The maximum age of a count while more than half of the limit is open, and otherwise. Counting takes longer the more
/// descriptors are open.
const MAX_AGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The maximum age of a count that leads to a refusal.
const MAX_AGE_TO_REFUSE: Duration = Duration::from_millis(5);

/// The file descriptors of a process. Clones share the count.
#[derive(Clone)]
pub struct Descriptors(Arc<DescriptorCounter>);

struct DescriptorCounter {
    limit: Box<dyn Fn() -> u64 + Send + Sync>,
    count: Box<dyn Fn() -> u64 + Send + Sync>,
    counted: Mutex<Option<(Instant, u64)>>,
}

/// What descriptors are needed for. Requests that stop or record something are never refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorUse {
    /// The start of a sandbox.
    Start {
        /// How many other sandboxes are starting.
        beside: u64,
    },
    /// An exec, or a stream to a client.
    Stream,
    /// A connection of a client, which may want to stop something.
    Connection,
}

// === impl Descriptors ===

impl Descriptors {
    /// Creates it from functions that return the limit and the number of open descriptors.
    pub fn new(
        limit: impl Fn() -> u64 + Send + Sync + 'static,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(DescriptorCounter { limit: Box::new(limit), count: Box::new(count), counted: Mutex::default() }))
    }

    /// The maximum number of open descriptors.
    pub fn limit(&self) -> u64 {
        (self.0.limit)()
    }

    /// How many descriptors are reserved for requests that stop or record something.
    pub fn reserve(&self) -> u64 {
        let (least, most, part) = RESERVE;
        (self.limit() / part).clamp(least, most)
    }

    /// The number of open descriptors, which may be cached.
    pub fn open(&self) -> u64 {
        let limit = self.limit();
        self.open_count(|open| if open.saturating_mul(2) > limit { MAX_AGE.0 } else { MAX_AGE.1 })
    }

    /// The number of open descriptors, at most as old as `age` allows for that number.
    fn open_count(&self, age: impl Fn(u64) -> Duration) -> u64 {
        let mut counted = self.0.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |(at, open): &(Instant, u64)| at.elapsed() < age(*open);
        match counted.filter(is_new) {
            Some((_, open)) => open,
            None => {
                let open = (self.0.count)();
                *counted = Some((Instant::now(), open));
                open
            }
        }
    }

    /// How many more sandboxes there is room for.
    pub fn room_for_sandboxes(&self) -> u64 {
        self.limit().saturating_sub(self.open()).saturating_sub(self.reserve()) / PER_SANDBOX
    }

    /// Whether there are enough descriptors.
    pub fn has_room(&self, use_for: DescriptorUse) -> bool {
        let (needed, reserved) = match use_for {
            DescriptorUse::Start { beside } => (PER_START.saturating_mul(beside.saturating_add(1)), self.reserve()),
            DescriptorUse::Stream => (PER_STREAM, self.reserve() / 2),
            DescriptorUse::Connection => (1, self.reserve() / 4),
        };
        let limit = self.limit();
        let fits = |open: u64| open.saturating_add(needed).saturating_add(reserved) <= limit;
        // An outdated count must not lead to a refusal, since descriptors may just have been closed.
        let has_room = fits(self.open()) || fits(self.open_count(|_| MAX_AGE_TO_REFUSE));
        if has_room && use_for == DescriptorUse::Connection {
            self.add(needed);
        }
        has_room
    }

    /// Counts descriptors that are about to be opened: many clients may connect before the next count.
    fn add(&self, more: u64) {
        let mut counted = self.0.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, open)) = counted.as_mut() {
            *open = open.saturating_add(more);
        }
    }

    /// Refuses what there are too few descriptors for.
    pub fn check(&self, use_for: DescriptorUse) -> Result<(), Refusal> {
        if self.has_room(use_for) {
            return Ok(());
        }
        let (open, limit) = (self.open(), self.limit());
        let message = format!(
            "the daemon has {open} of {limit} file descriptors open, and reserves the rest for stopping sandboxes; stop one first, or \
             raise LimitNOFILE= of its unit"
        );
        Err(Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, message).about("limit", "descriptors"))
    }
}

impl Default for Descriptors {
    /// The descriptors of this process.
    fn default() -> Self {
        Self::new(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), count_own)
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Descriptors")
    }
}

/// The number of open descriptors of this process, without the one that lists them. If they cannot be counted it is 0:
/// the kernel still enforces the limit.
fn count_own() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| (entries.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn of(limit: u64, open: u64) -> Descriptors {
        Descriptors::new(move || limit, move || open)
    }

    #[test]
    fn sandboxes_are_refused_first_and_connections_last() {
        let start = |beside| DescriptorUse::Start { beside };
        let room = |open, use_for| of(256, open).has_room(use_for);
        // Of 256, 32 are reserved.
        assert!(room(208, start(0)) && !room(209, start(0)));
        assert!(
            room(192, start(1)) && !room(193, start(1)),
            "a sandbox that is starting has not opened all of its descriptors"
        );
        assert!(room(236, DescriptorUse::Stream) && !room(237, DescriptorUse::Stream));
        assert!(room(247, DescriptorUse::Connection) && !room(248, DescriptorUse::Connection));
        assert_eq!((of(256, 24).room_for_sandboxes(), of(256, 250).room_for_sandboxes()), (50, 0));
        assert_eq!([64, 1024, 1 << 20].map(|limit| of(limit, 0).reserve()), [32, 64, 1024]);
    }

    #[test]
    fn a_refusal_names_the_limit() {
        let refusal = of(64, 60).check(DescriptorUse::Stream).unwrap_err();
        assert_eq!((refusal.code, refusal.reason), (Code::ResourceExhausted, "LIMIT_REACHED"));
        assert_eq!(refusal.metadata["limit"], "descriptors");
        assert!(refusal.message.contains("60 of 64 file descriptors"), "{refusal}");
    }

    #[test]
    fn descriptors_are_not_counted_for_every_request() {
        let counts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&counts);
        let descriptors = Descriptors::new(|| 1024, move || counted.fetch_add(1, Ordering::Relaxed));
        for _ in 0..1000 {
            assert!(descriptors.has_room(DescriptorUse::Stream));
        }
        assert!(counts.load(Ordering::Relaxed) < 1000);
    }

    #[test]
    fn connections_are_counted_before_the_next_count() {
        let connections = Arc::new(AtomicU64::new(0));
        let open = Arc::clone(&connections);
        let descriptors = Descriptors::new(|| 256, move || 24 + open.load(Ordering::Relaxed));
        while descriptors.has_room(DescriptorUse::Connection) {
            assert!(connections.fetch_add(1, Ordering::Relaxed) < 256);
        }
        // A quarter of the reserve of 32 is left.
        assert_eq!(connections.load(Ordering::Relaxed), 256 - 24 - 8);
    }

    #[test]
    fn the_descriptors_of_this_process_are_counted() {
        let before = count_own();
        let _held: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close descriptors too.
        assert!(count_own() >= before.saturating_sub(10) + 10);
        assert!(Descriptors::default().limit() > 0);
    }
}
