//! Frames received from a running command, and their acknowledgements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_protocol::MessageType;
use carrel_protocol::exec_flow::OUTPUT_CHUNK_CHARGE;
use carrel_protocol::payload::{ExecLimits, ExecOutputAck, ExecStdinAck, ExecStdinError};

use crate::error::ConnectionLost;
use crate::inbox::{FrameInbox, UNCREDITED};
use crate::link::{AgentLink, FrameHandler};
use crate::raw::RawFrame;
use crate::reply::ParsedFrame;
use crate::stdin::{StdinEnd, StdinWindow};

/// The maximum backlog, whatever limit the agent announces; above it the connection is not read.
const MAX_BACKLOG: usize = 8 * 1024 * 1024;

/// Receives the frames of a command.
#[derive(Debug)]
pub(crate) struct ExecInbound {
    id: u32,
    inbox: FrameInbox,
    pub(crate) stdin: StdinWindow,
    over: AtomicBool,
    output: Option<Mutex<OutputFlow>>,
}

/// Output to acknowledge: bytes, and a charge per chunk.
#[derive(Debug)]
struct OutputFlow {
    received: u64,
    consumed: u64,
    acknowledged: u64,
    /// How much may stay unacknowledged while more output is queued.
    slack: u64,
    abandoned: bool,
}

// === impl ExecInbound ===

impl ExecInbound {
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
            inbox: FrameInbox::new(limit.map_or(UNCREDITED, |limit| limit.clamp(UNCREDITED, MAX_BACKLOG))),
            stdin: StdinWindow::new(limits),
            over: AtomicBool::new(false),
            output: limits.map(|limits| Mutex::new(flow(limits))),
        }
    }

    /// The owner consumed a chunk. It is acknowledged now, unless more is queued and little is unacknowledged: the
    /// agent may defer the exit of the command until everything is acknowledged.
    pub(crate) fn record_consumed(&self, link: &AgentLink, len: usize) {
        let Some(mut flow) = self.flow() else { return };
        flow.consumed = flow.consumed.saturating_add(charge(len));
        if self.inbox.is_empty() || flow.consumed - flow.acknowledged >= flow.slack {
            flow.acknowledge(link, self.id);
        }
    }

    /// Whether the command exited or its owner dropped it.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Records a received chunk; returns whether it has no consumer.
    fn received(&self, link: &AgentLink, len: usize) -> bool {
        let Some(mut flow) = self.flow() else { return false };
        flow.received = flow.received.saturating_add(charge(len));
        if flow.abandoned {
            flow.consumed = flow.received;
            flow.acknowledge(link, self.id);
        }
        flow.abandoned
    }

    fn end(&self, end: StdinEnd) {
        self.over.store(true, Ordering::Relaxed);
        self.stdin.end(end);
    }

    fn flow(&self) -> Option<MutexGuard<'_, OutputFlow>> {
        self.output.as_ref().map(|flow| flow.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FrameHandler for ExecInbound {
    fn inbox(&self) -> &FrameInbox {
        &self.inbox
    }

    fn deliver(&self, link: &AgentLink, frame: RawFrame) {
        // The owner reports a message that cannot be decoded.
        if let Ok(message) = ParsedFrame::parse(&frame) {
            match message.message_type() {
                Some(MessageType::ExecStdinAck) => {
                    if let Ok(ack) = message.payload::<ExecStdinAck>() {
                        return self.stdin.acknowledge(ack.consumed);
                    }
                }
                Some(MessageType::ExecStdinError) => {
                    if let Ok(error) = message.payload::<ExecStdinError>() {
                        self.stdin.end(StdinEnd::Failed(Box::new(error)));
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
            self.end(StdinEnd::Closed);
        }
        self.inbox.push(frame);
    }

    fn abandon(&self, link: &AgentLink) -> bool {
        self.end(StdinEnd::Closed);
        self.inbox.abandon();
        // A killed command may still have output, and its agent may defer the exit until that is acknowledged.
        let Some(mut flow) = self.flow() else { return false };
        flow.abandoned = true;
        flow.consumed = flow.received;
        flow.acknowledge(link, self.id);
        true
    }

    fn fail(&self, lost: &ConnectionLost) {
        self.end(StdinEnd::Lost(lost.clone()));
        self.inbox.fail(lost);
    }
}

// === impl OutputFlow ===

impl OutputFlow {
    fn acknowledge(&mut self, link: &AgentLink, id: u32) {
        if self.acknowledged < self.consumed {
            self.acknowledged = self.consumed;
            // No acknowledgement is needed on a lost connection.
            let _sent = link.send(id, &ExecOutputAck { consumed: self.consumed });
        }
    }
}

fn charge(len: usize) -> u64 {
    len as u64 + OUTPUT_CHUNK_CHARGE
}
