//! Cancellation of long operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels an operation. All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

// === impl CancellationToken ===

impl CancellationToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the operation, which notices at the next chunk of its input.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether `cancel` was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
