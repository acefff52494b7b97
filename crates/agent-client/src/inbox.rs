//! The queue of frames received for one operation.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::Flags;
use tokio::sync::Notify;

use crate::error::{AgentClientError, ConnectionLost, ProtocolViolation};
use crate::link::{AgentLink, FrameHandler};
use crate::raw::RawFrame;

/// The fixed charge of a queued frame.
const FRAME_CHARGE: usize = 64;
/// The maximum backlog of an operation without credit.
pub(crate) const UNCREDITED: usize = 1024 * 1024;

/// A queue with one consumer. While its backlog exceeds the budget, the connection is not read.
#[derive(Debug)]
pub(crate) struct FrameInbox {
    state: Mutex<InboxState>,
    arrived: Notify,
    room: Notify,
    budget: usize,
}

#[derive(Debug, Default)]
struct InboxState {
    frames: VecDeque<RawFrame>,
    charged: usize,
    /// Why no further frame will arrive.
    end: Option<InboxEnd>,
    abandoned: bool,
}

#[derive(Debug)]
enum InboxEnd {
    /// The last frame arrived, but its consumer expected more.
    Terminal,
    Lost(ConnectionLost),
}

// === impl FrameInbox ===

impl FrameInbox {
    pub(crate) fn new(budget: usize) -> Self {
        Self { state: Mutex::default(), arrived: Notify::new(), room: Notify::new(), budget }
    }

    /// The next frame; after the last, the reason why there is none. Cancel safe.
    pub(crate) async fn pop(&self) -> Result<RawFrame, AgentClientError> {
        loop {
            if let Some(next) = self.try_pop() {
                return next;
            }
            self.arrived.notified().await;
        }
    }

    /// Like [`Self::pop`], without waiting.
    pub(crate) fn try_pop(&self) -> Option<Result<RawFrame, AgentClientError>> {
        let mut state = self.lock();
        match state.frames.pop_front() {
            Some(frame) => {
                let was_full = state.charged > self.budget;
                state.charged -= charge(&frame);
                if was_full && state.charged <= self.budget {
                    self.room.notify_one();
                }
                Some(Ok(frame))
            }
            None => state.end.as_ref().map(|end| Err(end.into())),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().frames.is_empty()
    }

    pub(crate) fn push(&self, frame: RawFrame) {
        let mut state = self.lock();
        if !state.abandoned {
            state.charged += charge(&frame);
            if frame.is_terminal() {
                state.end = Some(InboxEnd::Terminal);
            }
            state.frames.push_back(frame);
            self.arrived.notify_one();
        }
    }

    /// Blocks the reader of the connection until the backlog is within the budget or the consumer is gone.
    pub(crate) async fn room(&self) {
        while self.lock().charged > self.budget {
            self.room.notified().await;
        }
    }

    /// Ends the queue after the frames that it holds.
    pub(crate) fn fail(&self, lost: &ConnectionLost) {
        self.lock().end.get_or_insert_with(|| InboxEnd::Lost(lost.clone()));
        self.arrived.notify_one();
    }

    /// Clears the queue permanently.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        state.frames = VecDeque::new();
        state.charged = 0;
        self.room.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl InboxEnd ===

impl From<&InboxEnd> for AgentClientError {
    fn from(end: &InboxEnd) -> Self {
        match end {
            InboxEnd::Terminal => ProtocolViolation::unexpected("another message", "the end of the operation").into(),
            InboxEnd::Lost(lost) => lost.clone().into(),
        }
    }
}

impl FrameHandler for FrameInbox {
    fn inbox(&self) -> &FrameInbox {
        self
    }

    fn deliver(&self, _: &AgentLink, frame: RawFrame) {
        self.push(frame);
    }
}

fn charge(frame: &RawFrame) -> usize {
    frame.body.len() + FRAME_CHARGE
}

impl RawFrame {
    /// Whether no further frame will arrive for this id.
    pub(crate) fn is_terminal(&self) -> bool {
        self.flags.contains(Flags::TERMINAL)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use bytes::Bytes;

    use super::*;

    fn frame(len: usize) -> RawFrame {
        RawFrame { id: 1, flags: Flags::NONE, body: Bytes::from(vec![0; len]) }
    }

    fn is_ready(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_full_queue_blocks_the_reader_until_its_consumer_reads_or_is_dropped() {
        let inbox = FrameInbox::new(1000);
        inbox.push(frame(936));
        assert!(is_ready(inbox.room()), "the budget is exact");
        inbox.push(frame(0));
        assert!(!is_ready(inbox.room()));
        assert!(inbox.try_pop().is_some());
        assert!(is_ready(inbox.room()));
        inbox.push(frame(2000));
        assert!(!is_ready(inbox.room()));
        inbox.abandon();
        assert!(is_ready(inbox.room()));
        inbox.push(frame(2000));
        assert!(inbox.is_empty(), "nothing is queued without a consumer");
    }

    #[test]
    fn reading_past_the_last_frame_fails_instead_of_waiting() {
        let inbox = FrameInbox::new(1000);
        inbox.push(RawFrame { flags: Flags::TERMINAL, ..frame(1) });
        inbox.fail(&ConnectionLost::Ended);
        assert!(inbox.try_pop().unwrap().is_ok());
        assert!(matches!(inbox.try_pop(), Some(Err(AgentClientError::Protocol(_)))));
    }

    //= client.streams-types.frames-arrived-before-loss
    #[test]
    fn frames_received_before_the_connection_was_lost_are_delivered() {
        let inbox = FrameInbox::new(1000);
        inbox.push(frame(1));
        inbox.fail(&ConnectionLost::Ended);
        inbox.fail(&ConnectionLost::Closed);
        assert!(inbox.try_pop().unwrap().is_ok());
        for _ in 0..2 {
            assert!(matches!(inbox.try_pop(), Some(Err(AgentClientError::Lost(ConnectionLost::Ended)))));
        }
    }
}
