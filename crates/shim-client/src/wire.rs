//! From messages to frames and back.

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::{DecodeError, EncodeError, Envelope, Flags, codec};

/// A message between a supervisor and one who talks to it.
pub trait Message<'b>: Wire<'b> {
    /// Its name in the envelope.
    const NAME: &'static str;
    /// The version that introduced it.
    const SINCE: u8;
    /// The flags of its frame.
    const FLAGS: Flags;
}

/// Appends a whole frame with the given message to `out`, in a version that both sides speak.
pub fn encode<'b, M: Message<'b>>(out: &mut Vec<u8>, version: u8, id: u32, message: &M) -> Result<(), EncodeError> {
    codec::encode_named(out, version, id, M::FLAGS, M::NAME, message)
}

/// The payload of an envelope, if it is of that type.
pub fn decode<'b, M: Message<'b>>(envelope: &'b Envelope<'_>) -> Option<Result<M, DecodeError>> {
    (envelope.type_name == M::NAME).then(|| cbor::decode_all(&envelope.payload))
}
