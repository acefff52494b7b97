//! State shared by a follower and its controls.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::{Flags, Frame};
use tokio::sync::Notify;

use crate::client::supported;
use crate::error::ShimError;
use crate::link::{self, ShimLink};
use crate::messages::{FailureCode, JobInfo, ShimFailure};
use crate::wire::ShimMessage;

/// The maximum number of unacknowledged input bytes.
const WINDOW: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct FollowShared {
    pub(super) link: ShimLink,
    pub(super) job: String,
    /// Serializes writes, so that concurrent input is not interleaved.
    pub(super) turn: tokio::sync::Mutex<()>,
    version: u8,
    state: Mutex<FollowState>,
    changed: Notify,
}

/// Why there will be no more responses.
#[derive(Clone, Debug)]
pub(super) enum FollowEnd {
    Ended(Box<JobInfo>),
    Lost(ShimError),
}

/// A request of a control. If dropped, its response is skipped.
#[derive(Debug)]
pub(super) struct RequestTicket<'s> {
    shared: &'s FollowShared,
    id: u32,
}

#[derive(Debug, Default)]
struct FollowState {
    last_id: u32,
    requests: HashMap<u32, SentRequest>,
    /// Unacknowledged input bytes.
    unanswered: usize,
    over: Option<FollowEnd>,
}

#[derive(Debug)]
struct SentRequest {
    /// Its input bytes.
    input: usize,
    answered: bool,
    /// The body of its response, for the waiting caller.
    answer: Option<Vec<u8>>,
    /// Whether the caller was dropped.
    abandoned: bool,
}

// === impl FollowShared ===

impl FollowShared {
    pub(super) fn new(link: ShimLink, version: u8, last_id: u32, job: String) -> Self {
        let state = Mutex::new(FollowState { last_id, ..FollowState::default() });
        Self { link, job, turn: tokio::sync::Mutex::new(()), version, state, changed: Notify::new() }
    }

    pub(super) fn end_of_follow(&self) -> Option<FollowEnd> {
        self.lock().over.clone()
    }

    /// Fails all pending and future requests. The first reason wins.
    pub(super) fn end(&self, over: FollowEnd) {
        self.lock().over.get_or_insert(over);
        self.changed.notify_waiters();
    }

    /// Delivers a response to its request.
    pub(super) fn answer(&self, frame: &Frame<'_>) {
        if !frame.flags.contains(Flags::TERMINAL) {
            return;
        }
        let mut state = self.lock();
        let FollowState { requests, unanswered, .. } = &mut *state;
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

    pub(super) fn send<'m, M: ShimMessage<'m>>(&self, message: &M) -> Result<RequestTicket<'_>, FollowEnd> {
        self.push(&mut self.lock(), message, 0)
    }

    /// Sends a request with that many bytes of input; `None` while the window is exhausted.
    pub(super) fn send_input<'m, M: ShimMessage<'m>>(
        &self,
        message: &M,
        input: usize,
    ) -> Option<Result<RequestTicket<'_>, FollowEnd>> {
        let mut state = self.lock();
        if state.over.is_none() && state.unanswered + input > WINDOW {
            return None;
        }
        Some(self.push(&mut state, message, input))
    }

    fn push<'m, M: ShimMessage<'m>>(
        &self,
        state: &mut FollowState,
        message: &M,
        input: usize,
    ) -> Result<RequestTicket<'_>, FollowEnd> {
        supported::<M>(self.version).map_err(FollowEnd::Lost)?;
        if let Some(over) = &state.over {
            return Err(over.clone());
        }
        let id = link::id_after(state.last_id);
        self.link.send(self.version, id, message).map_err(|error| FollowEnd::Lost(error.into()))?;
        state.last_id = id;
        state.unanswered += input;
        state.requests.insert(id, SentRequest { input, answered: false, answer: None, abandoned: false });
        Ok(RequestTicket { shared: self, id })
    }

    /// Evaluates `look` again after every change until it returns a value.
    pub(super) async fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Registered before the check, so that no change is missed.
            let changed = self.changed.notified();
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, FollowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl FollowEnd ===

impl From<FollowEnd> for ShimError {
    fn from(over: FollowEnd) -> Self {
        match over {
            FollowEnd::Lost(error) => error,
            // The same failure that the shim would send.
            FollowEnd::Ended(_) => {
                let message = "the job has ended".into();
                Self::Failed(ShimFailure { code: FailureCode::JobEnded, message, hint: None })
            }
        }
    }
}

// === impl RequestTicket ===

impl RequestTicket<'_> {
    /// The body of the response, once it is received or can never be.
    pub(super) fn answer(&self) -> Option<Result<Vec<u8>, FollowEnd>> {
        let mut state = self.shared.lock();
        let answer = state.requests.get_mut(&self.id).and_then(|request| request.answer.take());
        answer.map(Ok).or_else(|| state.over.clone().map(Err))
    }
}

impl Drop for RequestTicket<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        match state.requests.get_mut(&self.id) {
            // Its input counts until it is acknowledged.
            Some(request) if !request.answered => request.abandoned = true,
            _ => drop(state.requests.remove(&self.id)),
        }
    }
}
