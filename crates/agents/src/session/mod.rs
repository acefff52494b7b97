//! A session: one agent, its prompts in order, what it asks, and the log of all that.
//!
//! An actor owns everything that changes and is the only one who writes the log. Whoever wants something sends it an order;
//! whoever only looks reads the log and the last snapshot, and waits for nobody.

mod actor;
mod order;
mod recall;
mod scribe;
mod talk;
mod turn;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

pub(crate) use self::scribe::milliseconds;
use self::{actor::Actor, order::Order};
pub use self::{
    order::{Change, SessionError},
    turn::{Ticket, TurnState},
};
use crate::{
    agent::{Agent, AgentError, AgentId, Answer, Conversation, Place, Prompt},
    keep::{Record, Shelf},
    log::Log,
};

/// How long an agent has to end by itself.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// Finds an agent's program and credentials each time that it is started.
pub type Locate = Arc<dyn Fn(AgentId, &Path) -> Result<Place, AgentError> + Send + Sync>;

/// What every session of a server obeys.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How long an agent without a turn is kept running.
    pub idle: Option<Duration>,
    /// How long an agent may take to stop its turn.
    pub interrupt: Duration,
    /// How many bytes a log may hold.
    pub log_bytes: usize,
    /// How many prompts may wait.
    pub queue: usize,
    /// And of how many bytes in all.
    pub queue_bytes: usize,
}

/// What is going on in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It waits for a prompt.
    Idle,
    /// The agent works.
    Running,
    /// The agent waits for an answer.
    Waiting,
    /// It takes no more prompts.
    Ended,
}

/// A session, for those who look at it and those who want something of it.
pub struct Session {
    /// The client's id of it.
    pub id: String,
    /// Who runs in it.
    pub agent: AgentId,
    /// What happened in it.
    pub log: Log,
    snapshot: Mutex<Snapshot>,
    updated_at: AtomicU64,
    orders: mpsc::UnboundedSender<Order>,
}

/// How a session was when something last changed.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// All that is written down about it, but for the prompts that wait.
    pub record: Record,
    /// What is going on.
    pub status: Status,
    /// How many prompts wait.
    pub queued: usize,
    /// When something last happened.
    pub updated_at: u64,
}

/// What a session begins with.
pub struct Beginning {
    /// Who runs in it.
    pub agent: Arc<dyn Agent>,
    /// How the agent's program is found when it has to be started again.
    pub locate: Locate,
    /// What is known about it.
    pub record: Record,
    /// The conversation, if it is open already.
    pub conversation: Option<Box<dyn Conversation>>,
    /// Where it is kept.
    pub shelf: Option<Shelf>,
    /// What it obeys.
    pub rules: Rules,
}

// === impl Rules ===

impl Default for Rules {
    fn default() -> Self {
        Self {
            idle: Some(Duration::from_secs(600)),
            interrupt: Duration::from_secs(10),
            log_bytes: 512 * 1024 * 1024,
            queue: 1000,
            queue_bytes: 64 * 1024 * 1024,
        }
    }
}

// === impl Session ===

impl Session {
    /// Starts the actor of a session.
    pub fn start(beginning: Beginning) -> Arc<Self> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let queued = beginning.record.queue.len();
        let record = Record { queue: Vec::new(), ..beginning.record.clone() };
        // That one had ended before is no news.
        let status = if record.end.is_some() { Status::Ended } else { Status::Idle };
        // Only what was there before is kept already.
        let log = match beginning.shelf.as_ref().filter(|shelf| shelf.last().full > 0) {
            Some(shelf) => Log::dormant(shelf.last(), shelf.reader()),
            None => Log::default(),
        };
        let session = Arc::new(Self {
            id: record.session_id.clone(),
            agent: record.agent,
            log,
            updated_at: AtomicU64::new(record.updated_at),
            snapshot: Mutex::new(Snapshot { status, queued, updated_at: record.updated_at, record }),
            orders,
        });
        let mut actor = Actor::new(Arc::clone(&session), beginning);
        // Whoever hears of the session finds its first event.
        actor.begin();
        tokio::spawn(actor.run(inbox));
        session
    }

    /// How it is.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        snapshot.updated_at = self.updated_at.load(Ordering::Relaxed);
        snapshot
    }

    /// Whether this is what is shown already: the record, and the rest too.
    fn shows(&self, record: &Record, status: Status, queued: usize) -> (bool, bool) {
        let snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let same = snapshot.record == *record;
        (same, same && (snapshot.status, snapshot.queued) == (status, queued))
    }

    fn publish(&self, record: &Record, status: Status, queued: usize) {
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.record.clone_from(record);
        (snapshot.status, snapshot.queued) = (status, queued);
        self.updated_at.fetch_max(record.updated_at, Ordering::Relaxed);
    }

    /// Takes a prompt. It runs when its turn comes, whatever becomes of who sent it.
    pub async fn prompt(&self, prompt: Prompt, named: bool) -> Result<Ticket, SessionError> {
        self.order(|reply| Order::Prompt { prompt, named, reply }).await?
    }

    /// Stops the turn and forgets the prompts that wait.
    pub async fn abort(&self) -> Result<(), SessionError> {
        self.order(|reply| Order::Abort { reply }).await?
    }

    /// Answers what the agent asked.
    pub async fn answer(&self, id: String, answer: Answer) -> Result<(), SessionError> {
        self.order(|reply| Order::Answer { id, answer, reply }).await?
    }

    /// Changes how the agent works.
    pub async fn change(&self, change: Change) -> Result<(), SessionError> {
        self.order(|reply| Order::Change { change, reply }).await?
    }

    /// Ends it. It can still be read.
    pub async fn terminate(&self) -> Result<(), SessionError> {
        self.order(|reply| Order::Terminate { reply }).await
    }

    /// Opens it again after it ended.
    pub async fn resume(&self) -> Result<(), SessionError> {
        self.order(|reply| Order::Resume { reply }).await?
    }

    /// Ends the actor and the agent, which has this long to end by itself; with `remove` nothing stays on disk. Nobody can
    /// order anything afterwards.
    pub async fn close(&self, remove: bool, farewell: Duration) {
        let _gone_already = self.order(|reply| Order::Close { remove, farewell, reply }).await;
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).map_err(|_| SessionError::Gone)?;
        answer.await.map_err(|_| SessionError::Gone)
    }
}

#[cfg(test)]
mod tests;
