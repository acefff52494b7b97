//! Encodes typed messages as frames.

use std::convert::Infallible;

use minicbor::Encoder;
use minicbor::encode::Write;

use crate::bulk::{BulkHeader, RECORD_HEADER_SIZE};
use crate::cbor::{ByteCounter, CborEncodeError, Wire, encoded_len};
use crate::frame::{BodyTooLarge, Flags, Header, PREFIX_SIZE};
use crate::generation::Generation;
use crate::message::{MessageType, Payload};

/// Why a message could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message does not fit into a frame.
    #[error(transparent)]
    TooLarge(#[from] BodyTooLarge),
    /// The encoder failed.
    #[error("encode: {0}")]
    Cbor(#[from] CborEncodeError),
}

/// Everything before the bytes of a data message or a bulk record, kept on the stack, so that the data itself is
/// written from its own buffer without a copy.
#[derive(Clone, Copy, Debug)]
pub struct FramePrefix {
    bytes: [u8; Self::MAX],
    len: usize,
}

/// Appends a frame with the given payload to `out`; on an error `out` is unchanged.
pub fn encode<'b, P: Payload<'b>>(
    out: &mut Vec<u8>,
    generation: Generation,
    id: u32,
    payload: &P,
) -> Result<(), EncodeError> {
    encode_named(out, generation.get(), id, P::TYPE.flags(), P::TYPE.as_str(), payload)
}

/// Appends a frame with a message of another protocol, which has its own names and versions.
pub fn encode_named<'b, P: Wire<'b>>(
    out: &mut Vec<u8>,
    version: u8,
    id: u32,
    flags: Flags,
    name: &str,
    payload: &P,
) -> Result<(), EncodeError> {
    let payload_len = encoded_len(payload)?;
    let body_len = counted(|e| head(e, version, name, payload_len))? + payload_len;
    let header = Header { body_len, id, flags }.to_bytes()?;

    out.reserve(PREFIX_SIZE + body_len);
    out.extend_from_slice(&header);
    let mut e = Encoder::new(&mut *out);
    head(&mut e, version, name, payload_len)?;
    payload.encode(&mut e)?;
    Ok(())
}

/// Appends a frame with an encoded body, for callers that encode or route bodies themselves.
pub fn encode_raw(out: &mut Vec<u8>, id: u32, flags: Flags, body: &[u8]) -> Result<(), BodyTooLarge> {
    let header = Header { body_len: body.len(), id, flags }.to_bytes()?;
    out.reserve(PREFIX_SIZE + body.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
    Ok(())
}

/// Encodes the envelope of a message without a frame, for the raw calls of a client.
pub fn encode_body<'b, P: Payload<'b>>(generation: Generation, payload: &P) -> Result<Vec<u8>, CborEncodeError> {
    let payload_len = encoded_len(payload)?;
    let mut e = Encoder::new(Vec::with_capacity(payload_len + 64));
    envelope_head(&mut e, generation, P::TYPE, payload_len)?;
    payload.encode(&mut e)?;
    Ok(e.into_writer())
}

fn envelope_head<W: Write<Error = Infallible>>(
    e: &mut Encoder<W>,
    generation: Generation,
    message_type: MessageType,
    payload_len: usize,
) -> Result<(), CborEncodeError> {
    head(e, generation.get(), message_type.as_str(), payload_len)
}

fn head<W: Write<Error = Infallible>>(
    e: &mut Encoder<W>,
    version: u8,
    name: &str,
    payload_len: usize,
) -> Result<(), CborEncodeError> {
    e.map(3)?.str("v")?.u8(version)?.str("t")?.str(name)?.str("p")?;
    e.bytes_len(payload_len as u64)?;
    Ok(())
}

fn data_head<W: Write<Error = Infallible>>(e: &mut Encoder<W>, len: usize) -> Result<(), CborEncodeError> {
    e.map(1)?.str("data")?.bytes_len(len as u64)?;
    Ok(())
}

fn counted(
    encode: impl FnOnce(&mut Encoder<ByteCounter>) -> Result<(), CborEncodeError>,
) -> Result<usize, CborEncodeError> {
    let mut e = Encoder::new(ByteCounter::default());
    encode(&mut e)?;
    Ok(e.into_writer().0)
}

// === impl FramePrefix ===

impl FramePrefix {
    /// The maximum length of a prefix.
    pub const MAX: usize = 64;

    /// The prefix of a message whose only field is `len` bytes of `data`.
    pub fn of_data(
        message_type: MessageType,
        generation: Generation,
        id: u32,
        len: usize,
    ) -> Result<Self, EncodeError> {
        let payload_len = counted(|e| data_head(e, len))? + len;
        let body_len = counted(|e| envelope_head(e, generation, message_type, payload_len))? + payload_len;
        let mut prefix = Self::new();
        prefix.push(&Header { body_len, id, flags: message_type.flags() }.to_bytes()?);
        let mut e = Encoder::new(prefix);
        envelope_head(&mut e, generation, message_type, payload_len)?;
        data_head(&mut e, len)?;
        Ok(e.into_writer())
    }

    /// The prefix of a bulk record with `len` bytes.
    pub fn of_record(header: BulkHeader, id: u32, len: usize) -> Result<Self, BodyTooLarge> {
        let mut prefix = Self::new();
        prefix.push(&Header { body_len: RECORD_HEADER_SIZE + len, id, flags: Flags::BULK }.to_bytes()?);
        prefix.push(&header.to_bytes());
        Ok(prefix)
    }

    /// The bytes to send before the data.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    const fn new() -> Self {
        Self { bytes: [0; Self::MAX], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        // The longest name of a data message with the longest heads stays below `MAX`; a test verifies it.
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

impl Write for FramePrefix {
    type Error = Infallible;

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.push(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::envelope::Envelope;
    use crate::frame::{Frame, MAX_BODY};
    use crate::payload::{BulkFlow, BulkKind, ExecStderr, ExecStdin, ExecStdout, FsData, Ping, TcpData};

    fn prefix_of<'b, P: Payload<'b>>(payload: &P, data: &[u8]) {
        let mut whole = Vec::new();
        encode(&mut whole, Generation::PUBLISHED, u32::MAX, payload).unwrap();
        let prefix = FramePrefix::of_data(P::TYPE, Generation::PUBLISHED, u32::MAX, data.len()).unwrap();
        assert_eq!([prefix.as_slice(), data].concat(), whole, "{} of {} bytes", P::TYPE, data.len());
    }

    //= carrel.protocol.data-goes-without-copy
    #[test]
    fn a_prefix_and_its_data_are_the_encoded_message() {
        for len in [0, 1, 23, 24, 255, 256, 65_535, 65_536, 3 * 1024 * 1024] {
            let data = vec![7; len];
            let cow = Cow::Borrowed(&data[..]);
            prefix_of(&ExecStdin { data: cow.clone() }, &data);
            prefix_of(&ExecStdout { data: cow.clone() }, &data);
            prefix_of(&ExecStderr { data: cow.clone() }, &data);
            prefix_of(&FsData { data: cow.clone() }, &data);
            prefix_of(&TcpData { data: cow }, &data);
        }
    }

    //= carrel.protocol.data-goes-without-copy
    #[test]
    fn a_record_prefix_consists_of_frame_header_and_record_header() {
        let header = BulkHeader { kind: BulkKind::File, flow: BulkFlow::GuestToHost, offset: 3 };
        let prefix = FramePrefix::of_record(header, 5, 3).unwrap();
        assert_eq!(prefix.as_slice(), b"\0\0\0\x14\0\0\0\x05\x08\x01\x02\0\0\0\0\0\0\0\0\0\x03");
    }

    #[test]
    fn a_message_too_large_for_a_frame_leaves_the_buffer_unchanged() {
        let data = vec![0; MAX_BODY];
        let mut out = b"before".to_vec();
        let error = encode(&mut out, Generation::PUBLISHED, 1, &FsData { data: Cow::Owned(data) }).unwrap_err();
        assert!(matches!(error, EncodeError::TooLarge(_)), "{error}");
        assert_eq!(out, b"before");
        assert!(FramePrefix::of_data(MessageType::FsData, Generation::PUBLISHED, 1, MAX_BODY).is_err());
    }

    //= client.constants-functions.bodies-raw-cbor-whole
    #[test]
    fn an_encoded_body_equals_the_body_of_the_frame() {
        let mut out = Vec::new();
        encode(&mut out, Generation::PUBLISHED, 9, &Ping {}).unwrap();
        let body = encode_body(Generation::PUBLISHED, &Ping {}).unwrap();
        let mut raw = Vec::new();
        encode_raw(&mut raw, 9, Flags::NONE, &body).unwrap();
        assert_eq!(out, raw);
    }

    //= versioning.number-agreed-upon-once.version-message-generation-second
    #[test]
    fn encoded_messages_decode_to_the_same_value() {
        bolero::check!().with_type::<(u8, u32, Vec<u8>)>().for_each(|(generation, id, data)| {
            let sent = ExecStdout { data: Cow::Borrowed(data) };
            let mut wire = Vec::new();
            encode(&mut wire, Generation::new(*generation), *id, &sent).unwrap();
            let (frame, rest) = Frame::split(&wire).unwrap().unwrap();
            let envelope = Envelope::parse(frame.body).unwrap();
            assert_eq!((frame.id, frame.flags, rest.len()), (*id, Flags::NONE, 0));
            assert_eq!(envelope.generation, Generation::new(*generation));
            assert_eq!(envelope.payload::<ExecStdout<'_>>().unwrap(), sent);
        });
    }
}
