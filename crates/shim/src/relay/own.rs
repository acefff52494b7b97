//! What the host itself says to the guest, and what it is told.

use std::collections::{BTreeSet, VecDeque};

use carrel_protocol::frame::PREFIX_SIZE;
use carrel_protocol::payload::{CarrelCredit, ClientDisconnected, Ping};
use carrel_protocol::{Codec, Envelope, Flags, Frame, Generation, Header, IdRange, MessageType, codec};

use super::client::Outbox;
use super::route::Run;

/// The first of the host's own ids: the upper half of the last slot.
pub(crate) const FIRST: u32 = 127 * Codec::Current.step() + Codec::Current.step() / 2 + 1;
/// The id of the host's first words. Even ones are the host's to open.
pub(crate) const HELLO_ID: u32 = FIRST + FIRST % 2;
/// The id behind the last of them.
const END: u32 = 128 * Codec::Current.step();
/// The first id of a job: those before it are for questions.
const FIRST_JOB: u32 = HELLO_ID + 2 + 2 * 65_536;
/// The largest body that the host listens to.
const LARGEST: usize = 4096;
/// The largest body that a job listens to: the largest piece of output that a guest may announce, and what is around it.
const LARGEST_OF_JOB: usize = 64 * 1024 + 1024;

/// What the host was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// How much may be sent for the client of an id.
    Credit(u32, u64),
    /// The answer to the question of an id.
    Answer(u32),
    /// That something with id 0 was not understood.
    Complaint,
    /// Nothing that makes sense.
    Nonsense,
}

/// The host's own part of the stream.
#[derive(Debug, Default)]
pub(crate) struct Own {
    outbox: Outbox,
    question: u32,
    partial: Vec<u8>,
    heard: VecDeque<Heard>,
    /// The ids of jobs and connections that have not ended.
    jobs: BTreeSet<u32>,
    /// Those of connections, which are sent bulk records.
    connections: BTreeSet<u32>,
    last_job: u32,
    /// What jobs are given: it waits for its turn like what clients send.
    pub(crate) data: Outbox,
}

/// Whether the host itself listens to a frame.
pub(crate) fn listens_to(header: Header) -> bool {
    (header.id == 0 || (FIRST..FIRST_JOB).contains(&header.id)) && header.body_len <= LARGEST
}

// === impl Own ===

impl Own {
    /// Whether everything that was said is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    pub(crate) fn say(&mut self, frame: &[u8]) {
        self.outbox.push(frame);
    }

    /// Puts the end of a frame that was begun before everything else.
    pub(crate) fn finish(&mut self, rest: &[u8]) {
        let queued = std::mem::take(&mut self.outbox);
        self.outbox.push(rest);
        self.outbox.push(queued.rest());
    }

    /// Opens the id of a job. One is used again when there are no others.
    pub(crate) fn open_job(&mut self) -> u32 {
        let next = |id: u32| if (FIRST_JOB..END - 2).contains(&id) { id + 2 } else { FIRST_JOB };
        self.last_job = next(self.last_job);
        while self.jobs.contains(&self.last_job) {
            self.last_job = next(self.last_job);
        }
        self.jobs.insert(self.last_job);
        self.last_job
    }

    /// Opens the id of a connection.
    pub(crate) fn open_connection(&mut self) -> u32 {
        let id = self.open_job();
        self.connections.insert(id);
        id
    }

    /// Closes the id of a job or a connection: what is still said with it is said to nobody.
    pub(crate) fn close_job(&mut self, id: u32) {
        self.jobs.remove(&id);
        self.connections.remove(&id);
    }

    /// Whether a job or a connection listens to a frame.
    pub(crate) fn is_for_job(&self, header: Header) -> bool {
        let flags = header.flags.known();
        let is_record = flags == Flags::BULK && self.connections.contains(&header.id);
        let sensible = is_record || [Flags::NONE, Flags::TERMINAL].contains(&flags);
        header.id >= FIRST_JOB && sensible && header.body_len <= LARGEST_OF_JOB && self.jobs.contains(&header.id)
    }

    /// Takes a part of a frame for a job; gives it to `take` when it is whole.
    pub(crate) fn hear_job(&mut self, run: Run<'_>, take: impl FnOnce(Frame<'_>) -> bool) -> bool {
        if let (true, Some(Ok(Some((frame, _))))) = (self.partial.is_empty(), run.whole().map(Frame::split)) {
            return take(frame);
        }
        run.pieces().for_each(|piece| self.partial.extend_from_slice(piece));
        let made_sense = match Frame::split(&self.partial) {
            Ok(Some((frame, _))) => take(frame),
            _ => return true,
        };
        self.partial.clear();
        made_sense
    }

    /// How many bytes of whole frames of what jobs are given may be sent at a turn.
    pub(crate) fn data_turn(&self, limit: usize) -> usize {
        let mut taken = 0;
        while taken < limit {
            let Ok(Some((frame, _))) = Frame::split(self.data.rest().get(taken..).unwrap_or_default()) else { break };
            taken += PREFIX_SIZE + frame.body.len();
        }
        taken
    }

    /// How much waits to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.outbox.len() + self.data.len()
    }

    /// Says that a client is gone, and asks something behind it, so that the answer tells when the guest knows.
    pub(crate) fn farewell(&mut self, ids: IdRange) -> u32 {
        let first = HELLO_ID + 2;
        self.question = if (first..FIRST_JOB - 2).contains(&self.question) { self.question + 2 } else { first };
        let gone = ClientDisconnected { id_start: ids.start(), id_end_exclusive: ids.end(), incarnation: None };
        let mut frames = Vec::new();
        // Both are small and always fit.
        let _fits = codec::encode(&mut frames, Generation::PUBLISHED, 0, &gone);
        let _fits = codec::encode(&mut frames, Generation::PUBLISHED, self.question, &Ping {});
        self.say(&frames);
        self.question
    }

    /// Grants more to the client with these ids.
    pub(crate) fn credit(&mut self, ids: IdRange, limit: u64) {
        let mut frame = Vec::new();
        let credit = CarrelCredit { id_start: ids.start(), limit };
        let _fits = codec::encode(&mut frame, Generation::CURRENT, 0, &credit);
        self.say(&frame);
    }

    pub(crate) fn rest(&self) -> &[u8] {
        self.outbox.rest()
    }

    pub(crate) fn took(&mut self, bytes: usize) {
        self.outbox.took(bytes);
    }

    /// Takes a part of a frame that [`listens_to`] let through.
    pub(crate) fn hear<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        pieces.for_each(|piece| self.partial.extend_from_slice(piece));
        while let Ok(Some((frame, rest))) = Frame::split(&self.partial) {
            let (heard, taken) = (understand(frame), self.partial.len() - rest.len());
            self.heard.push_back(heard);
            self.partial.drain(..taken);
        }
    }

    pub(crate) fn take_heard(&mut self) -> Option<Heard> {
        self.heard.pop_front()
    }
}

fn understand(frame: Frame<'_>) -> Heard {
    if frame.id != 0 {
        let last = frame.flags.known() == Flags::TERMINAL;
        return if last { Heard::Answer(frame.id) } else { Heard::Nonsense };
    }
    let Ok(envelope) = Envelope::parse(frame.body) else { return Heard::Nonsense };
    match (envelope.message_type(), envelope.payload::<CarrelCredit>()) {
        (Some(MessageType::CarrelCredit), Ok(credit)) => Heard::Credit(credit.id_start, credit.limit),
        (Some(MessageType::CoreError), _) => Heard::Complaint,
        _ => Heard::Nonsense,
    }
}
