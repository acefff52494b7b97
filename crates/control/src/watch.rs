//! The events of all sandboxes that a caller may see.

use std::sync::Arc;

use carrel_store::{AllEvents, Event, Pairs, Store};

use crate::control::store_failed;
use crate::refusal::Refusal;
use crate::settings::Caller;

/// A stream of the events of all sandboxes with some labels, in the order of their commits.
pub struct EventWatch {
    pub(crate) store: Store,
    pub(crate) caller: Caller,
    pub(crate) selector: Pairs,
    pub(crate) events: AllEvents,
}

// === impl EventWatch ===

impl EventWatch {
    /// The next events; `None` when the daemon is shutting down. It is cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, Refusal> {
        loop {
            let Some(mut events) = self.events.next().await.map_err(|error| store_failed(&error))? else {
                return Ok(None);
            };
            events.retain(|event| self.is_visible(event));
            if !events.is_empty() {
                return Ok(Some(events));
            }
        }
    }

    fn is_visible(&self, event: &Event) -> bool {
        // A purged sandbox has no owner any more.
        self.store
            .sandbox(&event.sandbox)
            .is_some_and(|sandbox| self.caller.sees(&sandbox) && matches(&self.selector, &sandbox.labels))
    }
}

/// Whether the labels contain every pair of the selector.
pub(crate) fn matches(selector: &Pairs, labels: &Pairs) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
