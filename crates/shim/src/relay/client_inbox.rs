//! Bytes received from a client that are not yet forwarded.

use carrel_protocol::frame::{InvalidFrameLength, LENGTH_SIZE, PREFIX_SIZE};
use carrel_protocol::{Frame, Header};

/// The buffer of every client, without large frames.
const SMALL: usize = 32 * 1024;
/// How much may be read after a large frame.
const AHEAD: usize = 64 * 1024;
/// The minimum free space for a read.
const LEAST: usize = 64 * 1024;

/// A receive buffer: complete frames that were checked, then unchecked or incomplete ones.
///
/// A frame larger than the buffer needs a loan of the pool. Loans are given only to clients with credit for the frame,
/// so that it can be forwarded without waiting for anything but the agent.
#[derive(Debug, Default)]
pub(crate) struct ClientInbox {
    bytes: Vec<u8>,
    start: usize,
    whole: usize,
    /// The size of the incomplete frame on loan.
    granted: Option<usize>,
    /// The bytes of complete frames on loan.
    lent: usize,
}

/// What follows the complete frames.
pub(crate) enum NextFrame {
    /// A complete frame that was not checked yet.
    Frame(Header),
    /// An incomplete frame of which this much is known.
    Incomplete(Option<Header>),
}

// === impl ClientInbox ===

impl ClientInbox {
    /// How many bytes may be read.
    pub(crate) fn room_left(&self) -> usize {
        let granted = self.granted.map_or(0, |frame| frame + AHEAD);
        (SMALL + self.lent + granted).saturating_sub(self.bytes.len() - self.start)
    }

    /// The buffer, with free space for some of that.
    pub(crate) fn reserve(&mut self, budget: usize) -> &mut Vec<u8> {
        // Data is moved only if there is almost no space left after it: moving costs as much as reading.
        if self.bytes.capacity() - self.bytes.len() < budget.min(LEAST) {
            self.compact();
            self.bytes.reserve_exact(budget);
        }
        &mut self.bytes
    }

    /// What follows the complete frames; an invalid length is rejected after its four bytes.
    pub(crate) fn next_frame(&self) -> Result<NextFrame, InvalidFrameLength> {
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
            Some(header) if bytes.len() >= PREFIX_SIZE + header.body_len => NextFrame::Frame(header),
            header => NextFrame::Incomplete(header),
        })
    }

    /// Marks the next frame as checked.
    pub(crate) fn accept(&mut self, header: Header) {
        self.whole += PREFIX_SIZE + header.body_len;
        self.lent += self.granted.take().unwrap_or(0);
    }

    /// The number of bytes of complete frames.
    pub(crate) fn whole(&self) -> &[u8] {
        self.bytes.get(self.start..self.whole).unwrap_or_default()
    }

    /// The first bytes.
    pub(crate) fn front(&self, bytes: usize) -> &[u8] {
        self.bytes.get(self.start..self.start + bytes).unwrap_or_default()
    }

    /// The size of the next frame, if it needs a loan and has none.
    pub(crate) fn wants_loan(&self) -> Option<usize> {
        match self.next_frame() {
            Ok(NextFrame::Incomplete(Some(header))) if self.granted.is_none() => {
                Some(PREFIX_SIZE + header.body_len).filter(|frame| *frame > SMALL)
            }
            _ => None,
        }
    }

    /// Takes a loan for a frame of that size.
    pub(crate) fn grant(&mut self, frame: usize) {
        self.granted = Some(frame);
    }

    /// Whether a frame on loan is incomplete.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.granted.is_some()
    }

    /// How much of the shared pool it uses.
    pub(crate) fn charge(&self) -> usize {
        self.lent + self.granted.map_or(0, Self::charge_of)
    }

    /// The loan for a frame of that size.
    pub(crate) fn charge_of(frame: usize) -> usize {
        frame + AHEAD
    }

    /// Records how many bytes were forwarded.
    pub(crate) fn advance(&mut self, bytes: usize) {
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

    /// Releases unused memory.
    pub(crate) fn release_memory(&mut self) {
        self.compact();
        self.bytes.shrink_to_fit();
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.start);
        self.whole -= self.start;
        self.start = 0;
    }
}
