//! Services that somebody here looks after, until the sandbox that they stand beside is to end.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// By the start of the sandbox that they stand beside.
#[derive(Debug, Default)]
pub(crate) struct SupervisedServices(Mutex<HashMap<String, ServiceGroup>>);

/// Those beside one sandbox.
#[derive(Debug)]
struct ServiceGroup {
    /// Gone when they are to end.
    alive: watch::Sender<()>,
    keys: BTreeSet<String>,
}

/// Tells when a service is to end.
#[derive(Clone, Debug)]
pub(crate) struct ServiceCancellation(watch::Receiver<()>);

// === impl SupervisedServices ===

impl SupervisedServices {
    /// A service is looked after from now on.
    pub(crate) fn add(&self, start: &str, key: &str) -> ServiceCancellation {
        let mut all = self.lock();
        let group = all
            .entry(start.to_owned())
            .or_insert_with(|| ServiceGroup { alive: watch::Sender::new(()), keys: BTreeSet::new() });
        group.keys.insert(key.to_owned());
        ServiceCancellation(group.alive.subscribe())
    }

    /// All beside one sandbox are to end; returns which were looked after.
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

    /// Returns when it is to end.
    pub(crate) async fn wait(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_beside_one_sandbox_end_together_and_those_beside_another_do_not() {
        let supervised = SupervisedServices::default();
        let (one, two) = (supervised.add("first", "one"), supervised.add("first", "two"));
        let other = supervised.add("second", "one");
        assert!(!one.is_cancelled());
        assert_eq!(supervised.cancel("first").into_iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(one.is_cancelled() && two.is_cancelled() && !other.is_cancelled());
        two.wait().await;
        assert_eq!(supervised.cancel("first").len(), 0);
        assert!(!supervised.add("first", "one").is_cancelled(), "the next time is another");
    }
}
