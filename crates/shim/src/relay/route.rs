//! Splits the agent's stream at frame boundaries.

use std::time::{Duration, Instant};

use carrel_protocol::frame::{InvalidFrameLength, PREFIX_SIZE};
use carrel_protocol::{Flags, Header};

use super::Slot;

/// The maximum number of stray frames per period.
const STRAYS: u32 = 1000;
/// That period.
const WHILE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameTarget {
    Client(Slot),
    /// The host itself.
    Own,
    /// A job, or a connection to a published port.
    Job,
    /// A former client: the frame was in flight.
    Gone,
    /// No client, now or before.
    Stray,
}

/// Why an agent is not tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AgentViolation {
    #[error(transparent)]
    InvalidFrameLength(#[from] InvalidFrameLength),
    #[error("more than {STRAYS} frames per second have an unknown target")]
    Strays,
}

/// The parser state of the stream.
#[derive(Debug)]
pub(crate) struct FrameRouter {
    /// An incomplete header.
    head: [u8; PREFIX_SIZE],
    filled: usize,
    /// The target of the current frame, and how much of it is still to come.
    target: FrameTarget,
    left: usize,
    strays: u32,
    since: Option<(Instant, u32)>,
}

/// Bytes for one target: a header that arrived in parts, and what follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRun<'a> {
    head: [u8; PREFIX_SIZE],
    head_len: usize,
    body: &'a [u8],
}

// === impl FrameRouter ===

impl Default for FrameRouter {
    fn default() -> Self {
        Self { head: [0; PREFIX_SIZE], filled: 0, target: FrameTarget::Gone, left: 0, strays: 0, since: None }
    }
}

impl FrameRouter {
    /// Takes bytes off the front of `bytes` that are all for one target, complete frames and parts of them.
    pub(crate) fn next<'a>(
        &mut self,
        bytes: &'a [u8],
        target: impl Fn(Header) -> FrameTarget,
    ) -> Result<(FrameTarget, FrameRun<'a>, &'a [u8]), InvalidFrameLength> {
        let mut run = FrameRun { head: self.head, head_len: 0, body: &[] };
        let mut rest = bytes;
        if self.left == 0 && (self.filled > 0 || bytes.len() < PREFIX_SIZE) {
            let missing = (PREFIX_SIZE - self.filled).min(bytes.len());
            let (now, later) = bytes.split_at(missing);
            for (slot, byte) in self.head.iter_mut().skip(self.filled).zip(now) {
                *slot = *byte;
            }
            self.filled += missing;
            rest = later;
            if self.filled < PREFIX_SIZE {
                self.refuse_early()?;
                return Ok((FrameTarget::Gone, run, rest));
            }
            self.filled = 0;
            self.begin(Header::parse(&self.head)?, &target);
            (run.head, run.head_len) = (self.head, PREFIX_SIZE);
        } else if self.left == 0 {
            self.begin_in(rest, &target)?;
        }
        let mut taken = self.left.min(rest.len());
        self.left -= taken;
        // Following frames for the same target are included.
        while self.left == 0 && !matches!(self.target, FrameTarget::Own | FrameTarget::Job) {
            let before = (self.target, self.strays);
            let Some(ahead) = rest.get(taken..).filter(|ahead| ahead.len() >= PREFIX_SIZE) else { break };
            self.begin_in(ahead, &target)?;
            if self.target != before.0 {
                // The next call starts it again.
                (self.target, self.strays, self.left) = (before.0, before.1, 0);
                break;
            }
            let more = self.left.min(ahead.len());
            taken += more;
            self.left -= more;
        }
        let (body, rest) = rest.split_at(taken);
        run.body = body;
        Ok((self.target, run, rest))
    }

    /// Rejects a length after its four bytes, before the rest of the header has arrived.
    fn refuse_early(&self) -> Result<(), InvalidFrameLength> {
        let mut header = self.head;
        if self.filled >= 4 {
            header.iter_mut().skip(self.filled).for_each(|byte| *byte = 0);
            Header::parse(&header)?;
        }
        Ok(())
    }

    /// Starts a frame whose header is at the front of `bytes`.
    fn begin_in(&mut self, bytes: &[u8], target: &impl Fn(Header) -> FrameTarget) -> Result<(), InvalidFrameLength> {
        if let Some(prefix) = bytes.first_chunk() {
            self.begin(Header::parse(prefix)?, target);
            // Here the header is a part of the forwarded bytes.
            self.left += PREFIX_SIZE;
        }
        Ok(())
    }

    fn begin(&mut self, header: Header, target: &impl Fn(Header) -> FrameTarget) {
        self.target = target(header);
        self.left = header.body_len;
        if self.target == FrameTarget::Stray {
            self.strays += 1;
        }
    }

    /// Counts an invalid message for the host itself.
    pub(crate) fn stray(&mut self) {
        self.strays += 1;
    }

    /// The number of stray frames since the last call; too many in a period are an error.
    pub(crate) fn take_strays(&mut self, now: Instant) -> Result<u64, AgentViolation> {
        let strays = std::mem::take(&mut self.strays);
        if strays > 0 {
            let (since, count) = self.since.filter(|(since, _)| now < *since + WHILE).unwrap_or((now, 0));
            self.since = Some((since, count.saturating_add(strays)));
            if count.saturating_add(strays) > STRAYS {
                return Err(AgentViolation::Strays);
            }
        }
        Ok(strays.into())
    }
}

/// Whether an agent sends such a frame to a client: it continues a session, ends it, or is data.
pub(crate) fn is_valid_for_client(flags: Flags) -> bool {
    [Flags::NONE, Flags::TERMINAL, Flags::BULK].contains(&flags.known())
}

// === impl FrameRun ===

impl<'a> FrameRun<'a> {
    pub(crate) fn len(&self) -> usize {
        self.head_len + self.body.len()
    }

    /// All bytes, if they are contiguous.
    pub(crate) fn whole(&self) -> Option<&'a [u8]> {
        (self.head_len == 0).then_some(self.body)
    }

    /// Its parts, none of them empty.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        [self.head.get(..self.head_len).unwrap_or_default(), self.body].into_iter().filter(|piece| !piece.is_empty())
    }
}
