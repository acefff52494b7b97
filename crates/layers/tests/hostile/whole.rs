//! Streams that are truncated, damaged, or not a tar.

use carrel_layers::archive::ArchiveForm;
use carrel_layers::{Compression, Digest, UnpackError};

use crate::fails;
use crate::support::{TarBuilder, UnpackFixture, gzip, header, zstd};

//= promises.images.archive-cut-short-damaged
#[test]
fn a_truncated_archive_is_rejected_wherever_it_ends() {
    let whole = TarBuilder::control().pax(&[("path", b"y")]).file("x", &[7; 700]).end();
    let end = whole.len() - 1024;
    for length in (1..end).step_by(100).chain([512, 1024, end - 512, end]) {
        let expected: &[&str] = if length < 512 { &["not a tar"] } else { &["the archive is truncated: it ends"] };
        fails(&whole[..length], ArchiveForm::Root, expected);
    }
    fails(&whole[..end - 1], ArchiveForm::Layer, &[r#"it ends within entry "y""#]);
    // A single block of zeros ends an archive, too.
    UnpackFixture::new().root(&whole[..end + 512]).unwrap();
    // The declared size is larger or smaller than the data.
    let claimed = |size| {
        let mut claimed = header(b"x", b'0');
        claimed.set_size(size);
        claimed
    };
    for form in [ArchiveForm::Root, ArchiveForm::Layer] {
        fails(&TarBuilder::control().raw(claimed(1 << 20), b"little").end(), form, &[r#"it ends within entry "x""#]);
        fails(&TarBuilder::control().raw(claimed(512), &[7; 2048]).end(), form, &[r#"after entry "x""#]);
    }
}

#[test]
fn a_layer_needs_neither_an_end_marker_nor_an_entry() {
    let fixture = UnpackFixture::new();
    let whole = TarBuilder::control().file("after", b"x").end();
    let tree = fixture.layer(&whole[..whole.len() - 1024]).unwrap();
    assert_eq!(tree.unpacked.entries, 5);
    for empty in [&[][..], &[0; 512], &[0; 1024], &[0; 10_240]] {
        let tree = fixture.layer(empty).unwrap();
        assert_eq!((tree.unpacked.entries, tree.unpacked.made), (0, vec![std::path::PathBuf::new()]));
        assert_eq!(tree.unpacked.diff_id, Digest::of(empty));
        fails(empty, ArchiveForm::Root, &["not a tar"]);
    }
}

//= promises.images.archive-cut-short-damaged
#[test]
fn a_damaged_archive_is_rejected() {
    let mut archive = TarBuilder::control().file("x", b"").end();
    let offset = TarBuilder::control().0.len();
    archive[offset] ^= 1;
    let expected = format!(r#"there is no header at byte {offset}, after entry "etc/link""#);
    fails(&archive, ArchiveForm::Layer, &[&expected]);
    // Zeros between two entries: some readers stop there, and some continue.
    let mut archive = TarBuilder::control();
    archive.0.extend_from_slice(&[0; 512]);
    fails(&archive.file("x", b"").end(), ArchiveForm::Layer, &[&expected]);
}

#[test]
fn other_formats_are_recognized() {
    for (content, hint) in [
        (&b""[..], "not a tar archive"),
        (b"#!/bin/sh\n", "not a tar archive"),
        (&[0xaa; 4096], "not a tar archive"),
        (b"\x1f\x8b\x08\0", "gunzip"),
        (b"\x28\xb5\x2f\xfd\0", "unzstd"),
        (b"\xfd7zXZ\0", "unxz"),
        (b"BZh9", "bunzip2"),
        (&[0; 10240], "zeros"),
    ] {
        fails(content, ArchiveForm::Root, &[hint]);
    }
}

#[test]
fn a_tar_in_a_tar_is_an_ordinary_file() {
    let fixture = UnpackFixture::new();
    let inner = TarBuilder::control().file("../harm", b"").end();
    let tree = fixture.layer(&TarBuilder::control().file("inner.tar", &inner).end()).unwrap();
    assert_eq!(std::fs::read(tree.at("inner.tar")).unwrap(), inner);
}

#[test]
fn a_compressed_stream_must_be_complete_and_alone() {
    let fixture = UnpackFixture::new();
    let archive = TarBuilder::control().file("after", &[7; 100_000]).end();
    for (compression, packed) in [(Compression::Gzip, gzip(&archive)), (Compression::Zstd, zstd(&archive))] {
        let outcome = |stream: &[u8]| fixture.stream(stream, compression, ArchiveForm::Layer).map(|tree| tree.unpacked);
        let unpacked = outcome(&packed).unwrap();
        assert_eq!(unpacked.diff_id, Digest::of(&archive));
        for bad in [&packed[..packed.len() / 2], &packed[..packed.len() - 1], &[&packed[..], b"trailing"].concat()] {
            match outcome(bad) {
                Err(UnpackError::Refused(text)) => assert!(text.contains("damaged or truncated"), "{text}"),
                other => panic!("{compression:?} {other:?}"),
            }
        }
        // Data in another format than the declared one.
        assert!(matches!(outcome(&archive), Err(UnpackError::Refused(_))));
        // Several streams in a row are one.
        let halves = archive.split_at(archive.len() / 2);
        let pack = |bytes: &[u8]| if compression == Compression::Gzip { gzip(bytes) } else { zstd(bytes) };
        assert_eq!(outcome(&[pack(halves.0), pack(halves.1)].concat()).unwrap(), unpacked);
    }
}
