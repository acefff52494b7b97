//! What arrives on a connection, and how much may be sent on it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::MessageType;
use carrel_protocol::bulk::{BulkError, BulkHeader, SendFlow};
use carrel_protocol::payload::{BulkCredit, BulkFinish};
use tokio::sync::Notify;

use crate::error::{ConnectionLost, Error};
use crate::inbox::Inbox;
use crate::link::{Link, Sink};
use crate::raw::RawFrame;
use crate::reply::Message;

/// The published size of inline data.
const INLINE_CHUNK: usize = 64 * 1024;

/// Where the frames of a connection go.
#[derive(Debug)]
pub(super) struct TcpSink {
    inbox: Inbox,
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Debug)]
struct State {
    /// Absent when data goes inline.
    flow: Option<SendFlow>,
    end: Option<End>,
}

/// Why nothing more can be written.
#[derive(Clone, Debug)]
enum End {
    Closed,
    Broken(BulkError),
    Lost(ConnectionLost),
}

/// What may be sent now.
#[derive(Debug)]
pub(super) enum Claim {
    /// So much in a message.
    Inline(usize),
    /// So much in a record.
    Record(BulkHeader, usize),
}

// === impl TcpSink ===

impl TcpSink {
    pub(super) fn new(budget: usize) -> Self {
        let state = State { flow: None, end: None };
        Self { inbox: Inbox::new(budget), state: Mutex::new(state), moved: Notify::new() }
    }

    pub(super) fn set_bulk(&self, flow: SendFlow) {
        self.lock().flow = Some(flow);
    }

    /// Waits until something may be sent; its owner sends it at once.
    pub(super) async fn claim(&self, wanted: usize) -> Result<Claim, Error> {
        loop {
            {
                let mut state = self.lock();
                state.check()?;
                match &mut state.flow {
                    None => return Ok(Claim::Inline(wanted.min(INLINE_CHUNK))),
                    Some(flow) => {
                        let len = wanted.min(flow.available());
                        if len > 0 {
                            return Ok(Claim::Record(flow.advance(len)?, len));
                        }
                    }
                }
            }
            self.moved.notified().await;
        }
    }

    /// Ends what is written; returns what says so to the agent in a bulk transfer.
    pub(super) fn finish(&self) -> Result<Option<BulkFinish>, Error> {
        let mut state = self.lock();
        state.check()?;
        state.end = Some(End::Closed);
        Ok(state.flow.as_mut().map(SendFlow::finish))
    }

    fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.moved.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for TcpSink {
    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn deliver(&self, _: &Link, frame: RawFrame) {
        // What cannot be read goes to the owner, who reports it.
        if let Ok(message) = Message::parse(&frame) {
            if message.message_type() == Some(MessageType::BulkCredit) {
                if let Ok(credit) = message.payload::<BulkCredit>() {
                    let granted = self.lock().flow.as_mut().map_or(Ok(()), |flow| flow.grant(&credit));
                    return match granted {
                        Ok(()) => self.moved.notify_one(),
                        Err(error) => self.end(End::Broken(error)),
                    };
                }
            }
        }
        if frame.is_terminal() {
            self.end(End::Closed);
        }
        self.inbox.push(frame);
    }

    fn lose(&self, lost: &ConnectionLost) {
        self.end(End::Lost(lost.clone()));
        self.inbox.lose(lost);
    }
}

// === impl State ===

impl State {
    fn check(&self) -> Result<(), Error> {
        match &self.end {
            None => Ok(()),
            Some(End::Closed) => Err(Error::InputClosed),
            Some(End::Broken(error)) => Err((*error).into()),
            Some(End::Lost(lost)) => Err(lost.clone().into()),
        }
    }
}
