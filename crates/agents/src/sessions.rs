//! All sessions of a server, oldest first.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;

use crate::{
    agent::{AgentDriver, AgentError, AgentId, AgentMode, ConversationOptions, PermissionMode},
    session::{AgentSession, CLOSE_GRACE, ProgramLocator, SessionLimits, SessionParts, now_ms},
    session_store::{SessionRecord, SessionStore},
};

/// All sessions of a server.
pub struct SessionRegistry {
    slots: Mutex<Vec<SessionSlot>>,
    store: Option<SessionStore>,
    locate: ProgramLocator,
    limits: SessionLimits,
}

/// An entry of the registry; an id is reserved before its session exists.
enum SessionSlot {
    Reserved(String),
    Ready(Arc<AgentSession>),
}

/// Parameters of a new session.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Id, chosen by the client.
    pub session_id: String,
    /// Build or plan.
    pub agent_mode: AgentMode,
    /// What the agent may do without asking.
    pub permission_mode: PermissionMode,
    pub model: Option<String>,
    /// Variant of the model.
    pub variant: Option<String>,
    /// Working directory.
    pub directory: PathBuf,
    pub title: Option<String>,
}

/// Why a session was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateSessionError {
    /// The id is in use.
    #[error("session already exists: {0}")]
    Exists(String),
    /// The agent could not be started.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The session could not be stored.
    #[error("the session cannot be kept: {0}")]
    Store(#[from] std::io::Error),
}

/// A reserved id. It is released on drop unless the session was created.
pub struct SessionReservation<'sessions> {
    sessions: &'sessions SessionRegistry,
    id: String,
    committed: bool,
}

// === impl SessionRegistry ===

impl SessionRegistry {
    /// An empty registry.
    pub fn new(store: Option<SessionStore>, locate: ProgramLocator, limits: SessionLimits) -> Self {
        Self { slots: Mutex::default(), store, locate, limits }
    }

    /// Restores the sessions of an earlier server. Their queued prompts run.
    pub fn restore(&self, agent: impl Fn(AgentId) -> Option<Arc<dyn AgentDriver>>) {
        for (record, session_dir) in self.store.iter().flat_map(SessionStore::load) {
            let Some(agent) = agent(record.agent) else { continue };
            let session = AgentSession::start(SessionParts {
                agent,
                locate: Arc::clone(&self.locate),
                record,
                conversation: None,
                session_dir: Some(session_dir),
                limits: self.limits.clone(),
            });
            self.lock().push(SessionSlot::Ready(session));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SessionSlot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions, oldest first.
    pub fn all(&self) -> Vec<Arc<AgentSession>> {
        let ready = |slot: &SessionSlot| match slot {
            SessionSlot::Ready(session) => Some(Arc::clone(session)),
            SessionSlot::Reserved(_) => None,
        };
        self.lock().iter().filter_map(ready).collect()
    }

    /// The session of this id.
    pub fn get(&self, id: &str) -> Option<Arc<AgentSession>> {
        self.lock().iter().find_map(|slot| match slot {
            SessionSlot::Ready(session) if session.id == id => Some(Arc::clone(session)),
            _ => None,
        })
    }

    pub fn reserve(&self, id: &str) -> Result<SessionReservation<'_>, CreateSessionError> {
        let mut slots = self.lock();
        if slots.iter().any(|slot| slot.id() == id) {
            return Err(CreateSessionError::Exists(id.to_owned()));
        }
        slots.push(SessionSlot::Reserved(id.to_owned()));
        Ok(SessionReservation { sessions: self, id: id.to_owned(), committed: false })
    }

    /// Terminates and deletes a session.
    pub async fn remove(&self, session: &AgentSession) {
        session.close(true, CLOSE_GRACE).await;
        self.lock().retain(|slot| !matches!(slot, SessionSlot::Ready(ready) if std::ptr::eq(&**ready, session)));
    }

    /// Closes all sessions. Their files stay on disk.
    pub async fn close(&self, grace: Duration, timeout: Duration) {
        let all = self.all();
        let closing = join_all(all.iter().map(|session| session.close(false, grace)));
        let _too_slow = tokio::time::timeout(timeout, closing).await;
    }
}

// === impl SessionSlot ===

impl SessionSlot {
    fn id(&self) -> &str {
        match self {
            Self::Reserved(id) => id,
            Self::Ready(session) => &session.id,
        }
    }
}

// === impl SessionReservation ===

impl SessionReservation<'_> {
    /// Opens the conversation and starts the session.
    pub async fn create(
        mut self,
        agent: Arc<dyn AgentDriver>,
        new_session: NewSession,
    ) -> Result<Arc<AgentSession>, CreateSessionError> {
        let sessions = self.sessions;
        let options = ConversationOptions {
            session_id: new_session.session_id.clone(),
            program: (sessions.locate)(agent.id(), &new_session.directory)?,
            agent_mode: new_session.agent_mode,
            permission_mode: new_session.permission_mode,
            model: new_session.model.clone(),
            variant: new_session.variant.clone(),
            native_id: None,
            resumable: false,
        };
        let conversation = agent.open(options).await?;
        let now = now_ms();
        let record = SessionRecord {
            session_id: new_session.session_id,
            agent: agent.id(),
            agent_mode: new_session.agent_mode,
            permission_mode: new_session.permission_mode,
            model: new_session.model,
            variant: new_session.variant,
            native_id: conversation.native_id(),
            begun: false,
            end: None,
            created_at: now,
            updated_at: now,
            directory: new_session.directory,
            title: new_session.title,
            turns: 0,
            running: false,
            queue: Vec::new(),
        };
        let session_dir = match &sessions.store {
            Some(store) => {
                let session_dir = store.create(&record.session_id)?;
                session_dir.write_record(&record)?;
                Some(session_dir)
            }
            None => None,
        };
        let session = AgentSession::start(SessionParts {
            agent,
            locate: Arc::clone(&sessions.locate),
            record,
            conversation: Some(conversation),
            session_dir,
            limits: sessions.limits.clone(),
        });
        self.committed = true;
        for slot in sessions.lock().iter_mut() {
            if matches!(slot, SessionSlot::Reserved(id) if *id == self.id) {
                *slot = SessionSlot::Ready(Arc::clone(&session));
            }
        }
        Ok(session)
    }
}

impl Drop for SessionReservation<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.sessions.lock().retain(|slot| !matches!(slot, SessionSlot::Reserved(id) if *id == self.id));
        }
    }
}
