//! The event channel of a conversation. It is unbounded, but while it holds too much the app-server is not read.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use super::{CallError, rpc::RpcRequest};
use crate::child::ChildExit;

/// Size of an event besides its line.
const OVERHEAD: usize = 256;

/// An event for a conversation.
#[derive(Clone, Debug)]
pub(super) enum ThreadEvent {
    /// A message of the app-server, with its line.
    Message(RpcRequest, Bytes),
    /// A line that could not be parsed, and why.
    Unparsed(Bytes, String),
    /// Response to a request of the conversation.
    Response(&'static str, Result<Value, CallError>),
    /// The app-server exited: nothing follows.
    Exited(ChildExit),
}

#[derive(Debug)]
pub(super) struct ThreadSender {
    sender: mpsc::UnboundedSender<ThreadEvent>,
    queued_bytes: Arc<AtomicUsize>,
    limit: usize,
}

#[derive(Debug)]
pub(super) struct ThreadReceiver {
    receiver: mpsc::UnboundedReceiver<ThreadEvent>,
    queued_bytes: Arc<AtomicUsize>,
    limit: usize,
    drained: Arc<Notify>,
}

/// Creates a channel. `drained` is notified when its size falls to the limit again.
pub(super) fn channel(limit: usize, drained: Arc<Notify>) -> (ThreadSender, ThreadReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let queued_bytes = Arc::new(AtomicUsize::new(0));
    (
        ThreadSender { sender, queued_bytes: queued_bytes.clone(), limit },
        ThreadReceiver { receiver, queued_bytes, limit, drained },
    )
}

// === impl ThreadEvent ===

impl ThreadEvent {
    fn size(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Message(_, line) | Self::Unparsed(line, _) => line.len(),
                Self::Response(..) | Self::Exited(_) => 0,
            }
    }
}

// === impl ThreadSender ===

impl ThreadSender {
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns whether the receiver still exists.
    pub(super) fn deliver(&self, thread_event: ThreadEvent) -> bool {
        self.queued_bytes.fetch_add(thread_event.size(), Ordering::AcqRel);
        self.sender.send(thread_event).is_ok()
    }

    /// Whether the channel holds too much. Without a receiver it never does.
    pub(super) fn is_full(&self) -> bool {
        self.queued_bytes.load(Ordering::Acquire) > self.limit && !self.sender.is_closed()
    }
}

// === impl ThreadReceiver ===

impl ThreadReceiver {
    /// The next event; `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ThreadEvent> {
        let thread_event = self.receiver.recv().await?;
        Some(self.release(thread_event))
    }

    /// An event that is already queued.
    pub(super) fn ready(&mut self) -> Option<ThreadEvent> {
        let thread_event = self.receiver.try_recv().ok()?;
        Some(self.release(thread_event))
    }

    fn release(&self, thread_event: ThreadEvent) -> ThreadEvent {
        let before = self.queued_bytes.fetch_sub(thread_event.size(), Ordering::AcqRel);
        if before > self.limit && before - thread_event.size() <= self.limit {
            self.drained.notify_one();
        }
        thread_event
    }
}

impl Drop for ThreadReceiver {
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
    fn a_channel_is_full_until_it_is_read_or_closed() {
        let drained = Arc::new(Notify::new());
        let (sender, mut receiver) = channel(300, drained);
        let unparsed = |size: usize| ThreadEvent::Unparsed(Bytes::from(vec![0; size]), String::new());
        assert!(sender.deliver(unparsed(10)));
        assert!(!sender.is_full());
        assert!(sender.deliver(unparsed(100)));
        assert!(sender.is_full());
        assert!(receiver.ready().is_some());
        assert!(sender.is_full());
        assert!(receiver.ready().is_some());
        assert!(!sender.is_full());
        assert!(sender.deliver(unparsed(1_000)));
        assert!(sender.is_full());
        drop(receiver);
        assert!(!sender.is_full());
        assert!(!sender.deliver(unparsed(1)));
    }
}
