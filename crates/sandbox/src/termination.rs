//! `SIGTERM` as a descriptor that an event loop can poll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::sys;

/// The size of `struct signalfd_siginfo`.
const RECORD: usize = 128;

/// Readable once `SIGTERM` arrived. From its creation on, neither that signal nor a stray one, such as the `SIGHUP` for a stopped
/// process whose parent died, terminates the process.
#[derive(Debug)]
pub struct TerminationSignal(OwnedFd);

// === impl TerminationSignal ===

impl TerminationSignal {
    /// Blocks the signals from now on. Call it after the last child is started: children inherit blocked signals.
    pub fn watch() -> Result<Self, Errno> {
        sys::termination_descriptor().map(Self)
    }

    /// Whether the signal arrived since the last call.
    pub fn take(&self) -> bool {
        matches!(rustix::io::read(&self.0, &mut [0; RECORD]), Ok(1..))
    }
}

impl AsFd for TerminationSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
