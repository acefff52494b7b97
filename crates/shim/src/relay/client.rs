//! One client: what came from it, what waits for it, and what it may send.

use std::time::Instant;

use carrel_protocol::frame::{InvalidFrameLength, PREFIX_SIZE};
use carrel_protocol::relay_flow::{CreditReceiver, CreditSender, OUTPUT_WINDOW};
use carrel_protocol::{Flags, Frame, Header, IdRange};

use super::inbox::{Ahead, Inbox};

/// Sent bytes are cut off the front when there are that many of them.
const COMPACT: usize = 64 * 1024;

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) ids: IdRange,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    /// What it may send to the guest.
    pub(crate) input: CreditSender,
    /// What the guest may send to it.
    pub(crate) output: CreditReceiver,
    /// It will send no more.
    pub(crate) ended: bool,
    /// It has to go, and is sent nothing more: a part of what was for it is lost.
    pub(crate) dead: bool,
    /// How much it holds of what all clients share.
    pub(crate) charged: usize,
    /// When it last sent something.
    pub(crate) moved: Instant,
}

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    start: usize,
}

/// What was found in a client's frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// It asks the sandbox to shut down.
    pub(crate) shutdown: bool,
}

/// Why a client has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    InvalidFrameLength(#[from] InvalidFrameLength),
    #[error("it used the id {0}, which is not its own")]
    ForeignId(u32),
    #[error("its flags {0:?} exclude each other")]
    BadFlags(Flags),
    #[error("it does not read what it asked for")]
    TooSlow,
    #[error("it stopped in the middle of a large frame")]
    Unfinished,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(ids: IdRange, input: CreditSender, now: Instant) -> Self {
        let output = CreditReceiver::new(OUTPUT_WINDOW);
        Self {
            ids,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            input,
            output,
            ended: false,
            dead: false,
            charged: 0,
            moved: now,
        }
    }

    /// How much may be read from it. Whoever does not read its answers is not asked for more questions.
    pub(crate) fn wanted(&self) -> usize {
        let deaf = self.outbox.len() as u64 > super::OUTPUT_SHARE.1;
        if self.ended || self.dead || deaf { 0 } else { self.inbox.room_left() }
    }

    /// Looks at the frames that have arrived since the last look.
    pub(crate) fn look(&mut self) -> Result<Asked, Fault> {
        let mut asked = Asked::default();
        loop {
            match self.inbox.ahead()? {
                Ahead::Frame(header) => {
                    self.check(header)?;
                    asked.shutdown |= header.id == 0;
                    self.inbox.accept(header);
                }
                Ahead::Begun(header) => {
                    header.map_or(Ok(()), |header| self.check(header))?;
                    return Ok(asked);
                }
            }
        }
    }

    /// Only its own ids, and one flag at a time; the one word without an id is the wish to shut down.
    fn check(&self, header: Header) -> Result<(), Fault> {
        if header.flags.check().is_err() {
            return Err(Fault::BadFlags(header.flags));
        }
        let shutdown = header.flags.known() == Flags::SHUTDOWN;
        match (header.id, shutdown) {
            (0, true) => Ok(()),
            (id, false) if self.ids.contains(id) => Ok(()),
            (id, _) => Err(Fault::ForeignId(id)),
        }
    }

    /// Whether it has a whole frame and may send it.
    pub(crate) fn may_send(&self) -> bool {
        !self.dead && !self.inbox.whole().is_empty() && self.input.may_send()
    }

    /// The size of the frame ahead, if it needs a loan and there is credit for it behind all that waits to be sent. Of
    /// that, so many bytes are on their way.
    pub(crate) fn wants_loan(&self, on_their_way: usize) -> Option<usize> {
        let waiting = self.inbox.whole().len().saturating_sub(on_their_way);
        self.inbox.wants_loan().filter(|_| !self.ended && !self.dead && self.input.may_send_after(waiting as u64))
    }

    /// Takes a turn: how many bytes of whole frames it sends now.
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

// === impl Outbox ===

impl Outbox {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends what `write` appends, if it says that this is whole.
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

    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn took(&mut self, bytes: usize) {
        self.start = self.bytes.len().min(self.start + bytes);
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > COMPACT && self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Gives memory back that is not needed.
    pub(crate) fn rest_idle(&mut self) {
        if self.is_empty() {
            self.clear();
        }
    }
}
