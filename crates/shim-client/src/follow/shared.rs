//! What a job's follower and its controls have in common.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::{Flags, Frame};
use tokio::sync::Notify;

use crate::client::supported;
use crate::error::ShimError;
use crate::link::{self, Link};
use crate::messages::{Failed, FailureCode, JobInfo};
use crate::wire::Message;

/// Bytes of input that may wait for their answers.
const WINDOW: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) link: Link,
    pub(super) job: String,
    /// Held by whoever queues input, so that nobody's bytes come between those of another.
    pub(super) turn: tokio::sync::Mutex<()>,
    version: u8,
    state: Mutex<State>,
    changed: Notify,
}

/// Why there will be no more answers.
#[derive(Clone, Debug)]
pub(super) enum Over {
    Ended(Box<JobInfo>),
    Lost(ShimError),
}

/// A request of a control. When it is dropped, its answer is passed over.
#[derive(Debug)]
pub(super) struct Ticket<'s> {
    shared: &'s Shared,
    id: u32,
}

#[derive(Debug, Default)]
struct State {
    last_id: u32,
    requests: HashMap<u32, Request>,
    /// Bytes of input that wait for their answers.
    unanswered: usize,
    over: Option<Over>,
}

/// A request that was sent.
#[derive(Debug)]
struct Request {
    /// Bytes of input in it.
    input: usize,
    answered: bool,
    /// The body of its answer, for whoever waits for it.
    answer: Option<Vec<u8>>,
    /// Nobody waits for the answer.
    abandoned: bool,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(link: Link, version: u8, last_id: u32, job: String) -> Self {
        let state = Mutex::new(State { last_id, ..State::default() });
        Self { link, job, turn: tokio::sync::Mutex::new(()), version, state, changed: Notify::new() }
    }

    pub(super) fn over(&self) -> Option<Over> {
        self.lock().over.clone()
    }

    /// Ends everything that waits, and whatever comes later. The first reason stays.
    pub(super) fn end(&self, over: Over) {
        self.lock().over.get_or_insert(over);
        self.changed.notify_waiters();
    }

    /// Hands an answer to whoever waits for it.
    pub(super) fn answer(&self, frame: &Frame<'_>) {
        if !frame.flags.contains(Flags::TERMINAL) {
            return;
        }
        let mut state = self.lock();
        let State { requests, unanswered, .. } = &mut *state;
        let Some(request) = requests.get_mut(&frame.id) else { return };
        *unanswered = unanswered.saturating_sub(std::mem::take(&mut request.input));
        if request.abandoned {
            requests.remove(&frame.id);
        } else {
            request.answered = true;
            request.answer = Some(frame.body.to_vec());
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Sends a request.
    pub(super) fn send<'m, M: Message<'m>>(&self, message: &M) -> Result<Ticket<'_>, Over> {
        self.push(&mut self.lock(), message, 0)
    }

    /// Sends a request with that many bytes of input; `None` while there is no room for them.
    pub(super) fn give<'m, M: Message<'m>>(&self, message: &M, input: usize) -> Option<Result<Ticket<'_>, Over>> {
        let mut state = self.lock();
        if state.over.is_none() && state.unanswered + input > WINDOW {
            return None;
        }
        Some(self.push(&mut state, message, input))
    }

    fn push<'m, M: Message<'m>>(&self, state: &mut State, message: &M, input: usize) -> Result<Ticket<'_>, Over> {
        supported::<M>(self.version).map_err(Over::Lost)?;
        if let Some(over) = &state.over {
            return Err(over.clone());
        }
        let id = link::id_after(state.last_id);
        self.link.send(self.version, id, message).map_err(|error| Over::Lost(error.into()))?;
        state.last_id = id;
        state.unanswered += input;
        state.requests.insert(id, Request { input, answered: false, answer: None, abandoned: false });
        Ok(Ticket { shared: self, id })
    }

    /// What becomes of `look`, which is tried again whenever something has changed.
    pub(super) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // It hears of every change from here on.
            let changed = self.changed.notified();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Over ===

impl From<Over> for ShimError {
    fn from(over: Over) -> Self {
        match over {
            Over::Lost(error) => error,
            // What the supervisor would have answered.
            Over::Ended(_) => {
                let message = "the job has ended".into();
                Self::Failed(Failed { code: FailureCode::JobEnded, message, hint: None })
            }
        }
    }
}

// === impl Ticket ===

impl Ticket<'_> {
    /// The body of the answer, once it is there or will never be.
    pub(super) fn answer(&self) -> Option<Result<Vec<u8>, Over>> {
        let mut state = self.shared.lock();
        let answer = state.requests.get_mut(&self.id).and_then(|request| request.answer.take());
        answer.map(Ok).or_else(|| state.over.clone().map(Err))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        match state.requests.get_mut(&self.id) {
            // Its input counts until it is answered.
            Some(request) if !request.answered => request.abandoned = true,
            _ => drop(state.requests.remove(&self.id)),
        }
    }
}
