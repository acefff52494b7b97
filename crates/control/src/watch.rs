//! What happens to all sandboxes that somebody may see.

use std::sync::Arc;

use carrel_store::{AllEvents, Event, Pairs, Store};

use crate::control::store_failed;
use crate::refusal::Refusal;
use crate::settings::Caller;

/// The events of all sandboxes with some labels, in the order in which they became true.
pub struct Watch {
    pub(crate) store: Store,
    pub(crate) caller: Caller,
    pub(crate) selector: Pairs,
    pub(crate) events: AllEvents,
}

// === impl Watch ===

impl Watch {
    /// The next events; `None` when the daemon is going. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, Refusal> {
        loop {
            let Some(mut events) = self.events.next().await.map_err(|error| store_failed(&error))? else {
                return Ok(None);
            };
            events.retain(|event| self.is_meant(event));
            if !events.is_empty() {
                return Ok(Some(events));
            }
        }
    }

    fn is_meant(&self, event: &Event) -> bool {
        // What is purged is nobody's any more.
        self.store
            .sandbox(&event.sandbox)
            .is_some_and(|sandbox| self.caller.sees(&sandbox) && matches(&self.selector, &sandbox.labels))
    }
}

/// Whether every pair that is looked for is there.
pub(crate) fn matches(selector: &Pairs, labels: &Pairs) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
