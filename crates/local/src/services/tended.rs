//! Services that somebody here looks after, until the sandbox that they stand beside is to end.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// By the start of the sandbox that they stand beside.
#[derive(Debug, Default)]
pub(crate) struct Tended(Mutex<HashMap<String, Together>>);

/// Those beside one sandbox.
#[derive(Debug)]
struct Together {
    /// Gone when they are to end.
    going_on: watch::Sender<()>,
    keys: BTreeSet<String>,
}

/// Tells when a service is to end.
#[derive(Clone, Debug)]
pub(crate) struct Over(watch::Receiver<()>);

// === impl Tended ===

impl Tended {
    /// A service is looked after from now on.
    pub(crate) fn begin(&self, start: &str, key: &str) -> Over {
        let mut all = self.lock();
        let together = all
            .entry(start.to_owned())
            .or_insert_with(|| Together { going_on: watch::Sender::new(()), keys: BTreeSet::new() });
        together.keys.insert(key.to_owned());
        Over(together.going_on.subscribe())
    }

    /// All beside one sandbox are to end; returns which were looked after.
    pub(crate) fn over(&self, start: &str) -> BTreeSet<String> {
        self.lock().remove(start).map(|together| together.keys).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Together>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Over ===

impl Over {
    pub(crate) fn is_over(&self) -> bool {
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
        let tended = Tended::default();
        let (one, two) = (tended.begin("first", "one"), tended.begin("first", "two"));
        let other = tended.begin("second", "one");
        assert!(!one.is_over());
        assert_eq!(tended.over("first").into_iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(one.is_over() && two.is_over() && !other.is_over());
        two.wait().await;
        assert_eq!(tended.over("first").len(), 0);
        assert!(!tended.begin("first", "one").is_over(), "the next time is another");
    }
}
