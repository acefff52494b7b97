//! Cursors over events, which read stored events first and then wait for new ones.

use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::EventRange;
use crate::cache::NextEvents;
use crate::shared::SharedState;
use crate::{Event, SandboxId, Sequence, StoreError};

/// The maximum number of events that `next` returns: thousands of slow readers may each hold some.
const MAX_EVENTS: usize = 64;

/// A cursor over the events of one sandbox.
#[derive(Debug)]
pub struct Events {
    shared: Arc<SharedState>,
    sandbox: SandboxId,
    after: Sequence,
    newest: Sequence,
    woken: watch::Receiver<()>,
}

/// A cursor over the events of all sandboxes, in commit order.
#[derive(Debug)]
pub struct AllEvents {
    shared: Arc<SharedState>,
    after: u64,
    woken: watch::Receiver<()>,
}

// === impl Events ===

impl Events {
    pub(crate) fn new(shared: Arc<SharedState>, sandbox: SandboxId, after: Sequence) -> Self {
        // Subscribing before the first read makes sure that no event is missed.
        let woken = shared.listeners.subscribe(&sandbox);
        Self { shared, sandbox, after, newest: 0, woken }
    }

    pub(crate) fn begin(mut self, newest: Sequence) -> Self {
        self.newest = newest;
        self
    }

    /// The newest event when the cursor was created: later ones are live.
    pub fn newest(&self) -> Sequence {
        self.newest
    }

    /// The next 1 to 64 events, as soon as there are any; `None` when the sandbox was purged or the store was closed.
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, StoreError> {
        loop {
            self.woken.mark_unchanged();
            let next = self.shared.cache().next(&self.sandbox, self.after, MAX_EVENTS);
            let events = match next {
                NextEvents::Closed => return Ok(None),
                NextEvents::Cached(events) => events,
                NextEvents::None => match self.woken.changed().await {
                    Ok(()) => continue,
                    Err(_) => return Ok(None),
                },
                NextEvents::Stored(range) => self.stored(range).await?,
                NextEvents::Expired { oldest } => return Err(StoreError::Expired { oldest }),
            };
            if let Some(last) = events.last() {
                self.after = last.sequence;
                return Ok(Some(events));
            }
        }
    }

    async fn stored(&mut self, range: EventRange) -> Result<Vec<Arc<Event>>, StoreError> {
        let sandbox = self.sandbox.clone();
        let events = self.shared.read(move |reader| reader.events(&sandbox, range)).await?;
        // Trimmed events are announced before they are removed.
        if let NextEvents::Expired { oldest } = self.shared.cache().next(&self.sandbox, self.after, MAX_EVENTS) {
            return Err(StoreError::Expired { oldest });
        }
        if events.is_empty() {
            // The sandbox was purged, or the range lies in the gap of a power cut.
            self.after = range.until;
        }
        Ok(events.into_iter().map(Arc::new).collect())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.listeners.unsubscribe(&self.sandbox);
    }
}

// === impl AllEvents ===

impl AllEvents {
    pub(crate) fn new(shared: Arc<SharedState>, after: Option<u64>) -> Self {
        let woken = shared.listeners.subscribe_all();
        let after = after.unwrap_or_else(|| shared.cache().newest());
        Self { shared, after, woken }
    }

    /// The next 1 to 64 events, as soon as there are any; `None` when the store was closed. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, StoreError> {
        loop {
            self.woken.mark_unchanged();
            let next = self.shared.cache().next_of_all(self.after, MAX_EVENTS);
            let events = match next {
                NextEvents::Closed => return Ok(None),
                NextEvents::Cached(events) => events,
                NextEvents::None => match self.woken.changed().await {
                    Ok(()) => continue,
                    Err(_) => return Ok(None),
                },
                NextEvents::Stored(range) => self.stored(range).await?,
                // Only cursors of one sandbox expire.
                NextEvents::Expired { .. } => Vec::new(),
            };
            if let Some(last) = events.last() {
                self.after = last.position;
                return Ok(Some(events));
            }
        }
    }

    async fn stored(&mut self, range: EventRange) -> Result<Vec<Arc<Event>>, StoreError> {
        let events = self.shared.read(move |reader| reader.all_events(range)).await?;
        if events.is_empty() {
            // Their sandboxes were purged.
            self.after = range.until;
        }
        Ok(events.into_iter().map(Arc::new).collect())
    }
}
