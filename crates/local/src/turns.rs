//! What is done to one sandbox is done by one at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Whose turn it is, for each sandbox that somebody is at.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

// === impl Turns ===

impl Turns {
    /// Waits until nobody else is at a sandbox.
    pub(crate) async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        self.of(name).lock_owned().await
    }

    fn of(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        // Of sandboxes that nobody is at, nothing is remembered.
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(name.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_waits_for_the_other_and_a_third_for_nobody() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let mut second = Box::pin(turns.take("a"));
        tokio::select! {
            biased;
            _ = &mut second => panic!("it is not its turn"),
            _third = turns.take("b") => {}
        }
        drop(first);
        let second = second.await;
        assert_eq!(turns.0.lock().unwrap().len(), 2);
        drop(second);
        drop(turns.take("c").await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "those that nobody is at are forgotten");
    }
}
