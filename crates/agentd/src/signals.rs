//! Signals, and the children they tell of.

use std::os::fd::OwnedFd;

use carrel_protocol::payload::ExecExited;
use rustix::process::WaitOptions;

use crate::sys;

/// What the signals that arrived ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// To come to an end.
    pub(crate) stop: bool,
    /// To look after children.
    pub(crate) reap: bool,
}

/// Whose signals count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Senders {
    /// Everybody's.
    All,
    /// Those from outside the pid namespace: whoever is inside it, root or not, has no say over pid 1.
    Outside {
        /// Whether root outside is root inside too. Otherwise a sender outside is nobody here, and never user 0.
        shares_root: bool,
    },
}

/// Takes the signals that arrived.
pub(crate) fn take(descriptor: &OwnedFd, senders: Senders) -> Asked {
    let mut asked = Asked::default();
    while let Some(arrived) = sys::next_signal(descriptor) {
        match arrived.signal {
            libc::SIGCHLD => asked.reap = true,
            libc::SIGTERM | libc::SIGINT if senders.admit(&arrived) => asked.stop = true,
            _ => {}
        }
    }
    asked
}

// === impl Senders ===

impl Senders {
    /// Those whom the agent obeys, which may be pid 1.
    pub(crate) fn of(init: bool) -> Self {
        let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if init { Self::Outside { shares_root: shares_root(&map()) } } else { Self::All }
    }

    /// Nobody inside can send a signal with these codes and without a sender: a queued one, whose every field its sender
    /// writes, has another code. But where the queue of a user is full the kernel forgets what it was told of some
    /// signals, and then says that user 0 sent them from nowhere.
    fn admit(self, arrived: &sys::Arrived) -> bool {
        const SI_KERNEL: i32 = 0x80;
        match self {
            Self::All => true,
            Self::Outside { shares_root } => {
                let from_nowhere = arrived.sender == 0 && matches!(arrived.code, libc::SI_USER | SI_KERNEL);
                from_nowhere && (shares_root || arrived.user != 0)
            }
        }
    }
}

/// Whether user 0 of this user namespace is user 0 of the one around it.
fn shares_root(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| line.split_whitespace());
    ranges.any(|mut range| (range.next(), range.next()) == (Some("0"), Some("0")))
}

/// Buries every child that has ended, our own and orphans, and returns how each ended.
pub(crate) fn reap() -> impl Iterator<Item = (i32, ExecExited)> {
    std::iter::from_fn(|| {
        let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
        let signal = status.terminating_signal();
        // The wire has known only −1 for a signal; the signal itself stands beside it.
        let code = status.exit_status().unwrap_or(-1);
        Some((pid.as_raw_nonzero().get(), ExecExited { code, signal }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_1_obeys_those_outside_and_nothing_that_was_forgotten() {
        let arrived = |sender, user, code| sys::Arrived { signal: libc::SIGTERM, sender, user, code };
        let [apart, shared] = [false, true].map(|shares_root| Senders::Outside { shares_root });
        for senders in [apart, shared, Senders::All] {
            assert!(senders.admit(&arrived(0, 65_534, libc::SI_USER)));
            let from_inside = [arrived(7, 0, libc::SI_USER), arrived(0, 65_534, libc::SI_QUEUE)];
            assert!(from_inside.iter().all(|arrived| senders.admit(arrived) == (senders == Senders::All)));
        }
        assert!(!apart.admit(&arrived(0, 0, libc::SI_USER)), "the kernel forgot who sent it");
        assert!(shared.admit(&arrived(0, 0, libc::SI_USER)));
    }

    #[test]
    fn root_is_shared_unless_it_is_mapped_elsewhere() {
        assert!(shares_root("         0          0 4294967295\n"));
        assert!(!shares_root("         0 1073741824      65536\n") && !shares_root(""));
    }
}
