//! How many file descriptors this process has open, and how many it may have.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::refusal::{Code, Refusal};
use crate::words::reason;

/// What a sandbox that runs holds in the daemon: its channel, its journal and a handle of its supervisor (measured with ten
/// sandboxes: 31 descriptors), and one for whoever looks at it.
pub const PER_SANDBOX: u64 = 4;
/// What a sandbox may hold for a moment while it starts.
const PER_START: u64 = 16;
/// What an exec, or a stream to a client, may hold.
const PER_STREAM: u64 = 4;
/// The least and the most that is kept free, and the part of the limit in between.
const RESERVE: (u64, u64, u64) = (32, 1024, 16);
/// How old a count may be while more than half of all are open, and otherwise: counting takes longer the more there are.
const AGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How old the count may be by which something is refused.
const RECOUNT: Duration = Duration::from_millis(5);

/// The file descriptors of a process. Clones are the same.
#[derive(Clone)]
pub struct Descriptors(Arc<Inner>);

struct Inner {
    limit: Box<dyn Fn() -> u64 + Send + Sync>,
    count: Box<dyn Fn() -> u64 + Send + Sync>,
    counted: Mutex<Option<(Instant, u64)>>,
}

/// What descriptors are wanted for. Whatever ends something or writes it down is never refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorUse {
    /// A sandbox is started beside others that are being started.
    Start {
        /// How many those are.
        beside: u64,
    },
    /// An exec, or a stream to a client.
    Stream,
    /// A connection of a client, who may want to stop something.
    Connection,
}

// === impl Descriptors ===

impl Descriptors {
    /// Those of a process with this limit, as somebody counts them.
    pub fn new(
        limit: impl Fn() -> u64 + Send + Sync + 'static,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner { limit: Box::new(limit), count: Box::new(count), counted: Mutex::default() }))
    }

    /// How many may be open.
    pub fn limit(&self) -> u64 {
        (self.0.limit)()
    }

    /// How many are kept free for what ends something or writes it down.
    pub fn reserve(&self) -> u64 {
        let (least, most, part) = RESERVE;
        (self.limit() / part).clamp(least, most)
    }

    /// How many are open, or were a moment ago.
    pub fn open(&self) -> u64 {
        let limit = self.limit();
        self.counted(|open| if open.saturating_mul(2) > limit { AGE.0 } else { AGE.1 })
    }

    /// How many were open no longer ago than the number itself allows.
    fn counted(&self, age: impl Fn(u64) -> Duration) -> u64 {
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

    /// Whether there is room for something.
    pub fn has_room(&self, wanted: DescriptorUse) -> bool {
        let (needed, kept) = match wanted {
            DescriptorUse::Start { beside } => (PER_START.saturating_mul(beside.saturating_add(1)), self.reserve()),
            DescriptorUse::Stream => (PER_STREAM, self.reserve() / 2),
            DescriptorUse::Connection => (1, self.reserve() / 4),
        };
        let limit = self.limit();
        let fits = |open: u64| open.saturating_add(needed).saturating_add(kept) <= limit;
        // Nothing is refused by a count that may be over: what was removed just now has made room.
        fits(self.open()) || fits(self.counted(|_| RECOUNT))
    }

    /// Refuses what there is no room for.
    pub fn check(&self, wanted: DescriptorUse) -> Result<(), Refusal> {
        if self.has_room(wanted) {
            return Ok(());
        }
        let (open, limit) = (self.open(), self.limit());
        let words = format!(
            "the daemon has {open} of {limit} file descriptors open, and keeps the rest to stop sandboxes: stop one first, or \
             raise LimitNOFILE= of its unit"
        );
        Err(Refusal::new(Code::ResourceExhausted, reason::LIMIT_REACHED, words).about("limit", "descriptors"))
    }
}

impl Default for Descriptors {
    /// Those of this process.
    fn default() -> Self {
        Self::new(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), count_own)
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Descriptors")
    }
}

/// What this process has open, without what is opened to look at it. What cannot be counted is taken for none: the kernel
/// still refuses what is too much.
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
        let room = |open, wanted| of(256, open).has_room(wanted);
        // Of 256, 32 are kept.
        assert!(room(208, start(0)) && !room(209, start(0)));
        assert!(room(192, start(1)) && !room(193, start(1)), "what starts already has not opened all of its own");
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
    fn they_are_not_counted_for_every_request() {
        let counts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&counts);
        let descriptors = Descriptors::new(|| 1024, move || counted.fetch_add(1, Ordering::Relaxed));
        for _ in 0..1000 {
            assert!(descriptors.has_room(DescriptorUse::Stream));
        }
        assert!(counts.load(Ordering::Relaxed) < 1000);
    }

    #[test]
    fn those_of_this_process_are_counted() {
        let before = count_own();
        let _held: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close some as well.
        assert!(count_own() >= before.saturating_sub(10) + 10);
        assert!(Descriptors::default().limit() > 0);
    }
}
