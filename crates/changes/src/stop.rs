//! Long work that can be called off from outside.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// Whether work is called off. It is looked at between two pieces of the work, which then fails with `ECANCELED`.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

/// For work that nobody calls off.
pub(crate) static NEVER: Stop = Stop::new();

// === impl Stop ===

impl Stop {
    /// Not called off yet.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Calls the work off, for good.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was called off.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.is_asked() { Err(Errno::CANCELED) } else { Ok(()) }
    }
}
