//! Hostile archives: each is rejected with its reason and leaves nothing, and unpacks without the hostile entry.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

mod bounds;
mod headers;
mod names;
#[path = "../support/mod.rs"]
mod support;
mod whole;

use carrel_layers::UnpackError;
use carrel_layers::archive::{ArchiveError, ArchiveForm, ArchiveLimits, EntryRejection};

use self::support::{TarBuilder, UnpackFixture, UnpackedTree};

/// Asserts that the archive is rejected with a reason, as a root and as a layer, and unpacks without the entry.
#[track_caller]
fn refused(hostile: impl Fn(TarBuilder) -> TarBuilder, entry: &str, why: EntryRejection) {
    refused_below(ArchiveLimits::default(), hostile, entry, why);
}

#[track_caller]
fn refused_below(limits: ArchiveLimits, hostile: impl Fn(TarBuilder) -> TarBuilder, entry: &str, why: EntryRejection) {
    for form in [ArchiveForm::Root, ArchiveForm::Layer] {
        refused_as(form, limits, &hostile, entry, &why);
    }
}

#[track_caller]
fn refused_as(
    form: ArchiveForm,
    limits: ArchiveLimits,
    hostile: impl Fn(TarBuilder) -> TarBuilder,
    entry: &str,
    why: &EntryRejection,
) {
    let mut fixture = UnpackFixture::new();
    fixture.unpacker.limits = limits;
    let sentinel = fixture.home.path().join("sentinel");
    std::fs::write(&sentinel, "untouched").unwrap();
    // In the middle, so that something was unpacked before.
    let archive = hostile(TarBuilder::control()).file("after", b"x").end();
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

/// Without control characters.
fn shown(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { '\u{fffd}' } else { letter }).collect()
}

/// A layer is compressed, a root is not.
fn unpack(fixture: &UnpackFixture, archive: &[u8], form: ArchiveForm) -> Result<UnpackedTree, UnpackError> {
    match form {
        ArchiveForm::Root => fixture.root(archive),
        ArchiveForm::Layer => fixture.layer(archive),
    }
}

/// Asserts that the archive fails with one of these errors.
#[track_caller]
fn fails(archive: &[u8], form: ArchiveForm, expected: &[&str]) {
    let fixture = UnpackFixture::new();
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
fn control(fixture: &UnpackFixture, form: ArchiveForm) {
    let tree = unpack(fixture, &TarBuilder::control().file("after", b"x").end(), form).unwrap();
    assert_eq!(std::fs::read_to_string(tree.at("etc/hostname")).unwrap(), "carrel\n");
    assert_eq!(tree.unpacked.entries, 5);
}
