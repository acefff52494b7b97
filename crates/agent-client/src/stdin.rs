//! The input of a running command: how much of it may be on its way.

use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::payload::{ExecLimits, ExecStdinError};
use tokio::sync::Notify;

use crate::error::{ConnectionLost, Error};

/// The largest chunk of input for an agent that announces no limit.
const DEFAULT_CHUNK: usize = 64 * 1024;
/// The largest chunk, whatever an agent announces: it has to fit into a frame.
const MAX_CHUNK: u32 = 1024 * 1024;

/// What was sent, and what the command took.
#[derive(Debug)]
pub(crate) struct Stdin {
    state: Mutex<State>,
    moved: Notify,
    /// Held by the one who writes, so that two writes never interleave.
    pub(crate) turn: tokio::sync::Mutex<()>,
    chunk: usize,
    /// How much may be unacknowledged; without acknowledgements, the connection itself is the bound.
    limit: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    sent: u64,
    taken: u64,
    end: Option<End>,
}

/// Why there is no more input.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The caller said so, or the command ended.
    Closed,
    /// The agent could not deliver it.
    Failed(Box<ExecStdinError>),
    /// The connection is gone.
    Lost(ConnectionLost),
}

// === impl Stdin ===

impl Stdin {
    pub(crate) fn new(limits: Option<ExecLimits>) -> Self {
        // A limit of nothing would wait for ever. One byte is refused by such an agent, with a reason.
        let chunk = limits.map(|limits| limits.stdin_chunk_size.min(limits.input_limit).clamp(1, MAX_CHUNK));
        Self {
            state: Mutex::default(),
            moved: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            chunk: chunk.and_then(|chunk| usize::try_from(chunk).ok()).unwrap_or(DEFAULT_CHUNK),
            limit: limits.map(|limits| u64::from(limits.input_limit.max(1))),
        }
    }

    /// Waits until input may be sent; returns and notes how much, at most `wanted`. Its owner sends it at once.
    pub(crate) async fn claim(&self, wanted: usize) -> Result<usize, Error> {
        loop {
            {
                let mut state = self.lock();
                state.check()?;
                let len = wanted.min(self.chunk);
                let outstanding = state.sent - state.taken;
                // A whole chunk or nothing: crumbs would cost a frame each.
                if self.limit.is_none_or(|limit| outstanding + len as u64 <= limit) {
                    state.sent += len as u64;
                    return Ok(len);
                }
            }
            self.moved.notified().await;
        }
    }

    /// Whether input may still be sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.lock().check()
    }

    /// The command took input. A number that makes no sense changes nothing.
    pub(crate) fn acknowledge(&self, taken: u64) {
        let mut state = self.lock();
        state.taken = taken.clamp(state.taken, state.sent);
        self.moved.notify_one();
    }

    /// There is no more input, for the first reason that is given.
    pub(crate) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.moved.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn check(&self) -> Result<(), Error> {
        match &self.end {
            None => Ok(()),
            Some(End::Closed) => Err(Error::InputClosed),
            Some(End::Failed(error)) => Err(Error::Stdin(error.clone())),
            Some(End::Lost(lost)) => Err(lost.clone().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn claim(stdin: &Stdin, wanted: usize) -> Option<usize> {
        match pin!(stdin.claim(wanted)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(claimed) => Some(claimed.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn no_more_than_the_limit_is_ever_outstanding() {
        let stdin = Stdin::new(Some(ExecLimits { input_limit: 40_000, ..ExecLimits::DEFAULT }));
        assert_eq!(claim(&stdin, 100_000), Some(16_384));
        assert_eq!(claim(&stdin, 100_000), Some(16_384));
        assert_eq!(claim(&stdin, 100_000), None);
        stdin.acknowledge(16_384);
        assert_eq!(claim(&stdin, 100_000), Some(16_384));
        stdin.acknowledge(u64::MAX);
        stdin.acknowledge(0);
        assert_eq!(claim(&stdin, 7), Some(7), "a senseless acknowledgement changes nothing");
    }

    #[test]
    fn limits_that_make_no_sense_neither_hang_nor_overflow() {
        let nothing = ExecLimits { input_limit: 0, stdin_chunk_size: 0, ..ExecLimits::DEFAULT };
        assert_eq!(claim(&Stdin::new(Some(nothing)), 5), Some(1));
        let all = ExecLimits { input_limit: u32::MAX, stdin_chunk_size: u32::MAX, ..ExecLimits::DEFAULT };
        assert_eq!(claim(&Stdin::new(Some(all)), 1 << 30), Some(1 << 20));
    }

    #[test]
    fn a_waiting_writer_learns_why_there_is_no_more_input() {
        let stdin = Stdin::new(Some(ExecLimits { input_limit: 1, ..ExecLimits::DEFAULT }));
        assert_eq!(claim(&stdin, 1), Some(1));
        stdin.end(End::Lost(ConnectionLost::Ended));
        stdin.end(End::Closed);
        assert!(matches!(stdin.check(), Err(Error::Lost(ConnectionLost::Ended))));
    }
}
