//! A message value written by hand, to compare with recorded bytes.

use carrel_protocol::{Envelope, Frame, Generation, MessageType, Payload, codec};
use serde_json::Value;

/// One message of any type.
pub(crate) struct Sample {
    /// A description, unique among the samples of its type.
    pub(crate) note: String,
    pub(crate) message_type: MessageType,
    encode: Box<dyn Fn(Generation, u32) -> Vec<u8>>,
    compare: Box<dyn Fn(&'static [u8])>,
}

/// A sample of `value`.
pub(crate) fn sample<P: Payload<'static> + PartialEq + std::fmt::Debug + Clone + 'static>(
    note: impl Into<String>,
    value: P,
) -> Sample {
    let sent = value.clone();
    Sample {
        note: note.into(),
        message_type: P::TYPE,
        encode: Box::new(move |generation, id| {
            let mut frame = Vec::new();
            codec::encode(&mut frame, generation, id, &sent).expect("a sample fits into a frame");
            frame
        }),
        compare: Box::new(move |payload| assert_eq!(P::from_bytes(payload).as_ref(), Ok(&value))),
    }
}

/// Decodes a string of hexadecimal digits.
pub(crate) fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("a string of hexadecimal digits");
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits");
    hex.as_bytes().chunks(2).map(digits).collect()
}

// === impl Sample ===

impl Sample {
    /// Encodes the value as a frame.
    pub(crate) fn frame(&self, generation: Generation, id: u32) -> Vec<u8> {
        (self.encode)(generation, id)
    }

    /// Decodes a whole frame, compares it with the value, and returns its generation and id.
    pub(crate) fn assert_is_in(&self, wire: &[u8]) -> (Generation, u32) {
        let (frame, rest) = Frame::split(wire).expect("a sound length").expect("a whole frame");
        assert_eq!((frame.flags, rest.len()), (self.message_type.flags(), 0));
        let envelope = Envelope::parse(frame.body).expect("an envelope");
        assert_eq!(envelope.message_type(), Some(self.message_type));
        // Payloads borrow from their bytes, and a sample outlives every frame; leaking a few bytes in a test is fine.
        (self.compare)(envelope.payload.into_owned().leak());
        (envelope.generation, frame.id)
    }
}
