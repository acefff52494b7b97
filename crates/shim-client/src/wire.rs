//! Encodes messages as frames, and decodes them.

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::{DecodeError, EncodeError, Envelope, Flags, codec};

/// A message between a shim and its client.
pub trait ShimMessage<'b>: Wire<'b> {
    /// Its name in the envelope.
    const NAME: &'static str;
    /// The version that introduced it.
    const SINCE: u8;
    /// The flags of its frame.
    const FLAGS: Flags;
}

/// Appends a frame with the given message to `out`, in the negotiated version.
pub fn encode<'b, M: ShimMessage<'b>>(out: &mut Vec<u8>, version: u8, id: u32, message: &M) -> Result<(), EncodeError> {
    codec::encode_named(out, version, id, M::FLAGS, M::NAME, message)
}

/// Decodes the payload of an envelope, if it has that type.
pub fn decode<'b, M: ShimMessage<'b>>(envelope: &'b Envelope<'_>) -> Option<Result<M, DecodeError>> {
    (envelope.type_name == M::NAME).then(|| cbor::decode_all(&envelope.payload))
}
