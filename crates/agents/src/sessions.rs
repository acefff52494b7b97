//! All sessions of a server, in the order in which they were made.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;

use crate::{
    agent::{Agent, AgentError, AgentId, AgentMode, Opening, PermissionMode},
    keep::{Keep, Record},
    session::{Beginning, FAREWELL, Locate, Rules, Session, milliseconds},
};

/// The sessions.
pub struct Sessions {
    places: Mutex<Vec<Slot>>,
    keep: Option<Keep>,
    locate: Locate,
    rules: Rules,
}

/// A session's place, which is taken before the session is there.
enum Slot {
    Taken(String),
    Ready(Arc<Session>),
}

/// What a session is made of.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The client's id of it.
    pub session_id: String,
    /// How the agent works.
    pub agent_mode: AgentMode,
    /// What it may do unasked.
    pub permission_mode: PermissionMode,
    /// With which model.
    pub model: Option<String>,
    /// How the model is used.
    pub variant: Option<String>,
    /// Where it works.
    pub directory: PathBuf,
    /// For people.
    pub title: Option<String>,
}

/// Why a session was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// There is one of this id.
    #[error("session already exists: {0}")]
    Exists(String),
    /// The agent could not be started.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// It cannot be written down.
    #[error("the session cannot be kept: {0}")]
    Keep(#[from] std::io::Error),
}

/// A place that is free again unless the session came to be.
pub struct Reservation<'sessions> {
    sessions: &'sessions Sessions,
    id: String,
    kept: bool,
}

// === impl Sessions ===

impl Sessions {
    /// None yet, but those that were kept.
    pub fn new(keep: Option<Keep>, locate: Locate, rules: Rules) -> Self {
        Self { places: Mutex::default(), keep, locate, rules }
    }

    /// Takes up the sessions that an earlier server kept. Prompts that waited run.
    pub fn restore(&self, agent: impl Fn(AgentId) -> Option<Arc<dyn Agent>>) {
        for (record, shelf) in self.keep.iter().flat_map(Keep::load) {
            let Some(agent) = agent(record.agent) else { continue };
            let session = Session::start(Beginning {
                agent,
                locate: Arc::clone(&self.locate),
                record,
                conversation: None,
                shelf: Some(shelf),
                rules: self.rules.clone(),
            });
            self.lock().push(Slot::Ready(session));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, the oldest first.
    pub fn all(&self) -> Vec<Arc<Session>> {
        let ready = |slot: &Slot| match slot {
            Slot::Ready(session) => Some(Arc::clone(session)),
            Slot::Taken(_) => None,
        };
        self.lock().iter().filter_map(ready).collect()
    }

    /// One of them.
    pub fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.lock().iter().find_map(|slot| match slot {
            Slot::Ready(session) if session.id == id => Some(Arc::clone(session)),
            _ => None,
        })
    }

    /// Takes an id, before anything is done for it.
    pub fn reserve(&self, id: &str) -> Result<Reservation<'_>, CreateError> {
        let mut places = self.lock();
        if places.iter().any(|slot| slot.id() == id) {
            return Err(CreateError::Exists(id.to_owned()));
        }
        places.push(Slot::Taken(id.to_owned()));
        Ok(Reservation { sessions: self, id: id.to_owned(), kept: false })
    }

    /// Ends a session and forgets it.
    pub async fn remove(&self, session: &Session) {
        session.close(true, FAREWELL).await;
        self.lock().retain(|slot| !matches!(slot, Slot::Ready(ready) if std::ptr::eq(&**ready, session)));
    }

    /// Ends all agents. Sessions that are kept stay on the disk.
    pub async fn close(&self, farewell: Duration, patience: Duration) {
        let all = self.all();
        let closing = join_all(all.iter().map(|session| session.close(false, farewell)));
        let _too_slow = tokio::time::timeout(patience, closing).await;
    }
}

// === impl Slot ===

impl Slot {
    fn id(&self) -> &str {
        match self {
            Self::Taken(id) => id,
            Self::Ready(session) => &session.id,
        }
    }
}

// === impl Reservation ===

impl Reservation<'_> {
    /// Opens the conversation and starts the session.
    pub async fn create(mut self, agent: Arc<dyn Agent>, wanted: Wanted) -> Result<Arc<Session>, CreateError> {
        let sessions = self.sessions;
        let opening = Opening {
            session_id: wanted.session_id.clone(),
            place: (sessions.locate)(agent.id(), &wanted.directory)?,
            agent_mode: wanted.agent_mode,
            permission_mode: wanted.permission_mode,
            model: wanted.model.clone(),
            variant: wanted.variant.clone(),
            native_id: None,
            begun: false,
        };
        let conversation = agent.open(opening).await?;
        let now = milliseconds();
        let record = Record {
            session_id: wanted.session_id,
            agent: agent.id(),
            agent_mode: wanted.agent_mode,
            permission_mode: wanted.permission_mode,
            model: wanted.model,
            variant: wanted.variant,
            native_id: conversation.native_id(),
            begun: false,
            end: None,
            created_at: now,
            updated_at: now,
            directory: wanted.directory,
            title: wanted.title,
            turns: 0,
            running: false,
            queue: Vec::new(),
        };
        let shelf = match &sessions.keep {
            Some(keep) => {
                let shelf = keep.shelf(&record.session_id)?;
                shelf.record(&record)?;
                Some(shelf)
            }
            None => None,
        };
        let session = Session::start(Beginning {
            agent,
            locate: Arc::clone(&sessions.locate),
            record,
            conversation: Some(conversation),
            shelf,
            rules: sessions.rules.clone(),
        });
        self.kept = true;
        for slot in sessions.lock().iter_mut() {
            if matches!(slot, Slot::Taken(id) if *id == self.id) {
                *slot = Slot::Ready(Arc::clone(&session));
            }
        }
        Ok(session)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.sessions.lock().retain(|slot| !matches!(slot, Slot::Taken(id) if *id == self.id));
        }
    }
}
