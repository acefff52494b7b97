//! One client of the relay: its queues and its credit.

use std::time::Instant;

use carrel_protocol::frame::{InvalidFrameLength, PREFIX_SIZE};
use carrel_protocol::relay_flow::{CreditReceiver, CreditSender, OUTPUT_WINDOW};
use carrel_protocol::{CorrelationIdRange, Flags, Frame, Header};

use super::client_inbox::{ClientInbox, NextFrame};

/// Sent bytes are removed from the front of a queue when there are that many.
const COMPACT: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct RelayedClient {
    pub(crate) ids: CorrelationIdRange,
    pub(crate) inbox: ClientInbox,
    pub(crate) outbox: ClientOutbox,
    /// Its credit towards the agent.
    pub(crate) input: CreditSender,
    /// The agent's credit towards it.
    pub(crate) output: CreditReceiver,
    /// Whether it shut down sending.
    pub(crate) ended: bool,
    /// Whether it is being disconnected: output was lost, and nothing more is sent.
    pub(crate) dead: bool,
    /// How much of the shared pool it uses.
    pub(crate) charged: usize,
    /// When it last sent something.
    pub(crate) moved: Instant,
}

/// Bytes to be written.
#[derive(Debug, Default)]
pub(crate) struct ClientOutbox {
    bytes: Vec<u8>,
    start: usize,
}

/// The effect of a client's frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientRequests {
    /// Whether it requested a shutdown of the sandbox.
    pub(crate) shutdown: bool,
}

/// Why a client is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClientFault {
    #[error(transparent)]
    InvalidFrameLength(#[from] InvalidFrameLength),
    #[error("client used id {0} of another range")]
    ForeignId(u32),
    #[error("flags {0:?} are mutually exclusive")]
    BadFlags(Flags),
    #[error("client does not read its output")]
    TooSlow,
    #[error("client paused in the middle of a large frame")]
    Unfinished,
}

// === impl RelayedClient ===

impl RelayedClient {
    pub(crate) fn new(ids: CorrelationIdRange, input: CreditSender, now: Instant) -> Self {
        let output = CreditReceiver::new(OUTPUT_WINDOW);
        Self {
            ids,
            inbox: ClientInbox::default(),
            outbox: ClientOutbox::default(),
            input,
            output,
            ended: false,
            dead: false,
            charged: 0,
            moved: now,
        }
    }

    /// How many bytes may be read from it. A client that does not read its output is not read.
    pub(crate) fn read_budget(&self) -> usize {
        let deaf = self.outbox.len() as u64 > super::OUTPUT_SHARE.1;
        if self.ended || self.dead || deaf { 0 } else { self.inbox.room_left() }
    }

    /// Checks the frames that have arrived since the last call.
    pub(crate) fn check_frames(&mut self) -> Result<ClientRequests, ClientFault> {
        let mut requests = ClientRequests::default();
        loop {
            match self.inbox.next_frame()? {
                NextFrame::Frame(header) => {
                    self.check(header)?;
                    requests.shutdown |= header.id == 0;
                    self.inbox.accept(header);
                }
                NextFrame::Incomplete(header) => {
                    header.map_or(Ok(()), |header| self.check(header))?;
                    return Ok(requests);
                }
            }
        }
    }

    /// Checks id and flags; the only uncorrelated message is the shutdown request.
    fn check(&self, header: Header) -> Result<(), ClientFault> {
        if header.flags.check().is_err() {
            return Err(ClientFault::BadFlags(header.flags));
        }
        let shutdown = header.flags.known() == Flags::SHUTDOWN;
        match (header.id, shutdown) {
            (0, true) => Ok(()),
            (id, false) if self.ids.contains(id) => Ok(()),
            (id, _) => Err(ClientFault::ForeignId(id)),
        }
    }

    /// Whether it has a complete frame and credit.
    pub(crate) fn may_send(&self) -> bool {
        !self.dead && !self.inbox.whole().is_empty() && self.input.may_send()
    }

    /// The size of the next frame, if it needs a loan and has credit after everything that is queued. Of that, so many
    /// bytes are in flight.
    pub(crate) fn wants_loan(&self, on_their_way: usize) -> Option<usize> {
        let waiting = self.inbox.whole().len().saturating_sub(on_their_way);
        self.inbox.wants_loan().filter(|_| !self.ended && !self.dead && self.input.may_send_after(waiting as u64))
    }

    /// Takes a turn: the number of bytes of complete frames to send.
    pub(crate) fn take_turn(&mut self, limit: usize) -> usize {
        let whole = if self.dead { &[] } else { self.inbox.whole() };
        let mut taken = 0;
        while taken < limit && self.input.may_send() {
            let Ok(Some((frame, _))) = Frame::split(whole.get(taken..).unwrap_or_default()) else { break };
            let length = PREFIX_SIZE + frame.body.len();
            self.input.sent(length as u64);
            taken += length;
        }
        taken
    }
}

// === impl ClientOutbox ===

impl ClientOutbox {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends what `write` appends, if it returns that it is complete.
    pub(crate) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let before = self.bytes.len();
        if !write(&mut self.bytes) {
            self.bytes.truncate(before);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn remaining(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.start = self.bytes.len().min(self.start + bytes);
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > COMPACT && self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Releases unused memory.
    pub(crate) fn release_memory(&mut self) {
        if self.is_empty() {
            self.clear();
        }
    }
}
