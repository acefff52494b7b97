//! What every session is to the loop: something that takes messages, is told of readiness, and works by turns.

use carrel_protocol::bulk::BulkRecord;
use carrel_protocol::payload::{CoreErrorKind, ExecExited};
use carrel_protocol::{DecodeError, Envelope, MessageType};

use crate::io::Io;
use crate::poll::{Channel, Readiness};

/// Whose session: the connection and the correlation id on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) connection: u16,
    pub(crate) id: u32,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is more to do at once.
    Again,
    /// Nothing to do until a message, an edge or a timer.
    Wait,
    /// There is more to do once the connection has room.
    Room,
    /// The session is over; its last frame is sent.
    Done,
}

/// Why a message is refused. It goes back as `core.error`; the session goes on.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: CoreErrorKind,
    pub(crate) message: String,
}

/// Work that belongs to one correlation id.
pub(crate) trait Session {
    /// Takes a message of its id.
    fn message(
        &mut self,
        io: &mut Io,
        key: Key,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), Refusal>;

    /// Takes a bulk record of its id.
    fn record(&mut self, _io: &mut Io, _key: Key, _record: &BulkRecord<'_>) -> Result<(), Refusal> {
        Err(Refusal::session("no bulk stream was accepted for this id"))
    }

    /// Is told that a descriptor became ready.
    fn ready(&mut self, _channel: Channel, _readiness: Readiness) {}

    /// Is told that its process ended.
    fn process_ended(&mut self, _io: &mut Io, _key: Key, _exited: ExecExited) {}

    /// Does a bounded piece of work.
    fn turn(&mut self, io: &mut Io, key: Key) -> Turn;

    /// How much input it holds that nobody has taken yet.
    fn backlog(&self) -> usize {
        0
    }

    /// Whether its peer waits for what it sends to be taken, so that nobody else has to make it wait.
    fn is_paced(&self) -> bool {
        false
    }

    /// Is told that it holds more input than it may, on a channel that cannot wait for it: the input is lost, and its
    /// sender learns so.
    fn overflow(&mut self, _io: &mut Io, _key: Key) {}

    /// Asks it to come to an end, because the sandbox does.
    fn terminate(&mut self) {}

    /// Whether it is a command.
    fn is_execution(&self) -> bool {
        false
    }

    /// Is over: what outlives it is no longer watched on its behalf.
    fn release(&mut self, _io: &Io) {}

    /// Ends it, because its owner is gone. Nothing is sent.
    fn withdraw(&mut self, _io: &mut Io) {}
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(kind: CoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn session(message: impl Into<String>) -> Self {
        Self::new(CoreErrorKind::InvalidSession, message)
    }

    pub(crate) fn payload(message: impl Into<String>) -> Self {
        Self::new(CoreErrorKind::InvalidPayload, message)
    }

    pub(crate) fn capability(message: impl Into<String>) -> Self {
        Self::new(CoreErrorKind::CapabilityUnavailable, message)
    }

    /// A message that belongs to another kind of session.
    pub(crate) fn misplaced(message_type: MessageType) -> Self {
        Self::session(format!("{message_type} does not belong to the session of this id"))
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        Self::payload(error.to_string())
    }
}

impl From<carrel_protocol::bulk::BulkError> for Refusal {
    fn from(error: carrel_protocol::bulk::BulkError) -> Self {
        Self::session(error.to_string())
    }
}
