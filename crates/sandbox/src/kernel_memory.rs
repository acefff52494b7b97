//! Memory of the kernel that no cgroup is charged for, however much of it a sandbox takes: messages that nobody reads
//! and that are not data of a connection, and locks of files. Neither can be refused, since every program that looks
//! up a name or opens a database needs a little of it. So it is counted from outside, and whoever has too much is told of.
//!
//! What is counted is read from files that were opened when the sandbox was made, and that show its network and its
//! processes ever after, whatever their reader has given up meanwhile.

mod locks;
mod sockets;
mod table;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use self::locks::FileLocks;
use self::sockets::SocketMemory;
use crate::cgroup::{Cgroup, CpuClock};
use crate::container::Container;

/// The part of its memory limit that a sandbox may take besides, and the least and the most that this is.
const PART: u64 = 4;
const ALLOWANCE: [u64; 2] = [16 << 20, 256 << 20];
/// How long the processors work for a sandbox that does something.
const WORK: Duration = Duration::from_millis(2);
/// How long there has to be too much in a network that is shared before it is told of who does not own it: who does is
/// seen to first.
const SHARED_NETWORK_DELAY: Duration = Duration::from_millis(1250);

/// What a sandbox takes of the kernel's memory that no cgroup is charged for.
///
/// One look at a sandbox that rests is one read, 2 µs; at one that works and has few sockets it is three, about 10 µs.
#[derive(Debug)]
pub struct KernelMemory {
    allowance: u64,
    clock: Option<CpuClock>,
    /// What the clock said at the last look.
    worked: u64,
    /// The network is that of another sandbox.
    shared: bool,
    /// Since when there is too much in a network that is shared.
    since: Option<Instant>,
    sockets: Option<SocketMemory>,
    locks: Option<FileLocks>,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMemorySample {
    /// What there is too much of.
    pub overuse: Option<Overuse>,
    /// The sandbox does something: whatever there is may soon be more.
    pub busy: bool,
}

/// More memory of the kernel than a sandbox may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overuse {
    kind: ChargeKind,
    /// What it may take, in bytes.
    allowance: u64,
}

/// What memory of the kernel is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeKind {
    Netlink,
    Datagrams,
    FileLocks,
}

// === impl KernelMemory ===

impl KernelMemory {
    /// Opens what tells of a sandbox with this memory limit, whose network may be that of another.
    pub fn open(container: &mut Container, cgroup: Option<&Cgroup>, limit: Option<u64>, shared: bool) -> Self {
        Self {
            // Whose the sockets of a network are cannot be told: nobody has less for what another may have.
            allowance: allowance(limit.filter(|_| !shared)),
            clock: cgroup.and_then(Cgroup::cpu_clock),
            worked: 0,
            shared,
            since: None,
            sockets: SocketMemory::open(container.pid()),
            locks: container.take_locks().map(FileLocks::new),
        }
    }

    /// Looks, as far as there is reason to: what is counted costs processor time before it is there.
    pub fn look(&mut self) -> KernelMemorySample {
        let now = self.clock.as_ref().and_then(CpuClock::nanos);
        let busy = now.is_some_and(|now| u128::from(now.saturating_sub(self.worked)) >= WORK.as_nanos());
        self.worked = now.unwrap_or(0);
        let sockets = self.sockets.as_mut().and_then(|sockets| sockets.look(now, self.allowance));
        self.since = sockets.and(self.since.or_else(|| Some(Instant::now())));
        let waits = self.shared && self.since.is_some_and(|since| since.elapsed() < SHARED_NETWORK_DELAY);
        let sockets = sockets.filter(|_| !waits);
        let overuse = sockets.or_else(|| self.locks.as_mut().and_then(|locks| locks.look(now)));
        KernelMemorySample { overuse, busy: busy || waits }
    }
}

fn allowance(limit: Option<u64>) -> u64 {
    let [least, most] = ALLOWANCE;
    limit.map_or(most, |limit| (limit / PART).clamp(least, most))
}

/// What a small file begins with.
fn start_of(file: &File, buffer: &mut [u8]) -> Option<String> {
    let count = file.read_at(buffer, 0).ok()?;
    Some(String::from_utf8_lossy(buffer.get(..count)?).into_owned())
}

// === impl Overuse ===

impl fmt::Display for Overuse {
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
    fn too_much_is_told_with_what_it_is() {
        let overuse = Overuse { kind: ChargeKind::Netlink, allowance: 16 << 20 };
        assert_eq!(overuse.to_string(), "more than 16 MiB of kernel memory for unread netlink messages");
    }
}
