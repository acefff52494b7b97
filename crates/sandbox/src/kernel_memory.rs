//! Kernel memory that no cgroup is charged for: unread messages that are not stream data, and file locks. Neither can be
//! forbidden, since every program that resolves a name or opens a database needs a little of it. So it is measured from
//! outside, and a sandbox that uses too much is reported.
//!
//! The counters are read from files that were opened at launch and keep showing the network and the processes of the sandbox,
//! whatever privileges their reader has dropped since.

mod locks;
mod sockets;
mod table;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use self::locks::FileLockMonitor;
use self::sockets::SocketMemory;
use crate::cgroup::{Cgroup, CpuClock};
use crate::container::Container;

/// The fraction of the memory limit that a sandbox may use in addition, with its minimum and maximum.
const PART: u64 = 4;
const ALLOWANCE: [u64; 2] = [16 << 20, 256 << 20];
/// The CPU time above which a sandbox counts as active.
const WORK: Duration = Duration::from_millis(2);
/// How long a shared network must exceed the allowance before a sandbox that does not own it is reported: the owner is handled
/// first.
const SHARED_NETWORK_DELAY: Duration = Duration::from_millis(1250);

/// Measures the kernel memory of a sandbox that no cgroup is charged for.
///
/// A check of an idle sandbox is one read, 2 µs; of an active one with few sockets it is three, about 10 µs.
#[derive(Debug)]
pub struct KernelMemory {
    allowance: u64,
    clock: Option<CpuClock>,
    /// The CPU time at the last check.
    worked: u64,
    /// The network belongs to another sandbox.
    shared: bool,
    /// Since when a shared network exceeds the allowance.
    since: Option<Instant>,
    sockets: Option<SocketMemory>,
    locks: Option<FileLockMonitor>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMemorySample {
    pub overuse: Option<KernelMemoryOveruse>,
    /// The sandbox is active, so its usage may grow soon.
    pub busy: bool,
}

/// More kernel memory than a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMemoryOveruse {
    kind: ChargeKind,
    /// The allowance in bytes.
    allowance: u64,
}

/// What the kernel memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeKind {
    Netlink,
    Datagrams,
    FileLocks,
}

// === impl KernelMemory ===

impl KernelMemory {
    /// Opens the counters of a sandbox with this memory limit, whose network may be that of another.
    pub fn open(container: &mut Container, cgroup: Option<&Cgroup>, limit: Option<u64>, shared: bool) -> Self {
        Self {
            // Sockets of a network cannot be attributed: no sandbox gets a lower allowance for those of another.
            allowance: allowance(limit.filter(|_| !shared)),
            clock: cgroup.and_then(Cgroup::cpu_clock),
            worked: 0,
            shared,
            since: None,
            sockets: SocketMemory::open(container.pid()),
            locks: container.take_locks().map(FileLockMonitor::new),
        }
    }

    /// Checks as far as necessary: using kernel memory takes CPU time first.
    pub fn check(&mut self) -> KernelMemorySample {
        let now = self.clock.as_ref().and_then(CpuClock::nanos);
        let busy = now.is_some_and(|now| u128::from(now.saturating_sub(self.worked)) >= WORK.as_nanos());
        self.worked = now.unwrap_or(0);
        let sockets = self.sockets.as_mut().and_then(|sockets| sockets.check(now, self.allowance));
        self.since = sockets.and(self.since.or_else(|| Some(Instant::now())));
        let waits = self.shared && self.since.is_some_and(|since| since.elapsed() < SHARED_NETWORK_DELAY);
        let sockets = sockets.filter(|_| !waits);
        let overuse = sockets.or_else(|| self.locks.as_mut().and_then(|locks| locks.check(now)));
        KernelMemorySample { overuse, busy: busy || waits }
    }
}

fn allowance(limit: Option<u64>) -> u64 {
    let [least, most] = ALLOWANCE;
    limit.map_or(most, |limit| (limit / PART).clamp(least, most))
}

/// The beginning of a small file.
fn start_of(file: &File, buffer: &mut [u8]) -> Option<String> {
    let count = file.read_at(buffer, 0).ok()?;
    Some(String::from_utf8_lossy(buffer.get(..count)?).into_owned())
}

// === impl KernelMemoryOveruse ===

impl fmt::Display for KernelMemoryOveruse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ChargeKind::Netlink => "unread netlink messages",
            ChargeKind::Datagrams => "unread or unsent datagrams",
            ChargeKind::FileLocks => "file locks",
        };
        write!(f, "more than {} MiB of kernel memory for {what}", self.allowance >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.control-plane.kernel-memory-cgroup-charged
    #[test]
    fn the_allowance_is_a_quarter_within_bounds() {
        for (limit, mebibytes) in
            [(Some(4 << 20), 16), (Some(64 << 20), 16), (Some(256 << 20), 64), (Some(1 << 40), 256), (None, 256)]
        {
            assert_eq!(allowance(limit), mebibytes << 20, "{limit:?}");
        }
    }

    #[test]
    fn an_overuse_names_its_kind() {
        let overuse = KernelMemoryOveruse { kind: ChargeKind::Netlink, allowance: 16 << 20 };
        assert_eq!(overuse.to_string(), "more than 16 MiB of kernel memory for unread netlink messages");
    }
}
