//! The interface between the event loop and a session.

use carrel_protocol::bulk::BulkRecord;
use carrel_protocol::payload::{CoreErrorKind, ExecExited};
use carrel_protocol::{DecodeError, Envelope, MessageType};

use crate::poll::{Readiness, SessionFd};
use crate::shared_state::SessionIo;

/// Identifies a session: its connection and correlation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey {
    pub(crate) connection: u16,
    pub(crate) id: u32,
}

/// The result of running a session once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnResult {
    /// It is still runnable.
    Again,
    /// It waits for a message, readiness or a timer.
    Wait,
    /// It waits for send capacity of its connection.
    SendBlocked,
    /// It is finished; its last frame is queued.
    Done,
}

/// Why a message was rejected. It is sent as `core.error`; the session continues.
#[derive(Debug)]
pub(crate) struct MessageRejection {
    pub(crate) kind: CoreErrorKind,
    pub(crate) message: String,
}

/// The handler of one correlation id.
pub(crate) trait SessionHandler {
    fn message(
        &mut self,
        io: &mut SessionIo,
        key: SessionKey,
        message_type: MessageType,
        envelope: &Envelope<'_>,
    ) -> Result<(), MessageRejection>;

    /// Handles a bulk record.
    fn record(
        &mut self,
        _io: &mut SessionIo,
        _key: SessionKey,
        _record: &BulkRecord<'_>,
    ) -> Result<(), MessageRejection> {
        Err(MessageRejection::session("no bulk stream was accepted for this id"))
    }

    /// Called when a descriptor became ready.
    fn ready(&mut self, _channel: SessionFd, _readiness: Readiness) {}

    /// Called when its process exited.
    fn process_ended(&mut self, _io: &mut SessionIo, _key: SessionKey, _exited: ExecExited) {}

    /// Does a bounded amount of work.
    fn turn(&mut self, io: &mut SessionIo, key: SessionKey) -> TurnResult;

    /// The number of buffered input bytes.
    fn backlog(&self) -> usize {
        0
    }

    /// Whether its input has flow control of its own.
    fn has_flow_control(&self) -> bool {
        false
    }

    /// Called when it buffers too much input on a channel that must not block: the input is dropped, and its sender is
    /// notified.
    fn overflow(&mut self, _io: &mut SessionIo, _key: SessionKey) {}

    /// Terminates it gracefully, because the sandbox shuts down.
    fn terminate(&mut self) {}

    /// Whether it is a command.
    fn is_execution(&self) -> bool {
        false
    }

    /// Called when it is finished: deregisters what outlives it.
    fn release(&mut self, _io: &SessionIo) {}

    /// Aborts it, because its owner is gone. Nothing is sent.
    fn withdraw(&mut self, _io: &mut SessionIo) {}
}

// === impl MessageRejection ===

impl MessageRejection {
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

    /// The rejection of a message for another kind of session.
    pub(crate) fn misplaced(message_type: MessageType) -> Self {
        Self::session(format!("{message_type} is not valid for the session with this id"))
    }
}

impl From<DecodeError> for MessageRejection {
    fn from(error: DecodeError) -> Self {
        Self::payload(error.to_string())
    }
}

impl From<carrel_protocol::bulk::BulkError> for MessageRejection {
    fn from(error: carrel_protocol::bulk::BulkError) -> Self {
        Self::session(error.to_string())
    }
}
