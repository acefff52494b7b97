//! Starts that still wait for an image: stopping the sandbox cancels them instead of waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// The pending starts, by incarnation.
#[derive(Debug, Default)]
pub(crate) struct PendingStarts(Mutex<HashMap<String, Weak<Semaphore>>>);

/// A pending start. The semaphore has no permits and is closed to cancel.
#[derive(Debug)]
pub(crate) struct PendingStart(Arc<Semaphore>);

// === impl PendingStarts ===

impl PendingStarts {
    /// Registers a start.
    pub(crate) fn begin(&self, incarnation: &str) -> PendingStart {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pending) = starts.get(incarnation).and_then(Weak::upgrade) {
            return PendingStart(pending);
        }
        // Finished starts are forgotten.
        starts.retain(|_, pending| pending.strong_count() > 0);
        let pending = Arc::new(Semaphore::new(0));
        starts.insert(incarnation.to_owned(), Arc::downgrade(&pending));
        PendingStart(pending)
    }

    /// Cancels the pending starts of an incarnation.
    pub(crate) fn cancel(&self, incarnation: &str) {
        let removed = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(incarnation);
        if let Some(pending) = removed.and_then(|pending| pending.upgrade()) {
            pending.close();
        }
    }
}

// === impl PendingStart ===

impl PendingStart {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns when the start is cancelled.
    pub(crate) async fn cancelled(&self) {
        // There are no permits: acquiring ends only when the semaphore is closed.
        let _closed = self.0.acquire().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pending_starts_are_cancelled_and_the_next_is_not() {
        let starts = PendingStarts::default();
        starts.cancel("one");
        let (first, again, other) = (starts.begin("one"), starts.begin("one"), starts.begin("two"));
        starts.cancel("one");
        first.cancelled().await;
        assert!(first.is_cancelled() && again.is_cancelled() && !other.is_cancelled());
        let next = starts.begin("one");
        assert!(!next.is_cancelled());
        drop((next, other));
        drop(starts.begin("three"));
        assert_eq!(starts.0.lock().unwrap().len(), 1, "those that are done are forgotten");
    }
}
