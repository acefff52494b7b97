//! The drain rule: when a command that ended is over, although something it left behind still holds its pipes.
//!
//! `exited` is sent when all pipes have reached their end. If something in the background holds one open, it is sent
//! once everything the command itself had written is sent and then either [`QUIET`] has passed without output or
//! [`LONGEST`] has passed in all. What the command itself wrote is never cut off, however long the peer takes.

use std::time::{Duration, Instant};

use crate::io::Io;
use crate::session::Key;

/// How long silence has to last.
pub(crate) const QUIET: Duration = Duration::from_millis(200);
/// How long chatter is listened to.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// The time since a command ended.
pub(super) struct Drain {
    quiet: Instant,
    longest: Instant,
}

// === impl Drain ===

impl Drain {
    pub(super) fn begin(io: &mut Io, key: Key) -> Self {
        let now = Instant::now();
        io.wake_at(now + QUIET, key);
        Self { quiet: now + QUIET, longest: now + LONGEST }
    }

    /// There was output: the silence begins again.
    pub(super) fn heard(&mut self, io: &mut Io, key: Key) {
        self.quiet = Instant::now() + QUIET;
        io.wake_at(self.quiet.min(self.longest), key);
    }

    /// Whether there is still time for what is left to go.
    pub(super) fn is_patient(&self) -> bool {
        Instant::now() < self.longest
    }

    pub(super) fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.quiet || now >= self.longest
    }
}
