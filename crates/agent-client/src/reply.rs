//! Decodes the responses of an agent.

use std::borrow::Cow;

use bytes::Bytes;
use carrel_protocol::payload::{CoreError, FsData};
use carrel_protocol::{DecodeError, Envelope, Flags, MessageType, Payload};

use crate::error::{AgentClientError, ProtocolViolation};
use crate::raw::RawFrame;

/// A frame with its parsed envelope.
pub(crate) struct ParsedFrame<'f> {
    body: &'f Bytes,
    envelope: Envelope<'f>,
}

// === impl ParsedFrame ===

impl<'f> ParsedFrame<'f> {
    /// Parses the envelope. A bulk record has none and is rejected.
    pub(crate) fn parse(frame: &'f RawFrame) -> Result<Self, ProtocolViolation> {
        if frame.flags.contains(Flags::BULK) {
            return Err(ProtocolViolation::unexpected("a message", "a bulk record"));
        }
        Ok(Self { body: &frame.body, envelope: Envelope::parse(&frame.body)? })
    }

    /// The message type, if known.
    pub(crate) fn message_type(&self) -> Option<MessageType> {
        self.envelope.message_type()
    }

    /// Decodes the payload as the given type.
    pub(crate) fn payload<P: for<'p> Payload<'p>>(&self) -> Result<P, DecodeError> {
        self.envelope.payload()
    }

    /// The payload of the expected response; an error message of the agent becomes that error, anything else a
    /// violation.
    pub(crate) fn expect<P: for<'p> Payload<'p>>(&self) -> Result<P, AgentClientError> {
        match self.message_type() {
            Some(found) if found == P::TYPE => Ok(self.payload()?),
            _ => Err(self.unexpected(P::TYPE.as_str())),
        }
    }

    /// The error for receiving this message instead of the expected one.
    pub(crate) fn unexpected(&self, expected: &'static str) -> AgentClientError {
        match self.message_type() {
            Some(MessageType::CoreError) => match self.payload::<CoreError>() {
                Ok(error) => AgentClientError::Refused(Box::new(error)),
                Err(error) => error.into(),
            },
            _ => ProtocolViolation::unexpected(expected, &self.envelope.type_name).into(),
        }
    }

    /// The bytes of a message whose only field is `data`, without a copy.
    pub(crate) fn data(&self) -> Result<Bytes, DecodeError> {
        let data = match &self.envelope.payload {
            Cow::Borrowed(payload) => FsData::from_bytes(payload)?.data,
            Cow::Owned(payload) => Cow::Owned(FsData::from_bytes(payload)?.data.into_owned()),
        };
        Ok(match data {
            Cow::Borrowed(data) => self.body.slice_ref(data),
            Cow::Owned(data) => data.into(),
        })
    }
}
