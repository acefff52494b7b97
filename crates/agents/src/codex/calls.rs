//! What the app-server was asked, until it answers or has had its time.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use super::{CallError, inbox::Inbox};

/// A question to the app-server.
#[derive(Debug)]
pub(super) struct Call {
    /// What.
    pub(super) method: &'static str,
    /// Who wants to know.
    pub(super) to: To,
}

/// To whom an answer goes.
#[derive(Debug)]
pub(super) enum To {
    /// Who waits.
    Caller(oneshot::Sender<Result<Value, CallError>>),
    /// Who waits for a thread; from its answer on whatever is said of the thread is theirs.
    Opener(oneshot::Sender<Result<Opened, CallError>>),
    /// The conversation of a thread, between what else it is told.
    Thread(String),
    /// Nobody.
    Nobody,
}

/// A thread that was opened.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its id.
    pub(super) thread: String,
    /// What the app-server answered.
    pub(super) answer: Value,
    /// What is said of it from now on.
    pub(super) inbox: Inbox,
    /// By which it is left.
    pub(super) subscription: u64,
}

/// All that wait.
#[derive(Debug)]
pub(super) struct Calls {
    limit: Duration,
    last: u64,
    waiting: HashMap<u64, Call>,
    /// In the order in which they were asked, which is the order of their deadlines.
    deadlines: VecDeque<(Instant, u64)>,
}

// === impl Calls ===

impl Calls {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, last: 0, waiting: HashMap::new(), deadlines: VecDeque::new() }
    }

    /// A number for the next.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// It was asked, under this number.
    pub(super) fn asked(&mut self, number: u64, call: Call) {
        self.waiting.insert(number, call);
        self.deadlines.push_back((Instant::now() + self.limit, number));
    }

    /// It was answered, if it was asked.
    pub(super) fn answered(&mut self, number: u64) -> Option<Call> {
        self.waiting.remove(&number)
    }

    /// When the next one has had its time. One that was answered may still be counted.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Those that have had their time.
    pub(super) fn overdue(&mut self) -> Vec<Call> {
        let now = Instant::now();
        let over = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).count();
        self.deadlines.drain(..over).filter_map(|(_, number)| self.waiting.remove(&number)).collect()
    }

    /// All of them.
    pub(super) fn take(&mut self) -> Vec<Call> {
        self.deadlines.clear();
        self.waiting.drain().map(|(_, call)| call).collect()
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
