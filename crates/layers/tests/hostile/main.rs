//! Archives that mean harm: each is refused by name and leaves nothing, and unpacks without what is wrong with it.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod bounds;
mod headers;
mod names;
#[path = "../support/mod.rs"]
mod support;
mod whole;

use carrel_layers::UnpackError;
use carrel_layers::archive::{ArchiveError, Form, Limits, Refusal};

use self::support::{Fixture, Tar, Tree};

/// The archive is refused with a reason, as a root and as a layer. Without the entry it unpacks.
#[track_caller]
fn refused(hostile: impl Fn(Tar) -> Tar, entry: &str, why: Refusal) {
    refused_below(Limits::default(), hostile, entry, why);
}

#[track_caller]
fn refused_below(limits: Limits, hostile: impl Fn(Tar) -> Tar, entry: &str, why: Refusal) {
    for form in [Form::Root, Form::Layer] {
        refused_as(form, limits, &hostile, entry, &why);
    }
}

#[track_caller]
fn refused_as(form: Form, limits: Limits, hostile: impl Fn(Tar) -> Tar, entry: &str, why: &Refusal) {
    let mut fixture = Fixture::new();
    fixture.unpacker.limits = limits;
    let sentinel = fixture.home.path().join("sentinel");
    std::fs::write(&sentinel, "untouched").unwrap();
    // In the middle, so that something is there already.
    let archive = hostile(Tar::control()).file("after", b"x").end();
    let expected = ArchiveError::Refused { entry: entry.into(), why: why.clone() }.to_string();
    match unpack(&fixture, &archive, form) {
        Err(UnpackError::Refused(text)) => assert_eq!(text, shown(&expected)),
        Err(other) => panic!("{entry}: {other:?}"),
        Ok(tree) => panic!("{entry}: {:?}", tree.unpacked),
    }
    assert_eq!(std::fs::read_to_string(&sentinel).unwrap(), "untouched");
    assert_eq!(support::names(fixture.home.path()), ["sentinel", "tree"]);
    control(&fixture, form);
}

/// Without what a terminal would not be shown.
fn shown(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { '\u{fffd}' } else { letter }).collect()
}

/// A layer is compressed, and a root is not.
fn unpack(fixture: &Fixture, archive: &[u8], form: Form) -> Result<Tree, UnpackError> {
    match form {
        Form::Root => fixture.root(archive),
        Form::Layer => fixture.layer(archive),
    }
}

/// The archive fails with one of some errors.
#[track_caller]
fn fails(archive: &[u8], form: Form, expected: &[&str]) {
    let fixture = Fixture::new();
    match unpack(&fixture, archive, form) {
        Err(UnpackError::Refused(text)) => {
            assert!(expected.iter().any(|expected| text.contains(expected)), "{text:?} is none of {expected:?}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(tree) => panic!("{:?}", tree.unpacked),
    }
    control(&fixture, form);
}

#[track_caller]
fn control(fixture: &Fixture, form: Form) {
    let tree = unpack(fixture, &Tar::control().file("after", b"x").end(), form).unwrap();
    assert_eq!(std::fs::read_to_string(tree.at("etc/hostname")).unwrap(), "carrel\n");
    assert_eq!(tree.unpacked.entries, 5);
}
