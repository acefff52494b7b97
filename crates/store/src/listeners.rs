//! Subscriptions to new events.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::SandboxId;

/// The subscriptions of all sandboxes. An idle one costs no wakeups.
#[derive(Debug)]
pub(crate) struct Listeners(Mutex<ListenerMap>);

#[derive(Debug)]
struct ListenerMap {
    sandboxes: HashMap<SandboxId, watch::Sender<()>>,
    all: watch::Sender<()>,
}

// === impl Listeners ===

impl Listeners {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(ListenerMap { sandboxes: HashMap::new(), all: watch::Sender::new(()) }))
    }

    fn lock(&self) -> MutexGuard<'_, ListenerMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self, sandbox: &SandboxId) -> watch::Receiver<()> {
        let mut listeners = self.lock();
        if let Some(sender) = listeners.sandboxes.get(sandbox) {
            return sender.subscribe();
        }
        listeners.sandboxes.entry(sandbox.clone()).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    pub(crate) fn subscribe_all(&self) -> watch::Receiver<()> {
        self.lock().all.subscribe()
    }

    /// Wakes the listeners of these sandboxes, and those of all sandboxes.
    pub(crate) fn wake<'a>(&self, sandboxes: impl Iterator<Item = &'a SandboxId>) {
        let listeners = self.lock();
        for sandbox in sandboxes {
            if let Some(sender) = listeners.sandboxes.get(sandbox) {
                sender.send_replace(());
            }
        }
        listeners.all.send_replace(());
    }

    /// Removes a sandbox when its last listener is about to be dropped.
    pub(crate) fn unsubscribe(&self, sandbox: &SandboxId) {
        let mut listeners = self.lock();
        if listeners.sandboxes.get(sandbox).is_some_and(|sender| sender.receiver_count() <= 1) {
            listeners.sandboxes.remove(sandbox);
        }
    }

    /// Closes the subscriptions of a sandbox.
    pub(crate) fn close(&self, sandbox: &SandboxId) {
        self.lock().sandboxes.remove(sandbox);
    }

    /// Closes all subscriptions.
    pub(crate) fn close_all(&self) {
        let mut listeners = self.lock();
        listeners.sandboxes.clear();
        listeners.all = watch::Sender::new(());
    }

    #[cfg(test)]
    pub(crate) fn sandboxes(&self) -> usize {
        self.lock().sandboxes.len()
    }
}
