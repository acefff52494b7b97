//! Golden bytes: a frame of every message, and a journal. Lines are only ever added.
//!
//! A sample that is not in the corpus fails with the line to add.

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/examples.rs"]
mod examples;
#[path = "support/sample.rs"]
mod sample;

use std::collections::HashSet;
use std::fs::{self, File};

use carrel_protocol::schema::WireShape;
use carrel_shim_client::{Journal, messages};

use crate::sample::{bytes, hex};

/// The corpus: one line per sample, in order: the name of the message, its frame, its description.
const FRAMES: &str = include_str!("data/golden/frames.txt");
/// A journal of format 1: its head, then one line per fact.
const JOURNAL: &str = include_str!("data/golden/journal-1.txt");

/// The recorded frames of a message.
fn frames(name: &str) -> Vec<Vec<u8>> {
    let lines = FRAMES.lines().map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
    lines.filter(|line| line[0] == name).map(|line| bytes(line[1])).collect()
}

//= promises.journal.messages-version-1-journal
#[test]
fn encoded_messages_match_the_golden_bytes_and_decode_to_the_same_value() {
    let (samples, lines): (_, Vec<_>) = (examples::samples(), FRAMES.lines().collect());
    for (index, sample) in samples.iter().enumerate() {
        let id = u32::try_from(index + 1).expect("few samples");
        let frame = sample.frame(id);
        let line = format!("{} {} {}", sample.name, hex(&frame), sample.note);
        assert_eq!(lines.get(index), Some(&line.trim_end()), "line {id} of the corpus should be\n{line}");
        sample.assert_is_in(frame, id);
    }
    assert_eq!(lines.len(), samples.len(), "a line of the corpus has no sample");
}

#[test]
fn every_sample_has_a_unique_description_and_every_message_has_a_line() {
    let samples = examples::samples();
    let notes: HashSet<_> = samples.iter().map(|sample| (sample.name, sample.note)).collect();
    assert_eq!(notes.len(), samples.len());
    let names: HashSet<_> = FRAMES.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(names, messages::all().iter().map(|(name, ..)| *name).collect());
}

#[test]
fn every_key_and_every_choice_occurs_in_a_line() {
    for (name, _, _, shape) in messages::all() {
        let frames = frames(name);
        for word in words(&shape) {
            let len = u8::try_from(word.len()).expect("a short name");
            let head = if len < 24 { vec![0x60 | len] } else { vec![0x78, len] };
            let encoded = [&head, word.as_bytes()].concat();
            let stands_in = |frame: &Vec<u8>| frame.windows(encoded.len()).any(|window| window == encoded);
            assert!(frames.iter().any(stands_in), "no sample of {name} has {word:?}");
        }
    }
}

/// The keys and choices that a message of this shape may contain.
fn words(shape: &WireShape) -> HashSet<String> {
    match shape {
        WireShape::Scalar(_) => HashSet::new(),
        WireShape::Nullable(inner) | WireShape::List(inner) => words(inner),
        WireShape::Record(fields) => {
            let inner = fields.iter().flat_map(|field| words(&field.shape));
            fields.iter().map(|field| field.name.to_owned()).chain(inner).collect()
        }
        WireShape::Choice(values) => values.iter().map(|(value, _)| value.clone()).collect(),
        WireShape::Tagged(variants) => {
            variants.iter().flat_map(|(name, inner)| words(inner).into_iter().chain([(*name).to_owned()])).collect()
        }
    }
}

//= promises.journal.messages-version-1-journal
#[test]
fn a_journal_of_the_first_format_matches_its_golden_bytes() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = File::open(home.path()).expect("the directory");
    let mut journal = Journal::create(&directory, "0123456789abcdef").expect("a journal");
    let path = home.path().join("journal");
    let mut written = fs::read(&path).expect("a journal");
    let mut lines = vec![hex(&written)];
    for fact in examples::facts() {
        journal.append(fact).expect("room");
        let longer = fs::read(&path).expect("a journal");
        lines.push(hex(longer.strip_prefix(&*written).expect("what was there stays")));
        written = longer;
    }
    let text = lines.join("\n") + "\n";
    assert_eq!(JOURNAL, text, "the format of the journal changed:\n{text}");

    fs::write(&path, bytes(&JOURNAL.replace('\n', ""))).expect("a file");
    let loaded = Journal::load(&directory).expect("a journal");
    assert_eq!((&*loaded.incarnation, loaded.torn), ("0123456789abcdef", false));
    assert_eq!(loaded.facts, examples::facts());
}
