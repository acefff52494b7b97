//! The frames that published peers put on the wire: each is the value we say it is, and what we send for that value is
//! the same bytes.

#![allow(clippy::expect_used, reason = "what a test cannot go on without ends it")]

#[path = "support/published.rs"]
mod published;
#[path = "support/sample.rs"]
mod sample;

use std::collections::HashSet;

use carrel_protocol::bulk::{BulkHeader, BulkRecord};
use carrel_protocol::codec::Prefix;
use carrel_protocol::payload::{BulkFlow, BulkKind};
use carrel_protocol::{Flags, Frame, Generation, MessageType};
use serde_json::Value;

use crate::sample::{Sample, bytes};

/// What was recorded of the published encoder.
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

/// Decodes the recorded frame of a sample and returns it beside what we encode for the same value.
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
fn every_published_frame_has_its_value_here_and_every_value_its_frame() {
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
fn every_published_frame_decodes_and_is_what_we_send_for_its_value() {
    let rows = rows("frames");
    for sample in published::samples() {
        let (theirs, ours) = theirs_and_ours(&sample, &rows);
        assert_eq!(ours, theirs, "{} {:?}", sample.message_type, sample.note);
    }
}

//= carrel.protocol.frame-published-encoder-decodes
//= promises.protocol.frames-published-encoder-decode
/// The relay adds `exec_control` to a ready it passes on, and its encoder does not know beforehand how many keys there
/// will be: it sends a map of indefinite length (`bf … ff`). We always know, and send a definite one (`a5 …`), which is
/// one byte shorter; so the length in the frame header and the one before `p` differ too, and nothing else.
#[test]
fn a_ready_from_a_relay_decodes_and_goes_on_with_a_definite_length() {
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

//= versioning.number-agreed-upon-once.kind-message-records-generation
//= versioning.implementation-details.core-exec-types-generation
//= client.constants-functions.flagsessionstart-0x02-opening-frame
//= client.constants-functions.flagterminal-0x01
//= client.constants-functions.flagshutdown-0x04-requests-shutdown
//= carrel.protocol.canonical-flags-per-type
//= promises.protocol.published-message-types-generations
#[test]
fn the_published_types_are_ours_with_their_generation_and_flags() {
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
fn the_published_generation_is_the_one_we_announce() {
    assert_eq!(recorded()["protocol_version"].as_u64(), Some(u64::from(Generation::PUBLISHED.get())));
}

//= carrel.protocol.frame-published-encoder-decodes
#[test]
fn the_published_bulk_record_decodes_and_is_what_we_send() {
    let wire = bytes(&recorded()["bulk_record"]);
    let (frame, rest) = Frame::split(&wire).expect("a sound length").expect("a whole frame");
    assert_eq!((frame.id, frame.flags, rest.len()), (5, Flags::BULK, 0));
    let header = BulkHeader { kind: BulkKind::File, flow: BulkFlow::GuestToHost, offset: 3 };
    assert_eq!(BulkRecord::parse(frame.body), Ok(BulkRecord { header, payload: b"abc" }));
    let prefix = Prefix::of_record(header, 5, 3).expect("it fits into a frame");
    assert_eq!([prefix.as_slice(), b"abc"].concat(), wire);
}
