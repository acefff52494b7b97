//! How many connections the users of this machine have at a socket.

use std::time::{Duration, Instant};

use carrel_control::{Caller, ShareHolder, ShareLimits, SharePermit, ShareQuota};

/// How many connections a socket has at most.
pub(crate) const MOST: usize = 4096;
/// The part that one user other than the daemon's own may have, and the part that only the daemon's own has.
const PARTS: (u64, u64) = (4, 8);
/// How often it is logged that connections are refused.
const PERIOD: Duration = Duration::from_secs(10);

/// The connections of a socket.
#[derive(Debug)]
pub(crate) struct LocalConnections {
    quota: ShareQuota,
    log: RefusalLog,
}

/// When refusals were logged last, and how many there were since.
#[derive(Debug, Default)]
struct RefusalLog {
    logged: Option<Instant>,
    unlogged: u64,
}

// === impl LocalConnections ===

impl LocalConnections {
    pub(crate) fn new(most: usize) -> Self {
        let (total, (each, reserved)) = (most as u64, PARTS);
        let limits = ShareLimits { total, each: total.div_ceil(each), reserved: total / reserved };
        Self { quota: ShareQuota::new(limits), log: RefusalLog::default() }
    }

    /// A place for one more connection of a user, if there is one.
    pub(crate) fn admit(&mut self, caller: &Caller) -> Option<SharePermit> {
        let holder = if caller.trusted { ShareHolder::OWNER } else { ShareHolder::user(caller.user) };
        match self.quota.take(holder) {
            Ok(permit) => Some(permit),
            Err(exceeded) => {
                if let Some(refused) = self.log.note(Instant::now()) {
                    tracing::warn!(uid = caller.user, refused, "connections were refused: {exceeded}");
                }
                None
            }
        }
    }
}

// === impl RefusalLog ===

impl RefusalLog {
    /// Counts a refusal; how many there were since the last line, if one is due.
    fn note(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < PERIOD) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(user: u32) -> Caller {
        Caller { user, group: user, trusted: user == 0 }
    }

    #[test]
    fn one_user_cannot_shut_out_another_and_none_the_daemons_own() {
        let mut connections = LocalConnections::new(16);
        let mut held = Vec::new();
        let mut admitted = |user: u32, times: usize| {
            let before = held.len();
            held.extend((0..times).filter_map(|_| connections.admit(&caller(user))));
            held.len() - before
        };
        assert_eq!([1, 2, 3, 4, 5].map(|user| admitted(user, 100)), [4, 4, 4, 2, 0]);
        assert_eq!(admitted(0, 100), 2);
    }

    //= promises.control-plane.connections-socket
    #[test]
    fn a_socket_has_4096_connections_and_one_user_a_quarter_of_them() {
        let mut connections = LocalConnections::new(MOST);
        let mut held = Vec::new();
        let mut admitted = |user: u32| {
            let before = held.len();
            while let Some(permit) = connections.admit(&caller(user)) {
                held.push(permit);
            }
            held.len() - before
        };
        assert_eq!([1, 2, 3, 4, 0].map(&mut admitted), [1024, 1024, 1024, 512, 512]);
    }

    #[test]
    fn refusals_are_logged_at_once_and_then_now_and_then() {
        let (mut log, start) = (RefusalLog::default(), Instant::now());
        assert_eq!(log.note(start), Some(1));
        assert!((0..1000).all(|_| log.note(start).is_none()));
        assert_eq!(log.note(start + PERIOD), Some(1001));
    }
}
