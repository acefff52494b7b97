//! A message value written by hand, to compare with recorded bytes.

use carrel_protocol::{Envelope, Frame};
use carrel_shim_client::{ShimMessage, decode, encode};

/// One message of any type.
pub(crate) struct Sample {
    /// A description, unique among the samples of its type.
    pub(crate) note: &'static str,
    /// The name of its type.
    pub(crate) name: &'static str,
    encode: Box<dyn Fn(u32) -> Vec<u8>>,
    compare: Box<dyn Fn(&'static [u8], u32)>,
}

/// A sample of `value`.
pub(crate) fn sample<M: ShimMessage<'static> + PartialEq + std::fmt::Debug + Clone + 'static>(
    note: &'static str,
    value: M,
) -> Sample {
    let sent = value.clone();
    Sample {
        note,
        name: M::NAME,
        encode: Box::new(move |id| {
            let mut frame = Vec::new();
            encode(&mut frame, M::SINCE, id, &sent).expect("a sample fits into a frame");
            frame
        }),
        compare: Box::new(move |wire, id| {
            let (frame, rest) = Frame::split(wire).expect("a sound length").expect("a whole frame");
            assert_eq!((frame.id, frame.flags, rest.len()), (id, M::FLAGS, 0));
            // Messages borrow from their bytes, and a sample outlives every frame; leaking a few bytes in a test is
            // fine.
            let envelope: &'static Envelope<'static> = Box::leak(Box::new(Envelope::parse(frame.body).expect("CBOR")));
            assert_eq!(envelope.generation.get(), M::SINCE);
            assert_eq!(decode::<M>(envelope).as_ref(), Some(&Ok(value.clone())));
        }),
    }
}

/// Decodes hexadecimal digits.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits");
    hex.as_bytes().chunks(2).map(digits).collect()
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// === impl Sample ===

impl Sample {
    /// Encodes the value as a frame.
    pub(crate) fn frame(&self, id: u32) -> Vec<u8> {
        (self.encode)(id)
    }

    /// Decodes a whole frame and compares it with the value.
    pub(crate) fn assert_is_in(&self, wire: Vec<u8>, id: u32) {
        (self.compare)(wire.leak(), id);
    }
}
