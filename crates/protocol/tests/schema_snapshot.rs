//! The schema of each generation: the files `schema/gen-N.json` are compared with the code.
//!
//! Only the current generation may change: `UPDATE_PROTOCOL_SCHEMA=1 cargo test -p carrel-protocol --test
//! schema_snapshot` writes its file, and no other. When a generation is released, its hash is added to [`FROZEN`].

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/append_only.rs"]
mod append_only;
#[path = "support/surface.rs"]
mod surface;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use carrel_protocol::{Generation, MessageType};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The SHA-256 of every released snapshot. A change of both code and file would go unnoticed without it.
const FROZEN: [(u8, &str); 10] = [
    (1, "024a9a13363dfdf86da669e47423787cb433574e6169b1b4956b374e136d289a"),
    (2, "e4a5b68db0d81fe0497520203bdab125a36a21446be3f81cd3089c08071790c6"),
    (3, "a11f07f8905bae75bce1817de6beb17a16e91d3047c7b7c05c100e30f702664d"),
    (4, "1ebb8634734862d211b0cf8c6167ab0a30c45e769e6a29ebedb4d09c66b12fa0"),
    (5, "c2e3d336d30f58242f738d05b77144e4d5677a864c628516a7773ef53a55e289"),
    (6, "f92cbf5ea99817494e32ddda02b40af021b88c77ea903b4cc845e62293956b23"),
    (7, "d2b20ea8b8720d198044a32ae2d6b857a4bc636ce98883fa2707a9e42789a173"),
    (8, "df5982cfa761610ca83f48b21e290c1080956385f98ef80611478b8c65f21678"),
    (9, "12adeaa50a3fa0b55791ab067b571e585a56e857c307c0d7c78f7aa321067f0e"),
    (10, "5894f15d1a78fe99ea92d05775073de7da61822cab2d3fbc3cb4bb2112561575"),
];

/// The directory of the snapshots.
fn schema() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schema")
}

fn path(directory: &Path, generation: Generation) -> PathBuf {
    directory.join(format!("gen-{generation}.json"))
}

/// Writes the current snapshot if the variable `UPDATE_PROTOCOL_SCHEMA` has the value that asks for it.
fn update(directory: &Path, variable: Option<&OsStr>) {
    if variable.is_some_and(|value| value == "1") {
        let text = surface::text(&surface::surface(Generation::CURRENT));
        fs::write(path(directory, Generation::CURRENT), text).expect("the current snapshot can be written");
    }
}

/// Runs once, before any test reads a snapshot.
static UPDATED: LazyLock<()> =
    LazyLock::new(|| update(&schema(), std::env::var_os("UPDATE_PROTOCOL_SCHEMA").as_deref()));

fn written(generation: Generation) -> String {
    LazyLock::force(&UPDATED);
    let path = path(&schema(), generation);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parsed(generation: Generation) -> Value {
    serde_json::from_str(&written(generation)).expect("a snapshot is JSON")
}

//= versioning.rules-never-broken.checked-file-per-version
//= versioning.tests-names.snapshot-current-surface-compared
//= versioning.rules-never-broken.2-container-never-changes
//= versioning.tests-names.snapshot-deterministic
//= client.constants-functions.flagterminal-0x01
#[test]
fn every_snapshot_matches_the_schema_derived_from_code() {
    for generation in Generation::all() {
        let yielded = surface::text(&surface::surface(generation));
        let snapshot = written(generation);
        let differing = snapshot.lines().zip(yielded.lines()).position(|(old, new)| old != new);
        assert!(snapshot == yielded, "gen-{generation}.json differs from the code, first in line {differing:?} + 1");
    }
}

//= versioning.tests-names.update-protocol-schema-1
#[test]
fn an_update_writes_only_the_current_snapshot() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("updated-schema");
    let _left_over = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory of this test");
    // What the code yields would replace these, if it were written.
    for generation in Generation::all() {
        fs::write(path(&directory, generation), format!("old {generation}")).expect("a snapshot");
    }
    let contents = || {
        let entries = fs::read_dir(&directory).expect("the directory").map(|entry| entry.expect("an entry").path());
        let mut contents: Vec<_> =
            entries.map(|file| (file.clone(), fs::read_to_string(file).expect("a snapshot"))).collect();
        contents.sort();
        contents
    };
    let mut expected = contents();
    for unset in [None, Some(""), Some("0"), Some("yes")] {
        update(&directory, unset.map(OsStr::new));
        assert_eq!(contents(), expected, "{unset:?}");
    }
    update(&directory, Some(OsStr::new("1")));
    let current = path(&directory, Generation::CURRENT);
    for (file, content) in &mut expected {
        if *file == current {
            *content = surface::text(&surface::surface(Generation::CURRENT));
        }
    }
    assert!(contents() == expected, "another file was written, or not the schema derived from code");
    fs::remove_dir_all(&directory).expect("the directory of this test");
}

//= versioning.tests-names.update-protocol-schema-1
//= versioning.rules-never-broken.2-container-never-changes
//= versioning.implementation-details.new-flag-bits-append
//= promises.protocol.frozen-generation
#[test]
fn all_snapshots_but_the_current_one_are_frozen_by_hash() {
    let pinned = FROZEN.iter().map(|(number, _)| Generation::new(*number));
    assert!(pinned.eq(Generation::all().filter(|generation| *generation != Generation::CURRENT)));
    for (number, hash) in FROZEN {
        let digest = Sha256::digest(written(Generation::new(number)));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, hash, "gen-{number}.json is frozen, but was changed");
    }
}

//= versioning.tests-names.snapshot-deterministic
#[test]
fn a_snapshot_round_trips_through_json() {
    for generation in Generation::all() {
        assert_eq!(parsed(generation), surface::surface(generation));
    }
}

//= versioning.rules-never-broken.3-new-fields-always
//= versioning.tests-names.future-append-gate
//= versioning.three-kinds-change.new-fields-always-optional
//= versioning.rules-never-broken.4-types-ever-added
//= versioning.implementation-details.new-flag-bits-append
//= promises.protocol.new-generation
#[test]
fn every_generation_only_adds_to_its_predecessor() {
    for (older, newer) in Generation::all().zip(Generation::all().skip(1)) {
        assert_eq!(append_only::check(&parsed(older), &parsed(newer)), Ok(()), "from {older} to {newer}");
    }
}

//= versioning.tests-names.snapshot-current-surface-compared
#[test]
fn the_current_snapshot_names_every_type() {
    let current = parsed(Generation::CURRENT);
    let names = current["messages"].as_array().expect("a list").iter().map(|m| m["type"].as_str().expect("a name"));
    assert!(names.eq(MessageType::ALL.iter().map(|t| t.as_str())));
}

/// Checks the current snapshot after a change to it, as if it were the next generation.
fn verdict(change: impl FnOnce(&mut Value)) -> Result<(), String> {
    let older = parsed(Generation::CURRENT);
    let mut newer = older.clone();
    newer["protocol_version"] = json!(Generation::CURRENT.get() + 1);
    change(&mut newer);
    append_only::check(&older, &newer)
}

fn message<'a>(surface: &'a mut Value, name: &str) -> &'a mut Value {
    let messages = surface["messages"].as_array_mut().expect("a list");
    messages.iter_mut().find(|message| message["type"] == name).expect("a type of that name")
}

fn fields<'a>(surface: &'a mut Value, name: &str) -> &'a mut Vec<Value> {
    message(surface, name)["payload"]["fields"].as_array_mut().expect("fields")
}

fn field(presence: &str) -> Value {
    json!({"name": "later", "presence": presence, "since": 12, "shape": "u8"})
}

//= versioning.implementation-details.new-flag-bits-append
#[test]
fn types_optional_fields_and_choices_may_be_added() {
    assert_eq!(verdict(|_| {}), Ok(()));
    let added = json!({"type": "x", "introduced_in": 12, "flags": 0, "payload": {"fields": [field("required")]}});
    assert_eq!(verdict(|new| new["messages"].as_array_mut().expect("a list").insert(3, added)), Ok(()));
    for presence in ["omitted", "defaulted"] {
        assert_eq!(verdict(|new| fields(new, "core.ping").push(field(presence))), Ok(()));
        assert_eq!(verdict(|new| fields(new, "core.exec.request").insert(0, field(presence))), Ok(()));
    }
    let kinds = |new: &mut Value| {
        let choice = &mut fields(new, "core.exec.failed")[0]["shape"]["choice"];
        choice.as_array_mut().expect("choices").push(json!({"value": "later", "since": 12}));
    };
    assert_eq!(verdict(kinds), Ok(()));
    assert_eq!(verdict(|new| new["frame"]["flags"]["later"] = json!(16)), Ok(()));
}

//= versioning.rules-never-broken.4-types-ever-added
#[test]
fn removing_or_relabelling_a_type_is_rejected() {
    let removed = verdict(|new| drop(new["messages"].as_array_mut().expect("a list").remove(0)));
    assert_eq!(removed, Err("\"core.ready\" was removed".to_owned()));
    let flags = verdict(|new| message(new, "core.pong")["flags"] = json!(0));
    assert_eq!(flags, Err("flags of \"core.pong\" was 1 and is 0".to_owned()));
    assert!(verdict(|new| message(new, "core.pong")["introduced_in"] = json!(7)).is_err());
    let backdated = json!({"type": "x", "introduced_in": 3, "flags": 0, "payload": "null"});
    assert!(verdict(|new| new["messages"].as_array_mut().expect("a list").push(backdated)).is_err());
}

//= versioning.three-kinds-change.new-fields-always-optional
//= versioning.rules-never-broken.3-new-fields-always
#[test]
fn adding_a_required_field_is_rejected() {
    let at_the_end = verdict(|new| fields(new, "core.exec.request").push(field("required")));
    assert_eq!(at_the_end, Err("\"core.exec.request\".later is new and required".to_owned()));
    assert!(verdict(|new| fields(new, "core.ping").push(field("required"))).is_err());
    let nested = |new: &mut Value| {
        let entry = &mut fields(new, "core.fs.response")[2]["shape"]["nullable"]["tagged"]["Stat"]["fields"];
        entry.as_array_mut().expect("fields").push(field("required"));
    };
    assert!(verdict(nested).is_err());
}

//= versioning.rules-never-broken.4-types-ever-added
#[test]
fn removing_moving_or_redefining_a_field_is_rejected() {
    assert!(verdict(|new| drop(fields(new, "core.exec.request").remove(1))).is_err());
    assert!(verdict(|new| fields(new, "core.exec.request").swap(1, 2)).is_err());
    assert!(verdict(|new| fields(new, "core.exec.exited")[0]["shape"] = json!("i64")).is_err());
    assert!(verdict(|new| fields(new, "core.exec.exited")[0]["presence"] = json!("omitted")).is_err());
    assert!(verdict(|new| fields(new, "core.exec.exited")[1]["since"] = json!(12)).is_err());
    assert!(verdict(|new| fields(new, "core.exec.exited")[0]["shape"] = json!({"nullable": "i32"})).is_err());
}

//= versioning.rules-never-broken.2-container-never-changes
#[test]
fn removing_a_choice_adding_a_variant_and_changing_a_constant_are_rejected() {
    let choice = |new: &mut Value| {
        let choice = &mut fields(new, "core.exec.failed")[0]["shape"]["choice"];
        choice.as_array_mut().expect("choices").remove(0);
    };
    assert!(verdict(choice).is_err());
    assert!(verdict(|new| fields(new, "core.fs.request")[0]["shape"]["tagged"]["Later"] = json!("u8")).is_err());
    assert!(verdict(|new| new["frame"]["max_length"] = json!(1)).is_err());
    assert!(verdict(|new| new["bulk"] = json!(null)).is_err());
}
