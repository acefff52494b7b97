//! The host's own part of the stream to the agent.

use std::collections::{BTreeSet, VecDeque};

use carrel_protocol::frame::PREFIX_SIZE;
use carrel_protocol::payload::{CarrelCredit, ClientDisconnected, Ping};
use carrel_protocol::{
    CorrelationIdRange, Envelope, Flags, Frame, Generation, Header, MessageType, PrologueFormat, codec,
};

use super::client::ClientOutbox;
use super::route::FrameRun;

/// The first of the host's own ids: the upper half of the last slot.
pub(crate) const FIRST: u32 = 127 * PrologueFormat::Current.step() + PrologueFormat::Current.step() / 2 + 1;
/// The id of the host's hello. Even ids are opened by the host.
pub(crate) const HELLO_ID: u32 = FIRST + FIRST % 2;
/// The end of the host's ids, exclusive.
const END: u32 = 128 * PrologueFormat::Current.step();
/// The first id of a job: those before it are for pings.
const FIRST_JOB: u32 = HELLO_ID + 2 + 2 * 65_536;
/// The maximum body of a frame for the host itself.
const LARGEST: usize = 4096;
/// The maximum body of a frame for a job: the largest permitted chunk of output, and its envelope.
const LARGEST_OF_JOB: usize = 64 * 1024 + 1024;

/// A message for the host itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostMessage {
    /// A credit grant for the client of an id.
    Credit(u32, u64),
    /// The response to the ping of an id.
    Answer(u32),
    /// An error about an uncorrelated message.
    Error,
    Invalid,
}

/// The host's own part of the stream.
#[derive(Debug, Default)]
pub(crate) struct HostChannel {
    outbox: ClientOutbox,
    ping: u32,
    partial: Vec<u8>,
    messages: VecDeque<HostMessage>,
    /// The ids of active jobs and connections.
    jobs: BTreeSet<u32>,
    /// Those of connections, which receive bulk records.
    connections: BTreeSet<u32>,
    last_job: u32,
    /// Data for jobs: it takes turns with clients.
    pub(crate) data: ClientOutbox,
}

/// Whether a frame may be addressed to the host itself.
pub(crate) fn listens_to(header: Header) -> bool {
    (header.id == 0 || (FIRST..FIRST_JOB).contains(&header.id)) && header.body_len <= LARGEST
}

// === impl HostChannel ===

impl HostChannel {
    /// Whether all messages are sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    pub(crate) fn queue(&mut self, frame: &[u8]) {
        self.outbox.push(frame);
    }

    /// Puts the rest of a frame that was begun before everything else.
    pub(crate) fn finish(&mut self, rest: &[u8]) {
        let queued = std::mem::take(&mut self.outbox);
        self.outbox.push(rest);
        self.outbox.push(queued.remaining());
    }

    /// Allocates the id of a job. Ids are reused when there are no others.
    pub(crate) fn open_job(&mut self) -> u32 {
        let next = |id: u32| if (FIRST_JOB..END - 2).contains(&id) { id + 2 } else { FIRST_JOB };
        self.last_job = next(self.last_job);
        while self.jobs.contains(&self.last_job) {
            self.last_job = next(self.last_job);
        }
        self.jobs.insert(self.last_job);
        self.last_job
    }

    /// Allocates the id of a connection.
    pub(crate) fn open_connection(&mut self) -> u32 {
        let id = self.open_job();
        self.connections.insert(id);
        id
    }

    /// Releases the id of a job or a connection: further frames with it are ignored.
    pub(crate) fn close_job(&mut self, id: u32) {
        self.jobs.remove(&id);
        self.connections.remove(&id);
    }

    /// Whether a frame may be addressed to a job or a connection.
    pub(crate) fn is_for_job(&self, header: Header) -> bool {
        let flags = header.flags.known();
        let is_record = flags == Flags::BULK && self.connections.contains(&header.id);
        let sensible = is_record || [Flags::NONE, Flags::TERMINAL].contains(&flags);
        header.id >= FIRST_JOB && sensible && header.body_len <= LARGEST_OF_JOB && self.jobs.contains(&header.id)
    }

    /// Collects a part of a frame for a job; calls `take` when it is complete.
    pub(crate) fn receive_job_frame(&mut self, run: FrameRun<'_>, take: impl FnOnce(Frame<'_>) -> bool) -> bool {
        if let (true, Some(Ok(Some((frame, _))))) = (self.partial.is_empty(), run.whole().map(Frame::split)) {
            return take(frame);
        }
        run.pieces().for_each(|piece| self.partial.extend_from_slice(piece));
        let is_valid = match Frame::split(&self.partial) {
            Ok(Some((frame, _))) => take(frame),
            _ => return true,
        };
        self.partial.clear();
        is_valid
    }

    /// How many bytes of complete frames of job data may be sent per turn.
    pub(crate) fn data_turn(&self, limit: usize) -> usize {
        let mut taken = 0;
        while taken < limit {
            let Ok(Some((frame, _))) = Frame::split(self.data.remaining().get(taken..).unwrap_or_default()) else {
                break;
            };
            taken += PREFIX_SIZE + frame.body.len();
        }
        taken
    }

    /// The number of queued bytes.
    pub(crate) fn waiting(&self) -> usize {
        self.outbox.len() + self.data.len()
    }

    /// Reports that a client is gone, followed by a ping, whose response tells that the agent has processed it.
    pub(crate) fn announce_disconnect(&mut self, ids: CorrelationIdRange) -> u32 {
        let first = HELLO_ID + 2;
        self.ping = if (first..FIRST_JOB - 2).contains(&self.ping) { self.ping + 2 } else { first };
        let gone = ClientDisconnected { id_start: ids.start(), id_end_exclusive: ids.end(), incarnation: None };
        let mut frames = Vec::new();
        // Both are small and always fit.
        let _fits = codec::encode(&mut frames, Generation::PUBLISHED, 0, &gone);
        let _fits = codec::encode(&mut frames, Generation::PUBLISHED, self.ping, &Ping {});
        self.queue(&frames);
        self.ping
    }

    /// Grants credit for the client with these ids.
    pub(crate) fn credit(&mut self, ids: CorrelationIdRange, limit: u64) {
        let mut frame = Vec::new();
        let credit = CarrelCredit { id_start: ids.start(), limit };
        let _fits = codec::encode(&mut frame, Generation::CURRENT, 0, &credit);
        self.queue(&frame);
    }

    pub(crate) fn remaining(&self) -> &[u8] {
        self.outbox.remaining()
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
    }

    /// Collects a part of a frame that [`listens_to`] accepted.
    pub(crate) fn receive<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        pieces.for_each(|piece| self.partial.extend_from_slice(piece));
        while let Ok(Some((frame, rest))) = Frame::split(&self.partial) {
            let (message, taken) = (parse(frame), self.partial.len() - rest.len());
            self.messages.push_back(message);
            self.partial.drain(..taken);
        }
    }

    pub(crate) fn next_message(&mut self) -> Option<HostMessage> {
        self.messages.pop_front()
    }
}

fn parse(frame: Frame<'_>) -> HostMessage {
    if frame.id != 0 {
        let last = frame.flags.known() == Flags::TERMINAL;
        return if last { HostMessage::Answer(frame.id) } else { HostMessage::Invalid };
    }
    let Ok(envelope) = Envelope::parse(frame.body) else { return HostMessage::Invalid };
    match (envelope.message_type(), envelope.payload::<CarrelCredit>()) {
        (Some(MessageType::CarrelCredit), Ok(credit)) => HostMessage::Credit(credit.id_start, credit.limit),
        (Some(MessageType::CoreError), _) => HostMessage::Error,
        _ => HostMessage::Invalid,
    }
}
