//! Starts that wait for something from elsewhere: whoever ends the sandbox does not wait for that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// The starts of incarnations, until they are made.
#[derive(Debug, Default)]
pub(crate) struct Starts(Mutex<HashMap<String, Weak<Semaphore>>>);

/// A start that is under way. What it has is closed when it is over.
#[derive(Debug)]
pub(crate) struct Starting(Arc<Semaphore>);

// === impl Starts ===

impl Starts {
    /// One begins.
    pub(crate) fn begin(&self, incarnation: &str) -> Starting {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(starting) = starts.get(incarnation).and_then(Weak::upgrade) {
            return Starting(starting);
        }
        // Of those that are done, nothing is remembered.
        starts.retain(|_, starting| starting.strong_count() > 0);
        let starting = Arc::new(Semaphore::new(0));
        starts.insert(incarnation.to_owned(), Arc::downgrade(&starting));
        Starting(starting)
    }

    /// Those of an incarnation are over, if there are any.
    pub(crate) fn end(&self, incarnation: &str) {
        let removed = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(incarnation);
        if let Some(starting) = removed.and_then(|starting| starting.upgrade()) {
            starting.close();
        }
    }
}

// === impl Starting ===

impl Starting {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns when it is over.
    pub(crate) async fn over(&self) {
        // There is nothing to be had: it ends by being closed.
        let _closed = self.0.acquire().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_that_are_under_way_are_ended_and_the_next_is_not() {
        let starts = Starts::default();
        starts.end("one");
        let (first, again, other) = (starts.begin("one"), starts.begin("one"), starts.begin("two"));
        starts.end("one");
        first.over().await;
        assert!(first.is_over() && again.is_over() && !other.is_over());
        let next = starts.begin("one");
        assert!(!next.is_over());
        drop((next, other));
        drop(starts.begin("three"));
        assert_eq!(starts.0.lock().unwrap().len(), 1, "those that are done are forgotten");
    }
}
