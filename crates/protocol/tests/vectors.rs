//! Frames recorded from published peers: each decodes to the expected value, and we encode that value as the same
//! bytes.

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/published.rs"]
mod published;
#[path = "support/sample.rs"]
mod sample;

use std::collections::HashSet;

use carrel_protocol::bulk::{BulkHeader, BulkRecord};
use carrel_protocol::codec::FramePrefix;
use carrel_protocol::payload::{BulkFlow, BulkKind};
use carrel_protocol::{Flags, Frame, Generation, MessageType};
use serde_json::Value;

use crate::sample::{Sample, bytes};

/// The recorded frames of the published encoder.
fn recorded() -> Value {
    serde_json::from_str(include_str!("data/published-frames.json")).expect("the recorded frames are JSON")
}

fn rows(name: &str) -> Vec<Value> {
    recorded()[name].as_array().expect("a list").clone()
}

fn row_of(sample: &Sample, rows: &[Value]) -> Value {
    let is_it = |row: &&Value| row["type"] == sample.message_type.as_str() && row["note"] == sample.note.as_str();
    let found = rows.iter().find(is_it);
    found.unwrap_or_else(|| panic!("no frame of {} is recorded as {:?}", sample.message_type, sample.note)).clone()
}

/// Decodes the recorded frame of a sample and returns it with our encoding of the same value.
fn theirs_and_ours(sample: &Sample, rows: &[Value]) -> (Vec<u8>, Vec<u8>) {
    let row = row_of(sample, rows);
    let wire = bytes(&row["frame"]);
    let (generation, id) = sample.assert_is_in(&wire);
    assert_eq!((Some(u64::from(generation.get())), Some(u64::from(id))), (row["v"].as_u64(), row["id"].as_u64()));
    (wire, sample.frame(generation, id))
}

//= carrel.protocol.frame-published-encoder-decodes
//= promises.protocol.frames-published-encoder-decode
#[test]
fn every_published_frame_has_a_sample_and_every_sample_a_frame() {
    let mut samples = published::samples();
    samples.push(published::ready_with_exec_control());
    let ours: HashSet<_> = samples.iter().map(|s| (s.message_type.as_str().to_owned(), s.note.clone())).collect();
    let text = |row: &Value, key: &str| row[key].as_str().expect("a text").to_owned();
    let theirs: HashSet<_> = rows("frames").iter().map(|row| (text(row, "type"), text(row, "note"))).collect();
    assert_eq!((ours.len(), samples.len()), (82, 82));
    assert_eq!(ours, theirs);
}

//= versioning.implementation-details.layout-length-id-flags
//= versioning.rules-never-broken.2-container-never-changes
//= carrel.protocol.frame-published-encoder-decodes
//= promises.protocol.frames-published-encoder-decode
#[test]
fn every_published_frame_decodes_and_encodes_to_the_same_bytes() {
    let rows = rows("frames");
    for sample in published::samples() {
        let (theirs, ours) = theirs_and_ours(&sample, &rows);
        assert_eq!(ours, theirs, "{} {:?}", sample.message_type, sample.note);
    }
}

//= carrel.protocol.frame-published-encoder-decodes
//= promises.protocol.frames-published-encoder-decode
/// The relay adds `exec_control` to a ready that it forwards, and its encoder does not know the number of keys in
/// advance: it sends a map of indefinite length (`bf … ff`). We send a definite one (`a5 …`), which is one byte
/// shorter; so the length in the frame header and the one before `p` differ too, and nothing else.
#[test]
fn a_ready_from_a_relay_decodes_and_is_forwarded_with_a_definite_length() {
    let (theirs, ours) = theirs_and_ours(&published::ready_with_exec_control(), &rows("frames"));
    let at = theirs.iter().position(|byte| *byte == 0xbf).expect("an indefinite map");
    assert_eq!(theirs.last(), Some(&0xff));

    let mut definite = theirs.clone();
    definite.pop();
    definite[at] = 0xa5;
    definite[3] -= 1;
    definite[at - 1] -= 1;
    assert_eq!(ours, definite);
}

//= carrel.protocol.46-published-types-ours
//= versioning.number-agreed-upon-once.kind-message-records-generation
//= versioning.implementation-details.core-exec-types-generation
//= client.constants-functions.flagsessionstart-0x02-opening-frame
//= client.constants-functions.flagterminal-0x01
//= client.constants-functions.flagshutdown-0x04-requests-shutdown
//= carrel.protocol.canonical-flags-per-type
//= promises.protocol.published-message-types-generations
#[test]
fn published_types_have_the_same_generation_and_flags_here() {
    let rows = rows("types");
    let theirs: HashSet<_> = rows.iter().map(|row| row["type"].as_str().expect("a name")).collect();
    let published = MessageType::ALL.into_iter().filter(|t| t.is_available_at(Generation::PUBLISHED));
    assert_eq!(theirs, published.map(MessageType::as_str).collect());
    assert_eq!((rows.len(), theirs.len()), (46, 46));
    for row in rows {
        let name = row["type"].as_str().expect("a name");
        let message_type = MessageType::from_wire(name).expect("a type of ours");
        let ours = (u64::from(message_type.min_protocol_version().get()), u64::from(message_type.flags().bits()));
        assert_eq!((row["generation"].as_u64(), row["flags"].as_u64()), (Some(ours.0), Some(ours.1)), "{name}");
    }
}

#[test]
fn the_announced_generation_is_the_published_one() {
    assert_eq!(recorded()["protocol_version"].as_u64(), Some(u64::from(Generation::PUBLISHED.get())));
}

//= carrel.protocol.frame-published-encoder-decodes
#[test]
fn the_published_bulk_record_decodes_and_encodes_to_the_same_bytes() {
    let wire = bytes(&recorded()["bulk_record"]);
    let (frame, rest) = Frame::split(&wire).expect("a sound length").expect("a whole frame");
    assert_eq!((frame.id, frame.flags, rest.len()), (5, Flags::BULK, 0));
    let header = BulkHeader { kind: BulkKind::File, flow: BulkFlow::GuestToHost, offset: 3 };
    assert_eq!(BulkRecord::parse(frame.body), Ok(BulkRecord { header, payload: b"abc" }));
    let prefix = FramePrefix::of_record(header, 5, 3).expect("it fits into a frame");
    assert_eq!([prefix.as_slice(), b"abc"].concat(), wire);
}
