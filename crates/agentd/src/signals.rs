//! Signals and child processes.

use std::os::fd::OwnedFd;

use carrel_protocol::payload::ExecExited;
use rustix::process::WaitOptions;

use crate::sys;

/// What the received signals request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingSignals {
    /// To shut down.
    pub(crate) stop: bool,
    /// To reap children.
    pub(crate) reap: bool,
}

/// Whose signals are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalSenders {
    /// Any process.
    All,
    /// Processes outside the pid namespace: no process inside may control pid 1, root or not.
    Outside {
        /// Whether root outside is also root inside. Otherwise an outside sender is mapped to the overflow user, never
        /// to user 0.
        shares_root: bool,
    },
}

/// Reads the pending signals.
pub(crate) fn take(descriptor: &OwnedFd, senders: SignalSenders) -> PendingSignals {
    let mut requested = PendingSignals::default();
    while let Some(arrived) = sys::next_signal(descriptor) {
        match arrived.signal {
            libc::SIGCHLD => requested.reap = true,
            libc::SIGTERM | libc::SIGINT if senders.admit(&arrived) => requested.stop = true,
            _ => {}
        }
    }
    requested
}

// === impl SignalSenders ===

impl SignalSenders {
    /// The accepted senders for the agent, which may be pid 1.
    pub(crate) fn of(init: bool) -> Self {
        let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if init { Self::Outside { shares_root: shares_root(&map()) } } else { Self::All }
    }

    /// No process inside can send a signal with these codes and sender 0: a queued signal, whose fields its sender
    /// controls, has another code. But if a user's signal queue is full, the kernel drops the details of some signals
    /// and reports user 0 as the sender.
    fn admit(self, arrived: &sys::ReceivedSignal) -> bool {
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

/// Whether user 0 of this user namespace is user 0 of its parent.
fn shares_root(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| line.split_whitespace());
    ranges.any(|mut range| (range.next(), range.next()) == (Some("0"), Some("0")))
}

/// Reaps every exited child, including orphans, and returns their exit statuses.
pub(crate) fn reap() -> impl Iterator<Item = (i32, ExecExited)> {
    std::iter::from_fn(|| {
        let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
        let signal = status.terminating_signal();
        // The published code for a signal is −1; the signal itself is in its own field.
        let code = status.exit_status().unwrap_or(-1);
        Some((pid.as_raw_nonzero().get(), ExecExited { code, signal }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_1_accepts_signals_from_outside_only_and_none_with_dropped_details() {
        let arrived = |sender, user, code| sys::ReceivedSignal { signal: libc::SIGTERM, sender, user, code };
        let [apart, shared] = [false, true].map(|shares_root| SignalSenders::Outside { shares_root });
        for senders in [apart, shared, SignalSenders::All] {
            assert!(senders.admit(&arrived(0, 65_534, libc::SI_USER)));
            let from_inside = [arrived(7, 0, libc::SI_USER), arrived(0, 65_534, libc::SI_QUEUE)];
            assert!(from_inside.iter().all(|arrived| senders.admit(arrived) == (senders == SignalSenders::All)));
        }
        assert!(!apart.admit(&arrived(0, 0, libc::SI_USER)), "the kernel dropped the sender");
        assert!(shared.admit(&arrived(0, 0, libc::SI_USER)));
    }

    #[test]
    fn root_is_shared_unless_it_is_mapped_elsewhere() {
        assert!(shares_root("         0          0 4294967295\n"));
        assert!(!shares_root("         0 1073741824      65536\n") && !shares_root(""));
    }
}
