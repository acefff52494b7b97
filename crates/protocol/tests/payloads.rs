//! Every decoder with every kind of input: random, damaged, and valid but not canonical.

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/canonical.rs"]
mod canonical;
#[path = "support/encodings.rs"]
mod encodings;

use std::sync::LazyLock;

use carrel_protocol::cbor::MAX_LIST;
use carrel_protocol::frame::{MAX_BODY, MAX_LENGTH};
use carrel_protocol::{Envelope, Frame, MessageType};

use crate::canonical::canonical;
use crate::encodings::{ENCODING_VARIATIONS, EncodingVariation, rewritten};

/// A parsed golden frame.
struct Golden {
    message_type: MessageType,
    body: Vec<u8>,
    payload: Vec<u8>,
}

static GOLDEN: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok()).expect("a digit");
    let corpus: serde_json::Value = serde_json::from_str(include_str!("data/golden/frames.json")).expect("JSON");
    let line = |line: &serde_json::Value| {
        let hex = line["frame"].as_str().expect("digits").as_bytes();
        let wire: Vec<u8> = hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        let (frame, _) = Frame::split(&wire).expect("a sound length").expect("a whole frame");
        let envelope = Envelope::parse(frame.body).expect("an envelope");
        let message_type = envelope.message_type().expect("a known type");
        Golden { message_type, body: frame.body.to_vec(), payload: envelope.payload.into_owned() }
    };
    corpus.as_array().expect("a list").iter().map(line).collect()
});

/// The maximum memory for decoding `len` bytes.
///
/// The cheapest list element is an empty text: one byte on the wire, 24 in memory. While a list grows, its old and its
/// doubled buffer exist, which makes 72 bytes. Lists are limited to [`MAX_LIST`] elements, so a full frame stays far
/// below 72 times its size: see the test of the longest lists. The constant covers the smallest lists, which start with
/// a capacity of four, and the text of an error.
fn allowance(len: usize) -> u64 {
    72 * len as u64 + 2048
}

/// Decodes as one type and returns the peak memory.
fn decode(message_type: MessageType, payload: &[u8]) -> u64 {
    let measured = allocation_counter::measure(|| drop(message_type.check_payload(payload)));
    assert_eq!(measured.bytes_current, 0, "{message_type}");
    measured.bytes_max
}

fn decode_within_the_allowance(message_type: MessageType, payload: &[u8]) {
    let held = decode(message_type, payload);
    assert!(held <= allowance(payload.len()), "{message_type} held {held} bytes for {}", payload.len());
}

//= carrel.protocol.bounded-depth-size-whatever
//= carrel.protocol.property-fuzz-target-decoder
//= promises.protocol.memory-decoder
#[test]
fn fuzz_payload_decoders_never_panic_nor_hold_more_than_their_input_allows() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for message_type in MessageType::ALL {
            decode_within_the_allowance(message_type, bytes);
        }
    });
}

//= carrel.protocol.property-fuzz-target-decoder
#[test]
fn fuzz_bodies_are_read_as_what_they_name_without_a_panic() {
    bolero::check!().for_each(|body: &[u8]| {
        let Ok(envelope) = Envelope::parse(body) else { return };
        if let Some(message_type) = envelope.message_type() {
            decode_within_the_allowance(message_type, &envelope.payload);
        }
    });
}

//= carrel.protocol.property-fuzz-target-decoder
#[test]
fn damaged_golden_payloads_never_panic_and_what_still_decodes_has_one_canonical_form() {
    bolero::check!().with_type::<(u16, Vec<(u8, u16, u8)>)>().for_each(|(which, damages)| {
        let Golden { message_type, payload, .. } = &GOLDEN[usize::from(*which) % GOLDEN.len()];
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
        decode_within_the_allowance(*message_type, &damaged);
        if let Ok(once) = canonical(*message_type, &damaged) {
            assert_eq!(canonical(*message_type, &once).as_ref(), Ok(&once), "{message_type}");
        }
    });
}

//= carrel.protocol.strict-sent
#[test]
fn golden_payloads_are_in_canonical_form() {
    for Golden { message_type, body, payload } in GOLDEN.iter() {
        assert_eq!(canonical(*message_type, payload).as_ref(), Ok(payload), "{message_type}");
        assert_eq!(rewritten(body, &mut |_| false), *body, "{message_type}");
        assert_eq!(rewritten(payload, &mut |_| false), *payload, "{message_type}");
    }
}

/// Compares the rewritten payload, in a rewritten envelope, with the golden one.
fn assert_same(Golden { message_type, body, payload }: &Golden, take: &mut dyn FnMut(EncodingVariation) -> bool) {
    let other = rewritten(payload, take);
    assert_eq!(canonical(*message_type, &other).as_ref(), Ok(payload), "{message_type} as {other:02x?}");
    let other = rewritten(body, take);
    let envelope = Envelope::parse(&other).expect("a rewritten envelope is one");
    assert_eq!((envelope.message_type(), &*envelope.payload), (Some(*message_type), &**payload), "{other:02x?}");
}

//= versioning.rules-never-broken.version-put-message-types
//= versioning.three-kinds-change.old-peer-ignores-field
//= versioning.tests-names.unknown-extra-field-decodes
//= carrel.protocol.tolerant-accepted
//= promises.protocol.forms-message-accepted
#[test]
fn each_encoding_variation_alone_and_combined_decodes_to_the_same_message() {
    for golden in GOLDEN.iter() {
        for variation in ENCODING_VARIATIONS {
            assert_same(golden, &mut |offered| offered == variation);
        }
        assert_same(golden, &mut |_| true);
    }
}

//= carrel.protocol.tolerant-accepted
#[test]
fn each_encoding_variation_is_used_at_least_once() {
    for variation in ENCODING_VARIATIONS {
        let changed = |payload: &Vec<u8>| rewritten(payload, &mut |offered| offered == variation) != *payload;
        assert!(GOLDEN.iter().any(|golden| changed(&golden.payload)), "{variation:?}");
    }
}

//= carrel.protocol.tolerant-accepted
//= promises.protocol.forms-message-accepted
#[test]
fn any_mix_of_encoding_variations_decodes_to_the_same_message() {
    bolero::check!().with_type::<(u16, Vec<u8>)>().for_each(|(which, choices)| {
        let golden = &GOLDEN[usize::from(*which) % GOLDEN.len()];
        let mut bits = choices.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1)).cycle();
        assert_same(golden, &mut |_| bits.next().unwrap_or(false));
    });
}

/// Encodes a short text.
fn text(text: &str) -> Vec<u8> {
    [&[0x60 | u8::try_from(text.len()).expect("a short text")], text.as_bytes()].concat()
}

/// Encodes `[element, element, …]` with the maximum number of elements.
fn full_list(element: &[u8]) -> Vec<u8> {
    [&[0x9f], &*element.repeat(MAX_LIST), &[0xff]].concat()
}

/// Encodes a map with the given keys and encoded values.
fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let content = entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat());
    [0xbf].into_iter().chain(content).chain([0xff]).collect()
}

/// The smallest element with these keys; values are texts unless named as numbers.
fn element(texts: &[&str], numbers: &[&str]) -> Vec<u8> {
    let texts = texts.iter().map(|key| [text(key), text("")].concat());
    let numbers = numbers.iter().map(|key| [text(key), vec![0]].concat());
    let entries: Vec<_> = texts.chain(numbers).collect();
    [vec![0xa0 | u8::try_from(entries.len()).expect("few keys")], entries.concat()].concat()
}

//= carrel.protocol.bounded-depth-size-whatever
//= promises.protocol.elements-list
#[test]
fn the_longest_lists_of_the_smallest_elements_are_bounded_in_memory() {
    let empty = full_list(&text(""));
    let limits = full_list(&element(&["resource"], &["soft", "hard"]));
    let variables = full_list(&element(&["key", "value"], &[]));
    let entry = [&[0xa4], &*text("kind"), &text("dir"), &element(&["path"], &["size", "mode"])[1..]].concat();
    let event = [&[0xa2], &*text("kind"), &text("moved"), &text("path"), &text("")].concat();
    let bootstrap = [
        ("tmpfs_mounts", full_list(&element(&["path"], &[]))),
        ("disk_mounts", full_list(&element(&["id", "guest_path"], &[]))),
        ("default_env", variables.clone()),
        ("handoff_init", map(&[("args", empty.clone()), ("env", variables)])),
    ];
    for (frames, message_type, payload) in [
        (2, MessageType::ExecRequest, map(&[("args", empty.clone()), ("env", empty.clone()), ("rlimits", limits)])),
        (2, MessageType::WorkloadFreeze, map(&[("external_mount_tags", empty)])),
        (4, MessageType::FsResponse, map(&[("data", map(&[("List", full_list(&entry))]))])),
        (2, MessageType::CarrelFsMatches, map(&[("matches", full_list(&element(&["path"], &[])))])),
        (2, MessageType::CarrelFsEvents, map(&[("events", full_list(&event))])),
        (5, MessageType::Bootstrap, map(&bootstrap)),
    ] {
        assert!(payload.len() < MAX_BODY, "{message_type}: {} bytes", payload.len());
        let held = decode(message_type, &payload);
        assert!(held >= 24 * MAX_LIST as u64, "{message_type}: the list was not read to its end");
        assert!(held <= frames * u64::from(MAX_LENGTH), "{message_type} held {held} bytes");
    }
}

#[test]
fn an_error_quotes_only_the_beginning_of_what_was_sent() {
    let long = [&[0x7a, 0, 0x30, 0, 0], &*vec![1; 0x30_0000]].concat();
    let variant = [&[0xa1], &*text("op"), &[0xa1], &long, &[0]].concat();
    let value = [&[0xa2], &*text("attempt_id"), &text(""), &text("mode"), &long].concat();
    for (message_type, payload) in [(MessageType::FsRequest, variant), (MessageType::WorkloadThaw, value)] {
        let error = message_type.check_payload(&payload).expect_err("an unknown text");
        assert!(error.to_string().contains("unknown") && error.to_string().len() < 512, "{error}");
        assert!(decode(message_type, &payload) < 4096, "{message_type}");
    }
}

/// The inputs of a fuzz target are found by its name, in a directory below `__fuzz__`.
#[test]
fn every_committed_fuzz_input_belongs_to_a_target_in_this_file() {
    let folders = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/__fuzz__")).expect("committed inputs");
    let names: Vec<_> = folders.map(|entry| entry.expect("an entry").file_name().into_string()).collect();
    assert_eq!(names.len(), 2);
    for name in names {
        let target = format!("fn fuzz_{}() {{", name.expect("a plain name"));
        assert!(include_str!("payloads.rs").contains(&target), "there are inputs, but there is no {target}");
    }
}
