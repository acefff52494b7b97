//! The services that this process supervises, until their main sandbox stops.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The supervised services, by the incarnation of their main sandbox.
#[derive(Debug, Default)]
pub(crate) struct SupervisedServices(Mutex<HashMap<String, ServiceGroup>>);

/// The services of one incarnation.
#[derive(Debug)]
struct ServiceGroup {
    /// Dropped to cancel the supervision.
    alive: watch::Sender<()>,
    keys: BTreeSet<String>,
}

/// Notifies that the supervision of a service is cancelled.
#[derive(Clone, Debug)]
pub(crate) struct ServiceCancellation(watch::Receiver<()>);

// === impl SupervisedServices ===

impl SupervisedServices {
    pub(crate) fn add(&self, start: &str, key: &str) -> ServiceCancellation {
        let mut all = self.lock();
        let group = all
            .entry(start.to_owned())
            .or_insert_with(|| ServiceGroup { alive: watch::Sender::new(()), keys: BTreeSet::new() });
        group.keys.insert(key.to_owned());
        ServiceCancellation(group.alive.subscribe())
    }

    /// Cancels the supervision of an incarnation's services; returns their keys.
    pub(crate) fn cancel(&self, start: &str) -> BTreeSet<String> {
        self.lock().remove(start).map(|group| group.keys).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, ServiceGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl ServiceCancellation ===

impl ServiceCancellation {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Returns when the supervision is cancelled.
    pub(crate) async fn wait(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn services_of_one_sandbox_are_cancelled_together_and_those_of_another_are_not() {
        let supervised = SupervisedServices::default();
        let (one, two) = (supervised.add("first", "one"), supervised.add("first", "two"));
        let other = supervised.add("second", "one");
        assert!(!one.is_cancelled());
        assert_eq!(supervised.cancel("first").into_iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(one.is_cancelled() && two.is_cancelled() && !other.is_cancelled());
        two.wait().await;
        assert_eq!(supervised.cancel("first").len(), 0);
        assert!(!supervised.add("first", "one").is_cancelled(), "a new supervision is not cancelled");
    }
}
