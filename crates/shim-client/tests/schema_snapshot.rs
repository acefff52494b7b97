//! The schema of each version of `shim.*`: the files `schema/version-N.json` are compared with the code.
//!
//! Only the current version may change: `UPDATE_SHIM_SCHEMA=1 cargo test -p carrel-shim-client --test schema_snapshot`
//! writes its file, and no other. When a version is released, its hash is added to [`FROZEN`].

#![allow(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "../../protocol/tests/support/append_only.rs"]
mod append_only;
#[path = "../../protocol/tests/support/surface.rs"]
#[allow(dead_code, reason = "only the formatting of a snapshot is shared")]
mod runtime;
#[path = "support/surface.rs"]
mod surface;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use carrel_shim_client::{VERSION, messages};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::surface::surface;

/// The SHA-256 of every released snapshot.
const FROZEN: [(u8, &str); 0] = [];

fn path(version: u8) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("schema/version-{version}.json"))
}

/// Runs once, before any test reads a snapshot.
static UPDATED: LazyLock<()> = LazyLock::new(|| {
    if std::env::var_os("UPDATE_SHIM_SCHEMA").is_some_and(|value| value == "1") {
        fs::write(path(VERSION), runtime::text(&surface(VERSION))).expect("the current snapshot can be written");
    }
});

fn written(version: u8) -> String {
    LazyLock::force(&UPDATED);
    let path = path(version);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parsed(version: u8) -> Value {
    serde_json::from_str(&written(version)).expect("a snapshot is JSON")
}

#[test]
fn every_snapshot_matches_the_schema_derived_from_code() {
    for version in 1..=VERSION {
        let (snapshot, yielded) = (written(version), runtime::text(&surface(version)));
        let differing = snapshot.lines().zip(yielded.lines()).position(|(old, new)| old != new);
        assert!(snapshot == yielded, "version-{version}.json differs from the code, first in line {differing:?} + 1");
        assert_eq!(parsed(version), surface(version));
    }
}

#[test]
fn all_snapshots_but_the_current_one_are_frozen_by_hash() {
    assert!(FROZEN.iter().map(|(version, _)| *version).eq(1..VERSION));
    for (version, hash) in FROZEN {
        let digest = Sha256::digest(written(version));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, hash, "version-{version}.json is frozen, but was changed");
    }
}

#[test]
fn every_version_only_adds_to_its_predecessor() {
    for (older, newer) in (1..VERSION).zip(2..) {
        assert_eq!(append_only::check(&parsed(older), &parsed(newer)), Ok(()), "from {older} to {newer}");
    }
}

#[test]
fn the_current_snapshot_names_every_message_once() {
    let current = parsed(VERSION);
    let names = current["messages"].as_array().expect("a list").iter().map(|m| m["type"].as_str().expect("a name"));
    assert!(names.eq(messages::all().iter().map(|(name, ..)| *name)));
    let mut names: Vec<_> = messages::all().iter().map(|(name, ..)| *name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]) && names.iter().all(|name| name.starts_with("shim.")));
}

#[test]
fn no_message_is_newer_than_the_version() {
    for (name, since, ..) in messages::all() {
        assert!((1..=VERSION).contains(&since), "{name} is of version {since}");
    }
}

/// Checks the current snapshot after a change to it, as if it were the next version.
fn verdict(change: impl FnOnce(&mut Vec<Value>)) -> Result<(), String> {
    let older = parsed(VERSION);
    let mut newer = older.clone();
    newer["protocol_version"] = json!(VERSION + 1);
    change(newer["messages"].as_array_mut().expect("a list"));
    append_only::check(&older, &newer)
}

/// The fields of a message.
fn fields<'a>(messages: &'a mut [Value], name: &str) -> &'a mut Vec<Value> {
    let message = messages.iter_mut().find(|message| message["type"] == name).expect("a message of that name");
    message["payload"]["fields"].as_array_mut().expect("fields")
}

//= promises.journal.messages-version-1-journal
#[test]
fn only_messages_and_optional_fields_may_be_added() {
    let field = |presence: &str| json!({"name": "later", "presence": presence, "since": VERSION + 1, "shape": "u8"});
    let added =
        |since: u8| json!({"type": "shim.later", "introduced_in": since, "flags": 0, "payload": {"fields": []}});
    assert_eq!(verdict(|_| {}), Ok(()));
    assert_eq!(verdict(|messages| messages.push(added(VERSION + 1))), Ok(()));
    assert_eq!(verdict(|messages| fields(messages, "shim.hello").push(field("omitted"))), Ok(()));

    assert!(verdict(|messages| messages.push(added(VERSION))).is_err());
    assert!(verdict(|messages| fields(messages, "shim.hello").push(field("required"))).is_err());
    assert!(verdict(|messages| drop(fields(messages, "shim.hello").remove(0))).is_err());
    assert!(verdict(|messages| drop(messages.remove(0))).is_err());
    assert!(verdict(|messages| messages[0]["flags"] = json!(1)).is_err());
}
