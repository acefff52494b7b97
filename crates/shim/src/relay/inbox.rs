//! What arrived from a client and is not yet passed on.

use carrel_protocol::frame::{InvalidFrameLength, LENGTH_SIZE, PREFIX_SIZE};
use carrel_protocol::{Frame, Header};

/// How much every client may have here besides large frames.
const SMALL: usize = 32 * 1024;
/// How much may be read behind a large frame.
const AHEAD: usize = 64 * 1024;
/// Less room than this is not worth a call.
const LEAST: usize = 64 * 1024;

/// Bytes in order: whole frames that were looked at, then what has not been looked at or is not whole.
///
/// A frame larger than everybody's share needs a loan. It is given only to those who have credit for the frame, so that
/// whatever was lent room can be passed on without waiting for anything but the guest.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    whole: usize,
    /// The size of the frame that is being read on a loan.
    granted: Option<usize>,
    /// The bytes of whole frames that were read on a loan.
    lent: usize,
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
        let granted = self.granted.map_or(0, |frame| frame + AHEAD);
        (SMALL + self.lent + granted).saturating_sub(self.bytes.len() - self.start)
    }

    /// The buffer, with room for some of that behind what is in it.
    pub(crate) fn room(&mut self, wanted: usize) -> &mut Vec<u8> {
        // What is here is moved only when there is next to no room left behind it: moving costs as much as reading.
        if self.bytes.capacity() - self.bytes.len() < wanted.min(LEAST) {
            self.compact();
            self.bytes.reserve_exact(wanted);
        }
        &mut self.bytes
    }

    /// What lies behind the whole frames; a length that cannot be is refused from its four bytes.
    pub(crate) fn ahead(&self) -> Result<Ahead, InvalidFrameLength> {
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
        self.lent += self.granted.take().unwrap_or(0);
    }

    /// The bytes of the whole frames.
    pub(crate) fn whole(&self) -> &[u8] {
        self.bytes.get(self.start..self.whole).unwrap_or_default()
    }

    /// The first bytes.
    pub(crate) fn front(&self, bytes: usize) -> &[u8] {
        self.bytes.get(self.start..self.start + bytes).unwrap_or_default()
    }

    /// The size of the frame ahead, if it needs a loan and has none.
    pub(crate) fn wants_loan(&self) -> Option<usize> {
        match self.ahead() {
            Ok(Ahead::Begun(Some(header))) if self.granted.is_none() => {
                Some(PREFIX_SIZE + header.body_len).filter(|frame| *frame > SMALL)
            }
            _ => None,
        }
    }

    /// Takes a loan for a frame of that size.
    pub(crate) fn grant(&mut self, frame: usize) {
        self.granted = Some(frame);
    }

    /// Whether a frame that was lent room is not whole.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.granted.is_some()
    }

    /// How much of what all clients share it holds.
    pub(crate) fn charge(&self) -> usize {
        self.lent + self.granted.map_or(0, Self::charge_of)
    }

    /// How much a loan for a frame of that size takes.
    pub(crate) fn charge_of(frame: usize) -> usize {
        frame + AHEAD
    }

    /// Notes how many bytes were passed on.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.start = self.whole.min(self.start + bytes);
        self.lent = self.lent.saturating_sub(bytes);
        if self.start == self.whole {
            self.lent = 0;
        }
        if self.start == self.bytes.len() {
            self.bytes.clear();
            (self.start, self.whole) = (0, 0);
        }
    }

    /// Gives memory back that is not needed.
    pub(crate) fn rest(&mut self) {
        self.compact();
        self.bytes.shrink_to_fit();
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.start);
        self.whole -= self.start;
        self.start = 0;
    }
}
