//! Archives that unpack to more than the limits.

use carrel_layers::archive::{ArchiveForm, ArchiveLimits, EntryRejection};
use carrel_layers::{Compression, UnpackError};

use crate::support::{TarBuilder, UnpackFixture, header, zstd};
use crate::{refused, refused_below};

/// The fixed cost of an entry.
const ENTRY: u64 = 4096;

//= promises.images.size
#[test]
fn archives_beyond_the_limits_are_rejected_before_they_are_written() {
    // Every entry counts, whatever its type. Without the hostile part there are five, of a few bytes.
    let room = 5 * ENTRY + 1000;
    let small = ArchiveLimits { bytes: room, entries: 100 };
    refused_below(small, |tar| tar.file("x", &[0; 994]), "x", EntryRejection::TooLarge(room));
    // Names of links and attributes count as well.
    let target = "t".repeat(99);
    let links = |tar: TarBuilder| (0..6).fold(tar, |tar, number| tar.symlink(&format!("link-{number}"), &target));
    let room = 10 * ENTRY + 600;
    refused_below(ArchiveLimits { bytes: room, entries: 100 }, links, "link-5", EntryRejection::TooLarge(room));
    let value = [b'v'; 994];
    refused_below(
        small,
        |tar| tar.pax(&[("SCHILY.xattr.user.x", &value)]).file("x", b""),
        "x",
        EntryRejection::TooLarge(small.bytes),
    );
    let names = ["1", "2", "3", "4", "5", "6", "7"];
    let many = |tar: TarBuilder| names.iter().fold(tar, |tar, name| tar.file(name, b""));
    refused_below(ArchiveLimits { entries: 10, ..ArchiveLimits::default() }, many, "7", EntryRejection::TooMany(10));
    let deep = |tar: TarBuilder| tar.dir("a/b/c/d/e/f/g/h/i");
    refused_below(
        ArchiveLimits { entries: 10, ..ArchiveLimits::default() },
        deep,
        "a/b/c/d/e/f/g/h/i",
        EntryRejection::TooMany(10),
    );
    // This many empty entries are too much as well.
    refused_below(small, many, "2", EntryRejection::TooLarge(small.bytes));
    refused_below(small, deep, "a/b/c/d/e/f/g/h/i", EntryRejection::TooLarge(small.bytes));
    // Sizes that are only declared.
    let mut claimed = header(b"x", b'0');
    claimed.set_size(1 << 62);
    refused(|tar| tar.raw(claimed.clone(), b""), "x", EntryRejection::TooLarge(64 << 30));
    refused(
        |tar| {
            tar.pax(&[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.realsize", b"99999999999999"),
            ])
            .file("x", b"0\n")
        },
        "x",
        EntryRejection::SparseMap,
    );
    let mut block = [0; 512];
    block[..2].copy_from_slice(b"0\n");
    refused(
        |tar| {
            tar.pax(&[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.realsize", b"99999999999999"),
            ])
            .file("x", &block)
        },
        "x",
        EntryRejection::TooLarge(64 << 30),
    );
}

//= promises.images.size
#[test]
fn archives_beyond_the_compression_ratio_are_rejected() {
    let mut zeros = header(b"zeros", b'0');
    zeros.set_size(300 << 20);
    let archive = TarBuilder::control().raw(zeros, &vec![0; 300 << 20]).end();
    let fixture = UnpackFixture::new();
    match fixture.stream(&zstd(&archive), Compression::Zstd, ArchiveForm::Layer) {
        Err(UnpackError::Refused(text)) => {
            assert_eq!(text, r#"reading entry "zeros": rejected: the compression ratio is over 1000"#);
        }
        other => panic!("{:?}", other.map(|tree| tree.unpacked)),
    }
    // The ratio is the reason: uncompressed, it unpacks.
    let tree = fixture.stream(&archive, Compression::None, ArchiveForm::Layer).unwrap();
    assert_eq!(tree.unpacked.bytes, (300 << 20) + 7);
    // Data after the end of an archive is bounded as well.
    let mut fixture = UnpackFixture::new();
    fixture.unpacker.limits = ArchiveLimits { bytes: 1000, entries: 10 };
    let mut archive = TarBuilder::control().end();
    archive.resize(archive.len() + 100_000, 0);
    match fixture.layer(&archive) {
        Err(UnpackError::Refused(text)) => assert!(text.contains("more than 41960 bytes in total"), "{text}"),
        other => panic!("{:?}", other.map(|tree| tree.unpacked)),
    }
}

#[test]
fn names_of_directories_without_entries_are_limited() {
    let part = format!("{}/", "d".repeat(250));
    let deep = |number: usize| format!("{number}/{}x", part.repeat(15));
    let many = |tar: TarBuilder| {
        (0..600).fold(tar, |tar, number| tar.pax(&[("path", deep(number).as_bytes())]).file("x", b""))
    };
    let fixture = UnpackFixture::new();
    match fixture.layer(&many(TarBuilder::control()).end()) {
        Err(UnpackError::Refused(text)) => assert!(text.contains("have no entry"), "{text}"),
        other => panic!("{:?}", other.map(|tree| tree.unpacked)),
    }
}
