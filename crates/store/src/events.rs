//! Events in their order, from the past into the present.

use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::Range;
use crate::memory::Next;
use crate::shared::Shared;
use crate::{Event, SandboxId, Sequence, StoreError};

/// How many events are given at once, at most: thousands of readers may have some that they do not get rid of.
const MOST: usize = 64;

/// The events of one sandbox.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    sandbox: SandboxId,
    after: Sequence,
    newest: Sequence,
    woken: watch::Receiver<()>,
}

/// The events of all sandboxes, in the order of their commits.
#[derive(Debug)]
pub struct AllEvents {
    shared: Arc<Shared>,
    after: u64,
    woken: watch::Receiver<()>,
}

// === impl Events ===

impl Events {
    pub(crate) fn new(shared: Arc<Shared>, sandbox: SandboxId, after: Sequence) -> Self {
        // Whoever listens first and looks then misses nothing.
        let woken = shared.listeners.to(&sandbox);
        Self { shared, sandbox, after, newest: 0, woken }
    }

    pub(crate) fn begin(mut self, newest: Sequence) -> Self {
        self.newest = newest;
        self
    }

    /// The newest event when the reading began: those up to it had already happened.
    pub fn newest(&self) -> Sequence {
        self.newest
    }

    /// The next events, 1 to 64 of them, as soon as there are any; none when the sandbox was purged or the store is
    /// closed. When it is called off, nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, StoreError> {
        loop {
            self.woken.mark_unchanged();
            let next = self.shared.memory().next(&self.sandbox, self.after, MOST);
            let events = match next {
                Next::Over => return Ok(None),
                Next::Here(events) => events,
                Next::Nothing => match self.woken.changed().await {
                    Ok(()) => continue,
                    Err(_) => return Ok(None),
                },
                Next::Stored(range) => self.stored(range).await?,
                Next::Expired { oldest } => return Err(StoreError::Expired { oldest }),
            };
            if let Some(last) = events.last() {
                self.after = last.sequence;
                return Ok(Some(events));
            }
        }
    }

    async fn stored(&mut self, range: Range) -> Result<Vec<Arc<Event>>, StoreError> {
        let sandbox = self.sandbox.clone();
        let events = self.shared.read(move |reader| reader.events(&sandbox, range)).await?;
        // What was removed meanwhile was announced before it was gone.
        if let Next::Expired { oldest } = self.shared.memory().next(&self.sandbox, self.after, MOST) {
            return Err(StoreError::Expired { oldest });
        }
        if events.is_empty() {
            // It was purged in between, or what was asked for is where a power cut has left nothing.
            self.after = range.until;
        }
        Ok(events.into_iter().map(Arc::new).collect())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.listeners.leave(&self.sandbox);
    }
}

// === impl AllEvents ===

impl AllEvents {
    pub(crate) fn new(shared: Arc<Shared>, after: Option<u64>) -> Self {
        let woken = shared.listeners.to_all();
        let after = after.unwrap_or_else(|| shared.memory().newest());
        Self { shared, after, woken }
    }

    /// The next events, 1 to 64 of them, as soon as there are any; none when the store is closed. When it is called
    /// off, nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, StoreError> {
        loop {
            self.woken.mark_unchanged();
            let next = self.shared.memory().next_of_all(self.after, MOST);
            let events = match next {
                Next::Over => return Ok(None),
                Next::Here(events) => events,
                Next::Nothing => match self.woken.changed().await {
                    Ok(()) => continue,
                    Err(_) => return Ok(None),
                },
                Next::Stored(range) => self.stored(range).await?,
                // Only the events of one sandbox expire.
                Next::Expired { .. } => Vec::new(),
            };
            if let Some(last) = events.last() {
                self.after = last.position;
                return Ok(Some(events));
            }
        }
    }

    async fn stored(&mut self, range: Range) -> Result<Vec<Arc<Event>>, StoreError> {
        let events = self.shared.read(move |reader| reader.all_events(range)).await?;
        if events.is_empty() {
            // They were purged.
            self.after = range.until;
        }
        Ok(events.into_iter().map(Arc::new).collect())
    }
}
