//! What arrived for one operation and waits for its owner.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::Flags;
use tokio::sync::Notify;

use crate::error::{ConnectionLost, Error, ProtocolViolation};
use crate::link::{Link, Sink};
use crate::raw::RawFrame;

/// What a waiting frame costs besides its body.
const FRAME_CHARGE: usize = 64;
/// What may wait for an operation that has no credit to bound it.
pub(crate) const UNCREDITED: usize = 1024 * 1024;

/// A queue with one owner. While more than its budget waits, the connection is not read.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Notify,
    room: Notify,
    budget: usize,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<RawFrame>,
    charged: usize,
    /// Why nothing will follow what waits.
    end: Option<End>,
    abandoned: bool,
}

#[derive(Debug)]
enum End {
    /// The last frame was not what its owner took for the last.
    Terminal,
    Lost(ConnectionLost),
}

// === impl Inbox ===

impl Inbox {
    pub(crate) fn new(budget: usize) -> Self {
        Self { state: Mutex::default(), arrived: Notify::new(), room: Notify::new(), budget }
    }

    /// The next frame; after the last, why there is none. Dropping the future loses no frame.
    pub(crate) async fn pop(&self) -> Result<RawFrame, Error> {
        loop {
            if let Some(next) = self.try_pop() {
                return next;
            }
            self.arrived.notified().await;
        }
    }

    /// What [`Self::pop`] would return without waiting.
    pub(crate) fn try_pop(&self) -> Option<Result<RawFrame, Error>> {
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
                state.end = Some(End::Terminal);
            }
            state.frames.push_back(frame);
            self.arrived.notify_one();
        }
    }

    /// Waits, in the place of the one who reads the connection, until the budget is kept or nobody is interested.
    pub(crate) async fn room(&self) {
        while self.lock().charged > self.budget {
            self.room.notified().await;
        }
    }

    /// Ends the queue behind what waits in it.
    pub(crate) fn lose(&self, lost: &ConnectionLost) {
        self.lock().end.get_or_insert_with(|| End::Lost(lost.clone()));
        self.arrived.notify_one();
    }

    /// Empties the queue for good.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        state.frames = VecDeque::new();
        state.charged = 0;
        self.room.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl End ===

impl From<&End> for Error {
    fn from(end: &End) -> Self {
        match end {
            End::Terminal => ProtocolViolation::unexpected("another message", "the end of the operation").into(),
            End::Lost(lost) => lost.clone().into(),
        }
    }
}

impl Sink for Inbox {
    fn inbox(&self) -> &Inbox {
        self
    }

    fn deliver(&self, _: &Link, frame: RawFrame) {
        self.push(frame);
    }
}

fn charge(frame: &RawFrame) -> usize {
    frame.body.len() + FRAME_CHARGE
}

impl RawFrame {
    /// Whether nothing follows for this id.
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
    fn a_full_queue_holds_the_reader_back_until_its_owner_takes_something_or_leaves() {
        let inbox = Inbox::new(1000);
        inbox.push(frame(936));
        assert!(is_ready(inbox.room()), "the budget is kept to the byte");
        inbox.push(frame(0));
        assert!(!is_ready(inbox.room()));
        assert!(inbox.try_pop().is_some());
        assert!(is_ready(inbox.room()));
        inbox.push(frame(2000));
        assert!(!is_ready(inbox.room()));
        inbox.abandon();
        assert!(is_ready(inbox.room()));
        inbox.push(frame(2000));
        assert!(inbox.is_empty(), "nothing is kept for nobody");
    }

    //= client.constants-functions.further-frame-arrives-id
    //= client.streams-types.next-next-frame-nothing
    #[test]
    fn nobody_waits_for_what_follows_the_last_frame() {
        let inbox = Inbox::new(1000);
        inbox.push(RawFrame { flags: Flags::TERMINAL, ..frame(1) });
        inbox.lose(&ConnectionLost::Ended);
        assert!(inbox.try_pop().unwrap().is_ok());
        assert!(matches!(inbox.try_pop(), Some(Err(Error::Protocol(_)))));
    }

    //= client.streams-types.frames-arrived-before-loss
    #[test]
    fn what_arrived_before_the_loss_is_still_delivered() {
        let inbox = Inbox::new(1000);
        inbox.push(frame(1));
        inbox.lose(&ConnectionLost::Ended);
        inbox.lose(&ConnectionLost::Closed);
        assert!(inbox.try_pop().unwrap().is_ok());
        for _ in 0..2 {
            assert!(matches!(inbox.try_pop(), Some(Err(Error::Lost(ConnectionLost::Ended)))));
        }
    }
}
