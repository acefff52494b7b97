//! What arrived from a client and is not yet passed on.

use carrel_protocol::frame::{BrokenLength, LENGTH_SIZE, PREFIX_SIZE};
use carrel_protocol::{Frame, Header};

/// How much every client may have here.
const SMALL: usize = 32 * 1024;
/// How much one may have that was lent room for large frames: one that is passed on, and the beginning of the next.
pub(crate) const LARGE: usize = 5 * 1024 * 1024;

/// Bytes in order: whole frames that were looked at, then what has not been looked at or is not whole.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    whole: usize,
    lent: bool,
}

/// What lies behind the whole frames.
pub(crate) enum Ahead {
    /// A whole frame, not yet looked at.
    Frame(Header),
    /// The beginning of a frame, of which this much is known.
    Begun(Option<Header>),
}

// === impl Inbox ===

impl Inbox {
    /// How much may be read.
    pub(crate) fn room_left(&self) -> usize {
        (if self.lent { LARGE } else { SMALL }).saturating_sub(self.bytes.len() - self.start)
    }

    /// The buffer, with room for that much behind what is in it.
    pub(crate) fn room(&mut self, wanted: usize) -> &mut Vec<u8> {
        if self.bytes.capacity() - self.bytes.len() < wanted {
            self.bytes.drain(..self.start);
            self.whole -= self.start;
            self.start = 0;
            self.bytes.reserve_exact(wanted);
        }
        &mut self.bytes
    }

    /// What lies behind the whole frames; a length that cannot be is refused from its four bytes.
    pub(crate) fn ahead(&self) -> Result<Ahead, BrokenLength> {
        let bytes = self.bytes.get(self.whole..).unwrap_or_default();
        let header = match bytes.first_chunk::<PREFIX_SIZE>() {
            Some(prefix) => Some(Header::parse(prefix)?),
            None => {
                if bytes.len() >= LENGTH_SIZE {
                    Frame::split(bytes)?;
                }
                None
            }
        };
        Ok(match header {
            Some(header) if bytes.len() >= PREFIX_SIZE + header.body_len => Ahead::Frame(header),
            begun => Ahead::Begun(begun),
        })
    }

    /// Notes that the frame ahead is in order.
    pub(crate) fn accept(&mut self, header: Header) {
        self.whole += PREFIX_SIZE + header.body_len;
    }

    /// Whether whole frames are here.
    pub(crate) fn has_whole(&self) -> bool {
        self.whole > self.start
    }

    /// The bytes of the whole frames.
    pub(crate) fn whole(&self) -> &[u8] {
        self.bytes.get(self.start..self.whole).unwrap_or_default()
    }

    /// The first bytes.
    pub(crate) fn front(&self, bytes: usize) -> &[u8] {
        self.bytes.get(self.start..self.start + bytes).unwrap_or_default()
    }

    /// Whether a frame of that size needs room to be lent.
    pub(crate) fn needs_loan(&self, header: Header) -> bool {
        !self.lent && PREFIX_SIZE + header.body_len > SMALL
    }

    /// Whether it holds lent room and a frame that is not whole.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.lent && self.bytes.len() > self.whole
    }

    /// Takes room for large frames; returns how much.
    pub(crate) fn lend(&mut self) -> usize {
        if std::mem::replace(&mut self.lent, true) { 0 } else { LARGE }
    }

    /// Notes how many bytes were passed on.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.start = self.whole.min(self.start + bytes);
        if self.start == self.bytes.len() {
            self.bytes.clear();
            (self.start, self.whole) = (0, 0);
        }
    }

    /// Gives lent room back if no frame needs it; returns how much.
    pub(crate) fn give_back_unused(&mut self) -> usize {
        let needed = match self.ahead() {
            Ok(Ahead::Begun(Some(header))) => PREFIX_SIZE + header.body_len > SMALL,
            _ => false,
        };
        if needed || self.bytes.len() - self.start > SMALL { 0 } else { self.give_back() }
    }

    /// Gives lent room back; returns how much.
    pub(crate) fn give_back(&mut self) -> usize {
        self.bytes.drain(..self.start);
        self.whole -= self.start;
        self.start = 0;
        self.bytes.shrink_to_fit();
        if std::mem::take(&mut self.lent) { LARGE } else { 0 }
    }
}
