//! Socket buffers that are charged to no cgroup: netlink replies, errors of datagrams, corked datagrams. (Data of
//! connections and of local sockets is charged.)

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::table::{KernelTable, ReadProgress, TableFormat};
use super::{ChargeKind, KernelMemoryOveruse, start_of};

/// The tables below `/proc/PID/net`. Without IPv6, some are missing. A sandbox cannot create sockets of other families.
const LISTS: [(&str, TableFormat); 5] = [
    ("netlink", TableFormat::Netlink),
    ("udp", TableFormat::Datagrams),
    ("udp6", TableFormat::Datagrams),
    ("icmp", TableFormat::Datagrams),
    ("icmp6", TableFormat::Datagrams),
];
/// The assumed maximum rate at which a CPU fills sockets, in bytes per nanosecond; 1.2 was measured.
const FASTEST: u64 = 16;
/// How long a check may take; the rest is checked next time.
const LONGEST: Duration = Duration::from_millis(20);
/// The maximum buffer of a socket, if the kernel does not say.
const LARGEST: u64 = 8 << 20;

/// The sockets of a network.
#[derive(Debug)]
pub(super) struct SocketMemory {
    /// `sockstat`: the number of sockets, read first, and alone while they cannot hold much.
    count: File,
    tables: Vec<KernelTable>,
    /// The table to read next.
    next: usize,
    sums: SocketSums,
    /// The maximum buffer of one socket.
    largest: u64,
    /// The measured usage, or its upper bound.
    held: u64,
    /// The CPU time at that check.
    worked: u64,
}

/// The sums so far.
#[derive(Clone, Copy, Debug, Default)]
struct SocketSums {
    netlink: u64,
    datagrams: u64,
}

// === impl SocketMemory ===

impl SocketMemory {
    pub(super) fn open(pid: Pid) -> Option<Self> {
        let open = |name: &str| File::open(format!("/proc/{}/net/{name}", pid.as_raw_nonzero())).ok();
        let tables = LISTS.into_iter().filter_map(|(name, format)| Some(KernelTable::new(open(name)?, format)));
        let (tables, count) = (tables.collect(), open("sockstat")?);
        Some(Self { count, tables, next: 0, sums: SocketSums::default(), largest: largest(), held: 0, worked: 0 })
    }

    /// Checks for overuse. Skips tables that cannot have exceeded the limit since the last check.
    pub(super) fn check(&mut self, worked: Option<u64>, allowance: u64) -> Option<KernelMemoryOveruse> {
        if self.next == 0 {
            let since = worked.map(|worked| worked.saturating_sub(self.worked));
            let most = since.map(|since| self.held.saturating_add(since.saturating_mul(FASTEST)));
            if most.is_some_and(|most| most <= allowance / 2) {
                return None;
            }
            self.worked = worked.unwrap_or(0);
            self.held = self.used().unwrap_or(u64::MAX).saturating_mul(self.largest);
            if self.held <= allowance / 2 {
                return None;
            }
        }
        let until = Instant::now() + LONGEST;
        while let Some(table) = self.tables.get_mut(self.next) {
            let enough = allowance.saturating_sub(self.sums.total());
            let (progress, format) = (table.sum(enough, until), table.format());
            let (ReadProgress::Whole(sum) | ReadProgress::Part(sum)) = progress;
            let sums = self.sums.with(format, sum);
            if sums.total() > allowance {
                // The next check starts over.
                table.restart();
                (self.sums, self.next, self.held) = (SocketSums::default(), 0, sums.total());
                return Some(KernelMemoryOveruse { kind: sums.larger(), allowance });
            }
            if matches!(progress, ReadProgress::Part(_)) {
                return None;
            }
            (self.sums, self.next) = (sums, self.next + 1);
        }
        self.held = std::mem::take(&mut self.sums).total();
        self.next = 0;
        None
    }

    /// The number of sockets of all kinds.
    fn used(&self) -> Option<u64> {
        let text = start_of(&self.count, &mut [0; 256])?;
        text.strip_prefix("sockets: used ")?.lines().next()?.trim().parse().ok()
    }
}

/// The maximum buffer of a socket: the kernel doubles the requested size.
fn largest() -> u64 {
    let setting = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let settings = ["rmem_max", "rmem_default", "wmem_max", "wmem_default"].map(setting);
    settings.into_iter().flatten().max().map_or(LARGEST, |most| most.saturating_mul(2))
}

// === impl SocketSums ===

impl SocketSums {
    fn with(self, format: TableFormat, sum: u64) -> Self {
        match format {
            TableFormat::Netlink => Self { netlink: self.netlink.saturating_add(sum), ..self },
            TableFormat::Datagrams => Self { datagrams: self.datagrams.saturating_add(sum), ..self },
        }
    }

    fn total(self) -> u64 {
        self.netlink.saturating_add(self.datagrams)
    }

    fn larger(self) -> ChargeKind {
        if self.netlink >= self.datagrams { ChargeKind::Netlink } else { ChargeKind::Datagrams }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_of_this_host_are_counted() {
        let sockets = SocketMemory::open(rustix::process::getpid()).unwrap();
        let before = sockets.used().unwrap();
        let _more = [(); 100].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        // Other processes open and close sockets meanwhile.
        assert!(sockets.used().unwrap() > before + 50, "{before}");
        assert!(sockets.tables.len() >= 2, "{sockets:?}");
    }

    #[test]
    fn nothing_is_read_that_cannot_have_changed() {
        let mut sockets = SocketMemory::open(rustix::process::getpid()).unwrap();
        sockets.tables.clear();
        (sockets.held, sockets.worked) = (7, 1000);
        // Half of 16 MiB takes more than half a millisecond.
        assert_eq!(sockets.check(Some(501_000), 16 << 20), None);
        assert_eq!((sockets.held, sockets.worked), (7, 1000));
        assert_eq!(sockets.check(Some(601_000), 16 << 20), None);
        assert_eq!(sockets.worked, 601_000);
    }
}
