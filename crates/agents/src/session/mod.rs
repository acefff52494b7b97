//! A session: one agent, its prompts in order, its requests, and the log.
//!
//! An actor owns the state and is the only writer of the log. Clients send it commands; readers use the log and the
//! last snapshot, and never wait.

mod actor;
mod command;
mod conversation;
mod log_writer;
mod replay;
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

pub(crate) use self::log_writer::now_ms;
use self::{actor::SessionActor, command::SessionCommand};
pub use self::{
    command::{SessionError, SessionUpdate},
    turn::{TurnHandle, TurnState},
};
use crate::{
    agent::{AgentDriver, AgentError, AgentId, AgentProgram, Conversation, Prompt, UserAnswer},
    log::SessionLog,
    session_store::{SessionDirectory, SessionRecord},
};

/// Grace period of an agent's termination.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// Finds an agent's program and credentials each time it is started.
pub type ProgramLocator = Arc<dyn Fn(AgentId, &Path) -> Result<AgentProgram, AgentError> + Send + Sync>;

/// Limits of every session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// How long an idle agent keeps running; for ever if `None`.
    pub idle_timeout: Option<Duration>,
    /// How long an agent may take to stop its turn.
    pub interrupt_timeout: Duration,
    /// Maximum size of a log.
    pub max_log_bytes: usize,
    /// Maximum number of queued prompts.
    pub max_queued: usize,
    /// Maximum size of queued prompts.
    pub max_queued_bytes: usize,
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Waiting for a prompt.
    Idle,
    /// A turn is running.
    Running,
    /// The agent waits for an answer.
    Waiting,
    /// The session takes no more prompts.
    Ended,
}

/// Handle of a session for clients and readers.
pub struct AgentSession {
    /// Id, chosen by the client.
    pub id: String,
    pub agent: AgentId,
    /// Its events.
    pub log: SessionLog,
    snapshot: Mutex<SessionSnapshot>,
    updated_at: AtomicU64,
    commands: mpsc::UnboundedSender<SessionCommand>,
}

/// State of a session after its last change.
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    /// The stored record, without the queue.
    pub record: SessionRecord,
    /// State.
    pub status: SessionStatus,
    /// Number of queued prompts.
    pub queued: usize,
    /// Time of the last event.
    pub updated_at: u64,
}

/// What a session is started with.
pub struct SessionParts {
    pub agent: Arc<dyn AgentDriver>,
    /// Finds the agent's program when it has to be started again.
    pub locate: ProgramLocator,
    /// The stored record.
    pub record: SessionRecord,
    /// The conversation, if it is open already.
    pub conversation: Option<Box<dyn Conversation>>,
    /// Where it is stored.
    pub session_dir: Option<SessionDirectory>,
    pub limits: SessionLimits,
}

// === impl SessionLimits ===

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            idle_timeout: Some(Duration::from_secs(600)),
            interrupt_timeout: Duration::from_secs(10),
            max_log_bytes: 512 * 1024 * 1024,
            max_queued: 1000,
            max_queued_bytes: 64 * 1024 * 1024,
        }
    }
}

// === impl AgentSession ===

impl AgentSession {
    /// Starts the actor of a session.
    pub fn start(parts: SessionParts) -> Arc<Self> {
        let (commands, inbox) = mpsc::unbounded_channel();
        let queued = parts.record.queue.len();
        let record = SessionRecord { queue: Vec::new(), ..parts.record.clone() };
        // It had ended before the restart.
        let status = if record.end.is_some() { SessionStatus::Ended } else { SessionStatus::Idle };
        // Only a restored session has stored events.
        let log = match parts.session_dir.as_ref().filter(|session_dir| session_dir.last().full > 0) {
            Some(session_dir) => SessionLog::lazy(session_dir.last(), session_dir.reader()),
            None => SessionLog::default(),
        };
        let session = Arc::new(Self {
            id: record.session_id.clone(),
            agent: record.agent,
            log,
            updated_at: AtomicU64::new(record.updated_at),
            snapshot: Mutex::new(SessionSnapshot { status, queued, updated_at: record.updated_at, record }),
            commands,
        });
        let mut actor = SessionActor::new(Arc::clone(&session), parts);
        // The first event is logged before the session is visible.
        actor.begin();
        tokio::spawn(actor.run(inbox));
        session
    }

    /// The current state.
    pub fn snapshot(&self) -> SessionSnapshot {
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        snapshot.updated_at = self.updated_at.load(Ordering::Relaxed);
        snapshot
    }

    /// Whether this is published already: the record, and everything.
    fn shows(&self, record: &SessionRecord, status: SessionStatus, queued: usize) -> (bool, bool) {
        let snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let same = snapshot.record == *record;
        (same, same && (snapshot.status, snapshot.queued) == (status, queued))
    }

    fn publish(&self, record: &SessionRecord, status: SessionStatus, queued: usize) {
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.record.clone_from(record);
        (snapshot.status, snapshot.queued) = (status, queued);
        self.updated_at.fetch_max(record.updated_at, Ordering::Relaxed);
    }

    /// Queues a prompt. It runs even if the caller disconnects.
    pub async fn prompt(&self, prompt: Prompt, has_client_id: bool) -> Result<TurnHandle, SessionError> {
        self.send(|reply| SessionCommand::Prompt { prompt, has_client_id, reply }).await?
    }

    /// Interrupts the turn and drops the queue.
    pub async fn abort(&self) -> Result<(), SessionError> {
        self.send(|reply| SessionCommand::Abort { reply }).await?
    }

    /// Answers a request of the agent.
    pub async fn answer(&self, id: String, answer: UserAnswer) -> Result<(), SessionError> {
        self.send(|reply| SessionCommand::Answer { id, answer, reply }).await?
    }

    /// Changes settings of the agent.
    pub async fn update(&self, update: SessionUpdate) -> Result<(), SessionError> {
        self.send(|reply| SessionCommand::Update { update, reply }).await?
    }

    /// Terminates the session. Its log stays readable.
    pub async fn terminate(&self) -> Result<(), SessionError> {
        self.send(|reply| SessionCommand::Terminate { reply }).await
    }

    /// Resumes the session after it ended.
    pub async fn resume(&self) -> Result<(), SessionError> {
        self.send(|reply| SessionCommand::Resume { reply }).await?
    }

    /// Stops the actor and the agent, with this grace period; `remove` also deletes its files. No command is accepted
    /// afterwards.
    pub async fn close(&self, remove: bool, grace: Duration) {
        let _closed_already = self.send(|reply| SessionCommand::Close { remove, grace, reply }).await;
    }

    async fn send<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> SessionCommand) -> Result<T, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| SessionError::Gone)?;
        answer.await.map_err(|_| SessionError::Gone)
    }
}

#[cfg(test)]
mod tests;
