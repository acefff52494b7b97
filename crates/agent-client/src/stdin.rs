//! Flow control of a command's input.

use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::payload::{ExecLimits, ExecStdinError};
use tokio::sync::Notify;

use crate::error::{AgentClientError, ConnectionLost};

/// The maximum chunk size if the agent announces none.
const DEFAULT_CHUNK: usize = 64 * 1024;
/// The upper bound of the chunk size: a chunk has to fit into a frame.
const MAX_CHUNK: u32 = 1024 * 1024;

/// What was sent, and what the command consumed.
#[derive(Debug)]
pub(crate) struct StdinWindow {
    state: Mutex<StdinState>,
    moved: Notify,
    /// Serializes writes.
    pub(crate) turn: tokio::sync::Mutex<()>,
    chunk: usize,
    /// The maximum of unacknowledged bytes; without acknowledgements, the connection applies backpressure.
    limit: Option<u64>,
}

#[derive(Debug, Default)]
struct StdinState {
    sent: u64,
    taken: u64,
    end: Option<StdinEnd>,
}

/// Why no more input is accepted.
#[derive(Clone, Debug)]
pub(crate) enum StdinEnd {
    /// The caller closed it, or the command exited.
    Closed,
    /// The agent could not deliver it.
    Failed(Box<ExecStdinError>),
    /// The connection was lost.
    Lost(ConnectionLost),
}

// === impl StdinWindow ===

impl StdinWindow {
    pub(crate) fn new(limits: Option<ExecLimits>) -> Self {
        // With a limit of 0 a writer would wait forever; such an agent rejects one byte with an error.
        let chunk = limits.map(|limits| limits.stdin_chunk_size.min(limits.input_limit).clamp(1, MAX_CHUNK));
        Self {
            state: Mutex::default(),
            moved: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            chunk: chunk.and_then(|chunk| usize::try_from(chunk).ok()).unwrap_or(DEFAULT_CHUNK),
            limit: limits.map(|limits| u64::from(limits.input_limit.max(1))),
        }
    }

    /// Waits until input may be sent; reserves and returns at most `wanted` bytes, which the caller sends at once.
    pub(crate) async fn claim(&self, wanted: usize) -> Result<usize, AgentClientError> {
        loop {
            {
                let mut state = self.lock();
                state.check()?;
                let len = wanted.min(self.chunk);
                let outstanding = state.sent - state.taken;
                // A whole chunk or nothing, to avoid tiny frames.
                if self.limit.is_none_or(|limit| outstanding + len as u64 <= limit) {
                    state.sent += len as u64;
                    return Ok(len);
                }
            }
            self.moved.notified().await;
        }
    }

    /// Whether input may still be sent.
    pub(crate) fn check(&self) -> Result<(), AgentClientError> {
        self.lock().check()
    }

    /// The command consumed input. An invalid total has no effect.
    pub(crate) fn acknowledge(&self, taken: u64) {
        let mut state = self.lock();
        state.taken = taken.clamp(state.taken, state.sent);
        self.moved.notify_one();
    }

    /// Closes input; the first reason wins.
    pub(crate) fn end(&self, end: StdinEnd) {
        self.lock().end.get_or_insert(end);
        self.moved.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, StdinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl StdinState ===

impl StdinState {
    fn check(&self) -> Result<(), AgentClientError> {
        match &self.end {
            None => Ok(()),
            Some(StdinEnd::Closed) => Err(AgentClientError::InputClosed),
            Some(StdinEnd::Failed(error)) => Err(AgentClientError::Stdin(error.clone())),
            Some(StdinEnd::Lost(lost)) => Err(lost.clone().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn claim(stdin: &StdinWindow, wanted: usize) -> Option<usize> {
        match pin!(stdin.claim(wanted)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(claimed) => Some(claimed.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn outstanding_input_never_exceeds_the_limit() {
        let stdin = StdinWindow::new(Some(ExecLimits { input_limit: 40_000, ..ExecLimits::DEFAULT }));
        assert_eq!(claim(&stdin, 100_000), Some(16_384));
        assert_eq!(claim(&stdin, 100_000), Some(16_384));
        assert_eq!(claim(&stdin, 100_000), None);
        stdin.acknowledge(16_384);
        assert_eq!(claim(&stdin, 100_000), Some(16_384));
        stdin.acknowledge(u64::MAX);
        stdin.acknowledge(0);
        assert_eq!(claim(&stdin, 7), Some(7), "an invalid acknowledgement has no effect");
    }

    #[test]
    fn invalid_limits_neither_hang_nor_overflow() {
        let nothing = ExecLimits { input_limit: 0, stdin_chunk_size: 0, ..ExecLimits::DEFAULT };
        assert_eq!(claim(&StdinWindow::new(Some(nothing)), 5), Some(1));
        let all = ExecLimits { input_limit: u32::MAX, stdin_chunk_size: u32::MAX, ..ExecLimits::DEFAULT };
        assert_eq!(claim(&StdinWindow::new(Some(all)), 1 << 30), Some(1 << 20));
    }

    #[test]
    fn a_waiting_writer_fails_with_the_reason_why_input_was_closed() {
        let stdin = StdinWindow::new(Some(ExecLimits { input_limit: 1, ..ExecLimits::DEFAULT }));
        assert_eq!(claim(&stdin, 1), Some(1));
        stdin.end(StdinEnd::Lost(ConnectionLost::Ended));
        stdin.end(StdinEnd::Closed);
        assert!(matches!(stdin.check(), Err(AgentClientError::Lost(ConnectionLost::Ended))));
    }
}
