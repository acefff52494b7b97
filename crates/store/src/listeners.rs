//! Those who wait for something to happen.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::SandboxId;

/// Who waits for which sandbox. One who waits costs nothing until something happens there.
#[derive(Debug)]
pub(crate) struct Listeners(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    sandboxes: HashMap<SandboxId, watch::Sender<()>>,
    all: watch::Sender<()>,
}

// === impl Listeners ===

impl Listeners {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Waiting { sandboxes: HashMap::new(), all: watch::Sender::new(()) }))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn to(&self, sandbox: &SandboxId) -> watch::Receiver<()> {
        let mut waiting = self.waiting();
        if let Some(sender) = waiting.sandboxes.get(sandbox) {
            return sender.subscribe();
        }
        waiting.sandboxes.entry(sandbox.clone()).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    pub(crate) fn to_all(&self) -> watch::Receiver<()> {
        self.waiting().all.subscribe()
    }

    /// Wakes those who wait for these, and those who wait for any.
    pub(crate) fn wake<'a>(&self, sandboxes: impl Iterator<Item = &'a SandboxId>) {
        let waiting = self.waiting();
        for sandbox in sandboxes {
            if let Some(sender) = waiting.sandboxes.get(sandbox) {
                sender.send_replace(());
            }
        }
        waiting.all.send_replace(());
    }

    /// One who waited for a sandbox is about to go.
    pub(crate) fn leave(&self, sandbox: &SandboxId) {
        let mut waiting = self.waiting();
        if waiting.sandboxes.get(sandbox).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.sandboxes.remove(sandbox);
        }
    }

    /// Nothing will happen to a sandbox any more.
    pub(crate) fn end(&self, sandbox: &SandboxId) {
        self.waiting().sandboxes.remove(sandbox);
    }

    /// Nothing will happen any more.
    pub(crate) fn end_all(&self) {
        let mut waiting = self.waiting();
        waiting.sandboxes.clear();
        waiting.all = watch::Sender::new(());
    }

    #[cfg(test)]
    pub(crate) fn sandboxes(&self) -> usize {
        self.waiting().sandboxes.len()
    }
}
