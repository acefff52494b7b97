//! What arrives from a running command, and the acknowledgements that it is owed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::MessageType;
use carrel_protocol::exec_flow::OUTPUT_CHUNK_CHARGE;
use carrel_protocol::payload::{ExecLimits, ExecOutputAck, ExecStdinAck, ExecStdinError};

use crate::error::ConnectionLost;
use crate::inbox::{Inbox, UNCREDITED};
use crate::link::{Link, Sink};
use crate::raw::RawFrame;
use crate::reply::Message;
use crate::stdin::{End, Stdin};

/// No agent makes more than this wait here, whatever limit it announces; beyond it the connection is not read.
const MAX_BACKLOG: usize = 8 * 1024 * 1024;

/// Where the frames of a command go.
#[derive(Debug)]
pub(crate) struct ExecSink {
    id: u32,
    inbox: Inbox,
    pub(crate) stdin: Stdin,
    over: AtomicBool,
    output: Option<Mutex<OutputFlow>>,
}

/// Output as it is acknowledged: bytes, and a charge for each chunk.
#[derive(Debug)]
struct OutputFlow {
    received: u64,
    consumed: u64,
    acknowledged: u64,
    /// How much may stay unacknowledged while there is more to take.
    slack: u64,
    abandoned: bool,
}

// === impl ExecSink ===

impl ExecSink {
    pub(crate) fn new(id: u32, limits: Option<ExecLimits>) -> Self {
        let limit = limits.map(|limits| usize::try_from(limits.output_limit).unwrap_or(MAX_BACKLOG));
        let flow = |limits: ExecLimits| OutputFlow {
            received: 0,
            consumed: 0,
            acknowledged: 0,
            slack: u64::from(limits.output_limit / 4),
            abandoned: false,
        };
        Self {
            id,
            inbox: Inbox::new(limit.map_or(UNCREDITED, |limit| limit.clamp(UNCREDITED, MAX_BACKLOG))),
            stdin: Stdin::new(limits),
            over: AtomicBool::new(false),
            output: limits.map(|limits| Mutex::new(flow(limits))),
        }
    }

    /// The owner took a chunk. It is acknowledged now, unless more waits and little is owed: the agent may hold back
    /// the end of the command until everything is acknowledged.
    pub(crate) fn taken(&self, link: &Link, len: usize) {
        let Some(mut flow) = self.flow() else { return };
        flow.consumed = flow.consumed.saturating_add(charge(len));
        if self.inbox.is_empty() || flow.consumed - flow.acknowledged >= flow.slack {
            flow.acknowledge(link, self.id);
        }
    }

    /// Whether the command ended, or nobody is interested in it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Notes a chunk that arrived; returns whether nobody will take it.
    fn received(&self, link: &Link, len: usize) -> bool {
        let Some(mut flow) = self.flow() else { return false };
        flow.received = flow.received.saturating_add(charge(len));
        if flow.abandoned {
            flow.consumed = flow.received;
            flow.acknowledge(link, self.id);
        }
        flow.abandoned
    }

    fn end(&self, end: End) {
        self.over.store(true, Ordering::Relaxed);
        self.stdin.end(end);
    }

    fn flow(&self) -> Option<MutexGuard<'_, OutputFlow>> {
        self.output.as_ref().map(|flow| flow.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink for ExecSink {
    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn deliver(&self, link: &Link, frame: RawFrame) {
        // What cannot be read goes to the owner, who reports it.
        if let Ok(message) = Message::parse(&frame) {
            match message.message_type() {
                Some(MessageType::ExecStdinAck) => {
                    if let Ok(ack) = message.payload::<ExecStdinAck>() {
                        return self.stdin.acknowledge(ack.consumed);
                    }
                }
                Some(MessageType::ExecStdinError) => {
                    if let Ok(error) = message.payload::<ExecStdinError>() {
                        self.stdin.end(End::Failed(Box::new(error)));
                    }
                }
                Some(MessageType::ExecStdout | MessageType::ExecStderr)
                    if message.data().is_ok_and(|data| self.received(link, data.len())) =>
                {
                    return;
                }
                _ => {}
            }
        }
        if frame.is_terminal() {
            self.end(End::Closed);
        }
        self.inbox.push(frame);
    }

    fn abandon(&self, link: &Link) -> bool {
        self.end(End::Closed);
        self.inbox.abandon();
        // A killed command may still have output, and its agent may hold its end back until that is acknowledged.
        let Some(mut flow) = self.flow() else { return false };
        flow.abandoned = true;
        flow.consumed = flow.received;
        flow.acknowledge(link, self.id);
        true
    }

    fn lose(&self, lost: &ConnectionLost) {
        self.end(End::Lost(lost.clone()));
        self.inbox.lose(lost);
    }
}

// === impl OutputFlow ===

impl OutputFlow {
    fn acknowledge(&mut self, link: &Link, id: u32) {
        if self.acknowledged < self.consumed {
            self.acknowledged = self.consumed;
            // Nobody waits for an acknowledgement on a lost connection.
            let _sent = link.send(id, &ExecOutputAck { consumed: self.consumed });
        }
    }
}

fn charge(len: usize) -> u64 {
    len as u64 + OUTPUT_CHUNK_CHARGE
}
