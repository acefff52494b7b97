//! The envelope of every message except bulk records: CBOR `{v, t, p}`, where `p` is a byte string.

use std::borrow::Cow;

use minicbor::Decoder;

use crate::cbor::{self, DecodeError};
use crate::generation::Generation;
use crate::message::{MessageType, Payload};

/// An envelope that borrows from its frame, so that a router never decodes a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The generation that the sender stamped. "Don't gate behavior by reading it per message."
    pub generation: Generation,
    /// The name of the message type, which may be unknown.
    pub type_name: Cow<'a, str>,
    /// The payload, still encoded.
    pub payload: Cow<'a, [u8]>,
}

// === impl Envelope ===

impl<'a> Envelope<'a> {
    /// Parses an envelope from the body of a frame.
    pub fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut d = Decoder::new(body);
        let (mut generation, mut type_name, mut payload) = (None, None, None);
        cbor::map(&mut d, |key, d| match key {
            "v" => {
                cbor::peek(d)?;
                once(&mut generation, "v", Generation::from_wire(d.u64()?))
            }
            "t" => once(&mut type_name, "t", cbor::text(d)?),
            "p" => once(&mut payload, "p", cbor::bytes(d)?),
            _ => cbor::skip(d),
        })?;
        match body.len() - d.position() {
            0 => Ok(Self {
                generation: generation.ok_or(DecodeError::Missing("v"))?,
                type_name: type_name.ok_or(DecodeError::Missing("t"))?,
                payload: payload.ok_or(DecodeError::Missing("p"))?,
            }),
            trailing => Err(DecodeError::Trailing(trailing)),
        }
    }

    /// The generation of a body that may be damaged after it, so that its sender can be answered.
    pub fn generation_of_damaged(body: &[u8]) -> Option<Generation> {
        let mut found = None;
        let _damaged = cbor::map(&mut Decoder::new(body), |key, d| {
            if key == "v" {
                cbor::peek(d)?;
                found = Some(Generation::from_wire(d.u64()?));
                return Ok(());
            }
            cbor::skip(d)
        });
        found
    }

    /// The message type, if it is known.
    pub fn message_type(&self) -> Option<MessageType> {
        MessageType::from_wire(&self.type_name)
    }

    /// Decodes the payload as the given type.
    pub fn payload<'p, P: Payload<'p>>(&'p self) -> Result<P, DecodeError> {
        P::from_bytes(&self.payload)
    }
}

fn once<T>(slot: &mut Option<T>, key: &'static str, value: T) -> Result<(), DecodeError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(DecodeError::Duplicate(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{ExecStdout, Ping};

    const PING: &[u8] = b"\xa3\x61v\x0a\x61t\x69core.ping\x61p\x41\xa0";

    #[test]
    fn an_envelope_is_parsed_without_copying() {
        let envelope = Envelope::parse(PING).unwrap();
        assert_eq!(envelope.generation, Generation::PUBLISHED);
        assert_eq!(envelope.message_type(), Some(MessageType::Ping));
        assert!(matches!((&envelope.type_name, &envelope.payload), (Cow::Borrowed(_), Cow::Borrowed(_))));
        assert_eq!(envelope.payload::<Ping>(), Ok(Ping {}));
    }

    //= carrel.protocol.tolerant-accepted
    #[test]
    fn every_encoding_that_published_peers_send_yields_the_same_envelope() {
        let expected = Envelope::parse(PING).unwrap();
        for form in [
            &b"\xa3\x61p\x41\xa0\x61t\x69core.ping\x61v\x0a"[..],
            b"\xbf\x61v\x0a\x61t\x69core.ping\x61p\x41\xa0\xff",
            b"\xb9\x00\x03\x61v\x18\x0a\x61t\x69core.ping\x61p\x41\xa0",
            b"\xa3\x61v\x0a\x61t\x69core.ping\x61p\xd8\x40\x41\xa0",
            b"\xa3\x61v\x0a\x61t\x69core.ping\x61p\x81\x18\xa0",
            b"\xa3\x61v\x0a\x61t\x7f\x64core\x65.ping\xff\x61p\x5f\x41\xa0\xff",
            b"\xa5\x61x\xf6\x01\x82\x01\x02\x61v\x0a\x61t\x69core.ping\x61p\x41\xa0",
        ] {
            assert_eq!(Envelope::parse(form).as_ref(), Ok(&expected), "{form:02x?}");
        }
    }

    #[test]
    fn a_body_that_is_not_an_envelope_is_rejected() {
        for body in [
            &b""[..],
            b"\x00",
            b"\xa0",
            b"\xa2\x61v\x0a\x61t\x69core.ping",
            b"\xa4\x61v\x0a\x61v\x0a\x61t\x69core.ping\x61p\x41\xa0",
            b"\xa3\x61v\x0a\x61t\x69core.ping\x61p\x41\xa0\x00",
            b"\xa3\x61v\x20\x61t\x69core.ping\x61p\x41\xa0",
            b"\xa3\x61v\x0a\x61t\x62\xff\xff\x61p\x41\xa0",
        ] {
            assert!(Envelope::parse(body).is_err(), "{body:02x?}");
        }
    }

    #[test]
    fn the_generation_of_a_damaged_body_is_recovered_if_it_comes_first() {
        assert_eq!(Envelope::generation_of_damaged(b"\xa3\x61v\x07\x61t\xff"), Some(Generation::new(7)));
        assert_eq!(Envelope::generation_of_damaged(b"garbage"), None);
    }

    //= versioning.three-kinds-change.old-peer-ignores-field
    //= versioning.three-kinds-change.missing-field-filled-default
    //= versioning.tests-names.unknown-extra-field-decodes
    #[test]
    fn an_unknown_extra_field_is_ignored_both_ways() {
        // A newer peer's additional key, and an older peer that omits an optional one.
        let newer = ExecStdout::from_bytes(b"\xa2\x64data\x41x\x63new\xa1\x01\x02").unwrap();
        assert_eq!(&*newer.data, b"x");
        let older = crate::payload::ExecExited::from_bytes(b"\xa1\x64code\x20").unwrap();
        assert_eq!((older.code, older.signal), (-1, None));
    }

    //= carrel.protocol.property-fuzz-target-decoder
    //= promises.protocol.memory-envelope
    #[test]
    fn fuzz_parse_never_panics_and_allocates_within_the_body() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|body| {
            let info = allocation_counter::measure(|| {
                if let Ok(envelope) = Envelope::parse(body) {
                    assert!(envelope.payload.len() <= body.len());
                }
            });
            assert!(info.bytes_max <= 4 * body.len() as u64 + 1024, "{info:?}");
        });
    }
}
