//! Cancellation of long operations.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// Cancels an operation, which then fails with `ECANCELED` at its next check.
#[derive(Debug, Default)]
pub struct CancellationFlag(AtomicBool);

/// For operations that cannot be cancelled.
pub(crate) static NEVER: CancellationFlag = CancellationFlag::new();

// === impl CancellationFlag ===

impl CancellationFlag {
    /// Not cancelled.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Cancels the operation for good.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether `cancel` was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.is_cancelled() { Err(Errno::CANCELED) } else { Ok(()) }
    }
}
