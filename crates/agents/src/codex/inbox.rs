//! What waits for a conversation: as much as it likes, but while it is too much the app-server is not read on.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use super::{CallError, rpc::Said};
use crate::child::ChildExit;

/// What a message costs beside its line.
const OVERHEAD: usize = 256;

/// What is told to a conversation.
#[derive(Clone, Debug)]
pub(super) enum Delivery {
    /// The app-server said something, in this line.
    Heard(Said, Bytes),
    /// It said something that makes no sense, and why it makes none.
    Unparsed(Bytes, String),
    /// What it answered to a request of the conversation.
    Answered(&'static str, Result<Value, CallError>),
    /// It is gone: nothing follows.
    Gone(ChildExit),
}

/// The end that is written to.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: mpsc::UnboundedSender<Delivery>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
}

/// The end that is read.
#[derive(Debug)]
pub(super) struct Inbox {
    receiver: mpsc::UnboundedReceiver<Delivery>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
    drained: Arc<Notify>,
}

/// The two ends. `drained` hears when no more than the limit waits again.
pub(super) fn inbox(limit: usize, drained: Arc<Notify>) -> (Outbox, Inbox) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Outbox { sender, waiting: waiting.clone(), limit }, Inbox { receiver, waiting, limit, drained })
}

// === impl Delivery ===

impl Delivery {
    fn weight(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Heard(_, line) | Self::Unparsed(line, _) => line.len(),
                Self::Answered(..) | Self::Gone(_) => 0,
            }
    }
}

// === impl Outbox ===

impl Outbox {
    /// Whether nobody reads any more.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether there is still somebody to read it.
    pub(super) fn deliver(&self, delivery: Delivery) -> bool {
        self.waiting.fetch_add(delivery.weight(), Ordering::AcqRel);
        self.sender.send(delivery).is_ok()
    }

    /// Whether too much waits. Nothing does if nobody reads it.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > self.limit && !self.sender.is_closed()
    }
}

// === impl Inbox ===

impl Inbox {
    /// Waits for the next; nothing once there is none. May be dropped and called again without loss.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        let delivery = self.receiver.recv().await?;
        Some(self.taken(delivery))
    }

    /// The next, if it is there.
    pub(super) fn ready(&mut self) -> Option<Delivery> {
        let delivery = self.receiver.try_recv().ok()?;
        Some(self.taken(delivery))
    }

    fn taken(&self, delivery: Delivery) -> Delivery {
        let before = self.waiting.fetch_sub(delivery.weight(), Ordering::AcqRel);
        if before > self.limit && before - delivery.weight() <= self.limit {
            self.drained.notify_one();
        }
        delivery
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.receiver.close();
        self.drained.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.agents-server.session-read-codex-says
    #[test]
    fn too_much_waits_until_it_is_read_or_nobody_reads() {
        let drained = Arc::new(Notify::new());
        let (outbox, mut inbox) = inbox(300, drained);
        let unparsed = |size: usize| Delivery::Unparsed(Bytes::from(vec![0; size]), String::new());
        assert!(outbox.deliver(unparsed(10)));
        assert!(!outbox.is_full());
        assert!(outbox.deliver(unparsed(100)));
        assert!(outbox.is_full());
        assert!(inbox.ready().is_some());
        assert!(outbox.is_full());
        assert!(inbox.ready().is_some());
        assert!(!outbox.is_full());
        assert!(outbox.deliver(unparsed(1_000)));
        assert!(outbox.is_full());
        drop(inbox);
        assert!(!outbox.is_full());
        assert!(!outbox.deliver(unparsed(1)));
    }
}
