//! Ending what somebody else is doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends what it was given to. Its copies are one with it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

// === impl Stop ===

impl Stop {
    /// One that nothing was said to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that it is enough. What is under way sees that at its next look, between two pieces of what it reads.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn is_said(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
