//! Limits the connections of local users to a socket.

use std::time::{Duration, Instant};

use carrel_control::{Caller, ShareHolder, ShareLimits, SharePermit, ShareQuota};

/// The maximum number of connections of a socket.
pub(crate) const MAX_CONNECTIONS: usize = 4096;
/// Each user but the daemon's own may use a quarter; an eighth is reserved for the daemon's own user.
const SHARE_DIVISORS: (u64, u64) = (4, 8);
/// The minimum time between two log lines about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The connections of a socket.
#[derive(Debug)]
pub(crate) struct LocalConnections {
    quota: ShareQuota,
    log: RefusalLog,
}

/// When refusals were last logged, and how many there were since.
#[derive(Debug, Default)]
struct RefusalLog {
    logged: Option<Instant>,
    unlogged: u64,
}

// === impl LocalConnections ===

impl LocalConnections {
    pub(crate) fn new(max: usize) -> Self {
        let (total, (each, reserved)) = (max as u64, SHARE_DIVISORS);
        let limits = ShareLimits { total, each: total.div_ceil(each), reserved: total / reserved };
        Self { quota: ShareQuota::new(limits), log: RefusalLog::default() }
    }

    /// A permit for one more connection of a user, if there is one.
    pub(crate) fn admit(&mut self, caller: &Caller) -> Option<SharePermit> {
        let holder = if caller.trusted { ShareHolder::OWNER } else { ShareHolder::user(caller.user) };
        match self.quota.take(holder) {
            Ok(permit) => Some(permit),
            Err(exceeded) => {
                if let Some(refused) = self.log.record(Instant::now()) {
                    tracing::warn!(uid = caller.user, refused, "connections were refused: {exceeded}");
                }
                None
            }
        }
    }
}

// === impl RefusalLog ===

impl RefusalLog {
    /// Counts a refusal. Returns the number since the last line if one is due.
    fn record(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
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
    fn no_user_can_use_the_connections_of_another() {
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
        let mut connections = LocalConnections::new(MAX_CONNECTIONS);
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
    fn refusals_are_logged_at_once_and_then_periodically() {
        let (mut log, start) = (RefusalLog::default(), Instant::now());
        assert_eq!(log.record(start), Some(1));
        assert!((0..1000).all(|_| log.record(start).is_none()));
        assert_eq!(log.record(start + LOG_INTERVAL), Some(1001));
    }
}
