//! Every decoder with every kind of input: random, damaged, and valid but not canonical.

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/canonical.rs"]
mod canonical;
#[path = "../../protocol/tests/support/encodings.rs"]
mod encodings;

use std::sync::LazyLock;

use carrel_protocol::{Envelope, Frame};
use carrel_shim_client::messages;

use crate::canonical::{NAMES, canonical, decode};
use crate::encodings::{ENCODING_VARIATIONS, rewritten};

/// A parsed golden frame.
struct Golden {
    name: String,
    payload: Vec<u8>,
}

static GOLDEN: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok()).expect("a digit");
    let line = |line: &str| {
        let digits = line.split(' ').nth(1).expect("digits").as_bytes();
        let wire: Vec<u8> = digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        let (frame, _) = Frame::split(&wire).expect("a sound length").expect("a whole frame");
        let envelope = Envelope::parse(frame.body).expect("an envelope");
        Golden { name: envelope.type_name.into_owned(), payload: envelope.payload.into_owned() }
    };
    include_str!("data/golden/frames.txt").lines().map(line).collect()
});

/// Decodes within the maximum memory for so many bytes: a growing list of empty texts, which take one byte each on the
/// wire and 24 in memory.
fn decode_within_the_allowance(name: &str, payload: &[u8]) {
    let measured = allocation_counter::measure(|| decode(name, payload));
    assert_eq!(measured.bytes_current, 0, "{name}");
    let allowance = 72 * payload.len() as u64 + 4096;
    assert!(measured.bytes_max <= allowance, "{name} held {} bytes for {}", measured.bytes_max, payload.len());
}

#[test]
fn every_message_is_tested_here() {
    assert!(NAMES.iter().copied().eq(messages::all().iter().map(|(name, ..)| *name)));
}

//= carrel.protocol.property-fuzz-target-decoder
//= promises.journal.decoders-shim-bytes
#[test]
fn fuzz_message_decoders_never_panic_nor_hold_more_than_their_input_allows() {
    bolero::check!().for_each(|bytes: &[u8]| NAMES.iter().for_each(|name| decode_within_the_allowance(name, bytes)));
}

//= carrel.protocol.property-fuzz-target-decoder
//= promises.journal.decoders-shim-bytes
#[test]
fn fuzz_damaged_messages_never_panic_and_what_still_decodes_has_one_canonical_form() {
    bolero::check!().with_type::<(u16, Vec<(u8, u16, u8)>)>().for_each(|(which, damages)| {
        let Golden { name, payload } = &GOLDEN[usize::from(*which) % GOLDEN.len()];
        let mut damaged = payload.clone();
        for (kind, at, byte) in damages {
            let at = usize::from(*at) % (damaged.len() + 1);
            match (kind % 5, damaged.get_mut(at)) {
                (0, Some(flipped)) => *flipped ^= 1 << (byte % 8),
                (1, Some(replaced)) => *replaced = *byte,
                (2, Some(_)) => drop(damaged.remove(at)),
                (3, _) => damaged.truncate(at),
                _ => damaged.insert(at, *byte),
            }
        }
        decode_within_the_allowance(name, &damaged);
        if let Ok(once) = canonical(name, &damaged) {
            assert_eq!(canonical(name, &once).as_ref(), Ok(&once), "{name}");
        }
    });
}

#[test]
fn encoded_messages_are_canonical_and_other_encodings_decode_to_the_same_value() {
    for Golden { name, payload } in GOLDEN.iter() {
        assert_eq!(canonical(name, payload).as_ref(), Ok(payload), "{name}");
        for variation in ENCODING_VARIATIONS {
            let other = rewritten(payload, &mut |offered| offered == variation);
            assert_eq!(canonical(name, &other).as_ref(), Ok(payload), "{name}, {variation:?}: {other:02x?}");
        }
        let other = rewritten(payload, &mut |_| true);
        assert_eq!(canonical(name, &other).as_ref(), Ok(payload), "{name} as {other:02x?}");
    }
}

#[test]
fn unknown_choices_of_a_newer_peer_are_mapped_or_rejected() {
    // A choice that was added later, in place of a known one.
    for (name, known, later, accepted) in [
        ("shim.failed", "too_many", "too_late", true),
        ("shim.ended", "stopped", "molten!", true),
        ("shim.status", "paused", "melted", true),
        ("shim.journal.facts", "claimed", "melting", true),
        ("shim.job.info", "running", "melting", true),
        ("shim.job.info", "cancelled", "liquefied", true),
        ("shim.job.cut", "stdout", "stdlog", false),
        ("shim.job.follow", "take", "grab", false),
    ] {
        let text = |text: &str| [&[0x60 | u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
        let (known, later) = (text(known), text(later));
        let at = |payload: &[u8]| payload.windows(known.len()).position(|window| window == known);
        let golden = GOLDEN.iter().find(|golden| golden.name == name && at(&golden.payload).is_some());
        let mut payload = golden.expect("a sample").payload.clone();
        let at = at(&payload).expect("the choice");
        payload[at..at + later.len()].copy_from_slice(&later);
        assert_eq!(canonical(name, &payload).is_ok(), accepted, "{name}");
    }
}
