//! State shared by a follower and its controls.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::{Flags, Frame};
use tokio::sync::Notify;

use crate::client::supported;
use crate::error::ShimError;
use crate::link::{self, Link};
use crate::messages::{Failed, FailureCode, JobInfo};
use crate::wire::Message;

/// The maximum number of unacknowledged input bytes.
const WINDOW: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) link: Link,
    pub(super) job: String,
    /// Serializes writes, so that concurrent input is not interleaved.
    pub(super) turn: tokio::sync::Mutex<()>,
    version: u8,
    state: Mutex<State>,
    changed: Notify,
}

/// Why there will be no more responses.
#[derive(Clone, Debug)]
pub(super) enum Over {
    Ended(Box<JobInfo>),
    Lost(ShimError),
}

/// A request of a control. If dropped, its response is skipped.
#[derive(Debug)]
pub(super) struct Ticket<'s> {
    shared: &'s Shared,
    id: u32,
}

#[derive(Debug, Default)]
struct State {
    last_id: u32,
    requests: HashMap<u32, Request>,
    /// Unacknowledged input bytes.
    unanswered: usize,
    over: Option<Over>,
}

/// A request that was sent.
#[derive(Debug)]
struct Request {
    /// Its input bytes.
    input: usize,
    answered: bool,
    /// The body of its response, for the waiting caller.
    answer: Option<Vec<u8>>,
    /// Whether the caller was dropped.
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

    /// Fails all pending and future requests. The first reason wins.
    pub(super) fn end(&self, over: Over) {
        self.lock().over.get_or_insert(over);
        self.changed.notify_waiters();
    }

    /// Delivers a response to its request.
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

    /// Sends a request with that many bytes of input; `None` while the window is exhausted.
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

    /// Evaluates `look` again after every change until it returns a value.
    pub(super) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Registered before the check, so that no change is missed.
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
            // The same failure that the shim would send.
            Over::Ended(_) => {
                let message = "the job has ended".into();
                Self::Failed(Failed { code: FailureCode::JobEnded, message, hint: None })
            }
        }
    }
}

// === impl Ticket ===

impl Ticket<'_> {
    /// The body of the response, once it is received or can never be.
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
            // Its input counts until it is acknowledged.
            Some(request) if !request.answered => request.abandoned = true,
            _ => drop(state.requests.remove(&self.id)),
        }
    }
}
