//! Golden bytes: the canonical frame of every message type. Lines are only ever added.
//!
//! A sample that is not in the corpus fails with the line to add.

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/examples.rs"]
mod examples;
#[path = "support/sample.rs"]
mod sample;

use std::collections::HashSet;

use carrel_protocol::MessageType;
use carrel_protocol::schema::WireShape;
use serde_json::{Value, json};

use crate::sample::bytes;

/// The corpus: one line per sample, in order.
fn corpus() -> Vec<Value> {
    let text = include_str!("data/golden/frames.json");
    serde_json::from_str::<Value>(text).expect("JSON").as_array().expect("a list").clone()
}

/// The expected corpus: each sample, with the generation that introduced its type, and its number as id.
fn expected() -> Vec<Value> {
    let line = |(index, sample): (usize, sample::Sample)| {
        let (message_type, id) = (sample.message_type, u32::try_from(index + 1).expect("few samples"));
        let frame = sample.frame(message_type.min_protocol_version(), id);
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"type": message_type.as_str(), "description": sample.note, "frame": hex})
    };
    examples::samples().into_iter().enumerate().map(line).collect()
}

//= versioning.tests-names.future-golden-corpus-encoded
#[test]
fn encoded_messages_match_the_golden_bytes() {
    let (written, expected) = (corpus(), expected());
    for (index, line) in expected.iter().enumerate() {
        assert_eq!(written.get(index), Some(line), "line {} of the corpus should be {line}", index + 1);
    }
    assert_eq!(written.len(), expected.len(), "a line of the corpus has no sample");
}

//= versioning.tests-names.future-golden-corpus-encoded
#[test]
fn golden_bytes_decode_to_their_samples() {
    for (index, (sample, line)) in examples::samples().into_iter().zip(corpus()).enumerate() {
        let (generation, id) = sample.assert_is_in(&bytes(&line["frame"]));
        assert_eq!((generation, id as usize), (sample.message_type.min_protocol_version(), index + 1));
    }
}

#[test]
fn every_sample_has_a_unique_description_and_every_type_has_a_sample() {
    let samples = examples::samples();
    let names: HashSet<_> = samples.iter().map(|sample| (sample.message_type, sample.note.as_str())).collect();
    assert_eq!(names.len(), samples.len());
    let covered: HashSet<_> = samples.iter().map(|sample| sample.message_type).collect();
    assert_eq!(covered, MessageType::ALL.into_iter().collect());
}

//= versioning.tests-names.future-golden-corpus-encoded
#[test]
fn every_key_choice_and_variant_of_the_schema_occurs_in_a_sample() {
    for message_type in MessageType::ALL {
        let lines = corpus().into_iter().filter(|line| line["type"] == message_type.as_str());
        let frames: Vec<_> = lines.map(|line| bytes(&line["frame"])).collect();
        let mut words = HashSet::new();
        collect(&message_type.shape(), &mut words);
        for word in words {
            let stands_in = |frame: &Vec<u8>| frame.windows(word.len()).any(|window| window == word);
            let readable = String::from_utf8_lossy(&word);
            assert!(frames.iter().any(stands_in), "no sample of {message_type} has {readable:?}");
        }
    }
}

/// The encoded texts that a message of this shape may contain. Numeric choices are omitted, because their bytes are not
/// distinctive.
fn collect(shape: &WireShape, words: &mut HashSet<Vec<u8>>) {
    match shape {
        WireShape::Scalar(_) => {}
        WireShape::Nullable(inner) | WireShape::List(inner) => collect(inner, words),
        WireShape::Record(fields) => {
            for field in fields {
                words.insert(encoded(field.name));
                collect(&field.shape, words);
            }
        }
        WireShape::Choice(values) => {
            words.extend(values.iter().filter(|(value, _)| !value.contains(' ')).map(|(value, _)| encoded(value)));
        }
        WireShape::Tagged(variants) => {
            for (name, inner) in variants {
                words.insert(encoded(name));
                collect(inner, words);
            }
        }
    }
}

/// Encodes a text in its shortest form.
fn encoded(text: &str) -> Vec<u8> {
    let len = u8::try_from(text.len()).expect("a short name");
    let head = if len < 24 { vec![0x60 | len] } else { vec![0x78, len] };
    [&head, text.as_bytes()].concat()
}
