//! Requests to the app-server that are pending, with their deadlines.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use super::{CallError, event_channel::ThreadReceiver};

/// A pending request.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) method: &'static str,
    pub(super) reply_to: ReplyTarget,
}

/// Where a response goes.
#[derive(Debug)]
pub(super) enum ReplyTarget {
    /// The waiting caller.
    Caller(oneshot::Sender<Result<Value, CallError>>),
    /// The caller that opens a thread; it receives the thread's messages from the response on.
    Opener(oneshot::Sender<Result<OpenedThread, CallError>>),
    /// The conversation of a thread, in order with its other events.
    Thread(String),
    /// No receiver; errors are logged.
    Discard,
}

#[derive(Debug)]
pub(super) struct OpenedThread {
    pub(super) thread: String,
    /// Response of the app-server.
    pub(super) answer: Value,
    /// Events of the thread.
    pub(super) receiver: ThreadReceiver,
    /// Number of the subscription, to leave it.
    pub(super) subscription: u64,
}

/// All pending requests.
#[derive(Debug)]
pub(super) struct PendingCalls {
    limit: Duration,
    last: u64,
    pending: HashMap<u64, PendingCall>,
    /// In the order in which they were sent, which is that of their deadlines.
    deadlines: VecDeque<(Instant, u64)>,
}

// === impl PendingCalls ===

impl PendingCalls {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, last: 0, pending: HashMap::new(), deadlines: VecDeque::new() }
    }

    /// The number of the next request.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds a request that was sent.
    pub(super) fn insert(&mut self, number: u64, call: PendingCall) {
        self.pending.insert(number, call);
        self.deadlines.push_back((Instant::now() + self.limit, number));
    }

    /// Removes a request that was answered.
    pub(super) fn remove(&mut self, number: u64) -> Option<PendingCall> {
        self.pending.remove(&number)
    }

    /// The next deadline; it may be that of an answered request.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Removes the requests that timed out.
    pub(super) fn overdue(&mut self) -> Vec<PendingCall> {
        let now = Instant::now();
        let expired = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).count();
        self.deadlines.drain(..expired).filter_map(|(_, number)| self.pending.remove(&number)).collect()
    }

    /// Removes all requests.
    pub(super) fn take(&mut self) -> Vec<PendingCall> {
        self.deadlines.clear();
        self.pending.drain().map(|(_, call)| call).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}
