//! Frames received on a connection, and its send credit.

use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::MessageType;
use carrel_protocol::bulk::{BulkError, BulkHeader, SendFlow};
use carrel_protocol::payload::{BulkCredit, BulkFinish};
use tokio::sync::Notify;

use crate::error::{AgentClientError, ConnectionLost};
use crate::inbox::FrameInbox;
use crate::link::{AgentLink, FrameHandler};
use crate::raw::RawFrame;
use crate::reply::ParsedFrame;

/// The chunk size of inline data, as published.
const INLINE_CHUNK: usize = 64 * 1024;

/// Receives the frames of a connection.
#[derive(Debug)]
pub(super) struct TcpInbound {
    inbox: FrameInbox,
    state: Mutex<TcpSendState>,
    moved: Notify,
}

#[derive(Debug)]
struct TcpSendState {
    /// `None` if data is sent inline.
    flow: Option<SendFlow>,
    end: Option<TcpSendEnd>,
}

/// Why nothing more can be written.
#[derive(Clone, Debug)]
enum TcpSendEnd {
    Closed,
    Broken(BulkError),
    Lost(ConnectionLost),
}

/// Permission to send a number of bytes.
#[derive(Debug)]
pub(super) enum SendPermit {
    /// In a message.
    Inline(usize),
    /// In a bulk record.
    Record(BulkHeader, usize),
}

// === impl TcpInbound ===

impl TcpInbound {
    pub(super) fn new(budget: usize) -> Self {
        let state = TcpSendState { flow: None, end: None };
        Self { inbox: FrameInbox::new(budget), state: Mutex::new(state), moved: Notify::new() }
    }

    pub(super) fn set_bulk(&self, flow: SendFlow) {
        self.lock().flow = Some(flow);
    }

    /// Waits until something may be sent; the caller sends it at once.
    pub(super) async fn claim(&self, wanted: usize) -> Result<SendPermit, AgentClientError> {
        loop {
            {
                let mut state = self.lock();
                state.check()?;
                match &mut state.flow {
                    None => return Ok(SendPermit::Inline(wanted.min(INLINE_CHUNK))),
                    Some(flow) => {
                        let len = wanted.min(flow.available());
                        if len > 0 {
                            return Ok(SendPermit::Record(flow.advance(len)?, len));
                        }
                    }
                }
            }
            self.moved.notified().await;
        }
    }

    /// Ends the write direction; returns the message that finishes a bulk flow.
    pub(super) fn finish(&self) -> Result<Option<BulkFinish>, AgentClientError> {
        let mut state = self.lock();
        state.check()?;
        state.end = Some(TcpSendEnd::Closed);
        Ok(state.flow.as_mut().map(SendFlow::finish))
    }

    fn end(&self, end: TcpSendEnd) {
        self.lock().end.get_or_insert(end);
        self.moved.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, TcpSendState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrameHandler for TcpInbound {
    fn inbox(&self) -> &FrameInbox {
        &self.inbox
    }

    fn deliver(&self, _: &AgentLink, frame: RawFrame) {
        // The owner reports a message that cannot be decoded.
        if let Ok(message) = ParsedFrame::parse(&frame)
            && message.message_type() == Some(MessageType::BulkCredit)
            && let Ok(credit) = message.payload::<BulkCredit>()
        {
            let granted = self.lock().flow.as_mut().map_or(Ok(()), |flow| flow.grant(&credit));
            return match granted {
                Ok(()) => self.moved.notify_one(),
                Err(error) => self.end(TcpSendEnd::Broken(error)),
            };
        }
        if frame.is_terminal() {
            self.end(TcpSendEnd::Closed);
        }
        self.inbox.push(frame);
    }

    fn fail(&self, lost: &ConnectionLost) {
        self.end(TcpSendEnd::Lost(lost.clone()));
        self.inbox.fail(lost);
    }
}

// === impl TcpSendState ===

impl TcpSendState {
    fn check(&self) -> Result<(), AgentClientError> {
        match &self.end {
            None => Ok(()),
            Some(TcpSendEnd::Closed) => Err(AgentClientError::InputClosed),
            Some(TcpSendEnd::Broken(error)) => Err((*error).into()),
            Some(TcpSendEnd::Lost(lost)) => Err(lost.clone().into()),
        }
    }
}
