//! The drain rule: when `exited` is sent although a background process still holds the command's pipes.
//!
//! `exited` is sent when all pipes are at their end. If a background process holds one open, it is sent once everything
//! that the command itself wrote is sent, and then after [`QUIET`] without output or [`LONGEST`] in all. The command's
//! own output is never truncated, however slowly the peer reads.

use std::time::{Duration, Instant};

use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// The quiet period that ends a drain.
pub(crate) const QUIET: Duration = Duration::from_millis(200);
/// The maximum duration of a drain.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// The time since a command exited.
pub(super) struct DrainTimer {
    quiet: Instant,
    longest: Instant,
}

// === impl DrainTimer ===

impl DrainTimer {
    pub(super) fn begin(io: &mut SessionIo, key: SessionKey) -> Self {
        let now = Instant::now();
        io.wake_at(now + QUIET, key);
        Self { quiet: now + QUIET, longest: now + LONGEST }
    }

    /// Restarts the quiet period after output.
    pub(super) fn output_read(&mut self, io: &mut SessionIo, key: SessionKey) {
        self.quiet = Instant::now() + QUIET;
        io.wake_at(self.quiet.min(self.longest), key);
    }

    /// Whether the drain is not yet over.
    pub(super) fn before_deadline(&self) -> bool {
        Instant::now() < self.longest
    }

    pub(super) fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.quiet || now >= self.longest
    }
}
