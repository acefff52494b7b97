//! Locks that serialize the operations on each sandbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// A lock per sandbox that is in use.
#[derive(Debug, Default)]
pub(crate) struct SandboxLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

// === impl SandboxLocks ===

impl SandboxLocks {
    /// Waits for the lock of a sandbox.
    pub(crate) async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        self.mutex(name).lock_owned().await
    }

    fn mutex(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        // Unused locks are forgotten.
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn operations_on_one_sandbox_are_serialized_and_others_do_not_wait() {
        let locks = SandboxLocks::default();
        let first = locks.lock("a").await;
        let mut second = Box::pin(locks.lock("a"));
        tokio::select! {
            biased;
            _ = &mut second => panic!("the lock is held"),
            _third = locks.lock("b") => {}
        }
        drop(first);
        let second = second.await;
        assert_eq!(locks.0.lock().unwrap().len(), 2);
        drop(second);
        drop(locks.lock("c").await);
        assert_eq!(locks.0.lock().unwrap().len(), 1, "unused locks are forgotten");
    }
}
