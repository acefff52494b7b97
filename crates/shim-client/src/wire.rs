//! From messages to frames and back.

use carrel_protocol::cbor::{self, Wire};
use carrel_protocol::{DecodeError, EncodeError, Envelope, Flags, codec};

use crate::messages::VERSION;

/// A message between an owner and a supervisor.
pub trait Message: for<'b> Wire<'b> {
    /// Its name in the envelope.
    const NAME: &'static str;
    /// The flags of its frame.
    const FLAGS: Flags;
}

/// Appends a whole frame with the given message to `out`.
pub fn encode<M: Message>(out: &mut Vec<u8>, id: u32, message: &M) -> Result<(), EncodeError> {
    codec::encode_named(out, VERSION, id, M::FLAGS, M::NAME, message)
}

/// The payload of an envelope, if it is of that type.
pub fn decode<M: Message>(envelope: &Envelope<'_>) -> Option<Result<M, DecodeError>> {
    (envelope.type_name == M::NAME).then(|| cbor::decode_all(&envelope.payload))
}
