//! Reading what an agent answered.

use std::borrow::Cow;

use bytes::Bytes;
use carrel_protocol::payload::{CoreError, FsData};
use carrel_protocol::{DecodeError, Envelope, Flags, MessageType, Payload};

use crate::error::{Error, ProtocolViolation};
use crate::raw::RawFrame;

/// A frame whose envelope was read.
pub(crate) struct Message<'f> {
    body: &'f Bytes,
    envelope: Envelope<'f>,
}

// === impl Message ===

impl<'f> Message<'f> {
    /// Reads the envelope. A bulk record has none and is refused here.
    pub(crate) fn parse(frame: &'f RawFrame) -> Result<Self, ProtocolViolation> {
        if frame.flags.contains(Flags::BULK) {
            return Err(ProtocolViolation::unexpected("a message", "a bulk record"));
        }
        Ok(Self { body: &frame.body, envelope: Envelope::parse(&frame.body)? })
    }

    /// Its type, if we know it.
    pub(crate) fn message_type(&self) -> Option<MessageType> {
        self.envelope.message_type()
    }

    /// Its payload as the given type.
    pub(crate) fn payload<P: for<'p> Payload<'p>>(&self) -> Result<P, DecodeError> {
        self.envelope.payload()
    }

    /// The payload of the one answer that is due; anything else is an error, and one that the agent reports is that.
    pub(crate) fn expect<P: for<'p> Payload<'p>>(&self) -> Result<P, Error> {
        match self.message_type() {
            Some(found) if found == P::TYPE => Ok(self.payload()?),
            _ => Err(self.not(P::TYPE.as_str())),
        }
    }

    /// The error of getting this message where another was due.
    pub(crate) fn not(&self, expected: &'static str) -> Error {
        match self.message_type() {
            Some(MessageType::CoreError) => match self.payload::<CoreError>() {
                Ok(error) => Error::Refused(Box::new(error)),
                Err(error) => error.into(),
            },
            _ => ProtocolViolation::unexpected(expected, &self.envelope.type_name).into(),
        }
    }

    /// The bytes of a message whose only field is `data`, still in the memory they were read into.
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
