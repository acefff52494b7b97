//! Fuzzes the unpacker with random bytes and damaged archives: it never panics and never escapes.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

use carrel_layers::archive::{ArchiveError, ArchiveForm, ArchiveLimits, ArchiveTotals, unpack};

use self::support::{TarBuilder, header};

/// Names and link targets that an attacker would use.
const NAMES: [&[u8]; 17] = [
    b"../sentinel",
    b"..",
    b"/",
    b".",
    b"",
    b"way",
    b"way/sentinel",
    b"way/../sentinel",
    b"dir/sub",
    b"file",
    b"up/sentinel",
    b"/proc/self/cwd/x",
    b".wh.dir",
    b"dir/.wh..wh..opq",
    b".wh.way/x",
    b".wh...",
    b".wh..wh.plnk/x",
];
const FORMS: [ArchiveForm; 2] = [ArchiveForm::Root, ArchiveForm::Layer];
const KINDS: &[u8] = b"01234567xgLKSVM\0";

/// An archive with every kind of entry.
static SEED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut old_sparse = header(b"old-sparse", b'S');
    old_sparse.set_size(8);
    let gnu = old_sparse.as_gnu_mut().unwrap();
    gnu.set_real_size(4096);
    gnu.sparse[0].set_offset(100);
    gnu.sparse[0].set_length(8);
    let mut map = b"1\n1000\n8\n".to_vec();
    map.resize(512, 0);
    map.extend_from_slice(b"12345678");
    TarBuilder::default()
        .dir("./")
        .dir("dir/")
        .file("dir/file", b"content")
        .symlink("way", "..")
        .symlink("up", "../")
        .file("file", &[1; 700])
        .hard_link("hard", "file")
        .hard_link("hard-up", "up")
        .pax(&[("path", b"dir/sub/long"), ("mtime", b"1.5"), ("SCHILY.xattr.user.x", b"y\n")])
        .file("x", b"renamed")
        .entry(b"long", b'L', b"way2\0")
        .entry(b"long", b'K', b"../sentinel\0")
        .symlink("x", "y")
        .entry(b"global", b'g', b"13 comment=x\n")
        .raw(old_sparse, b"12345678")
        .pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"5000")])
        .file("new-sparse", &map)
        .entry(b"dev/null", b'3', b"")
        .entry(b"pipe", b'6', b"")
        .file("dir/last", b"")
        .end()
});

/// Unpacks beside a sentinel file, which must not change.
fn unpacked(archive: &[u8], form: ArchiveForm) -> Result<ArchiveTotals, ArchiveError> {
    let base = tempfile::tempdir().unwrap();
    let (sentinel, into) = (base.path().join("sentinel"), base.path().join("into"));
    std::fs::write(&sentinel, "untouched").unwrap();
    std::fs::create_dir(&into).unwrap();
    let outcome =
        unpack(archive, std::fs::File::open(&into).unwrap(), form, ArchiveLimits { bytes: 1 << 20, entries: 200 });
    assert_eq!(support::names(base.path()), ["into", "sentinel"]);
    assert_eq!(std::fs::read_to_string(&sentinel).unwrap(), "untouched");
    let status = std::fs::metadata(&sentinel).unwrap();
    assert_eq!((status.nlink(), status.uid(), status.mode() & 0o7777), (1, 0, 0o644));
    outcome
}

/// Applies the edits to an archive, and corrects its checksums.
fn damaged(edits: &[u8]) -> Vec<u8> {
    let mut archive = SEED.clone();
    let blocks = archive.len() / 512;
    for edit in edits.chunks_exact(4) {
        let [block, field, low, value] = *edit else { continue };
        let block = &mut archive[usize::from(block) % blocks * 512..][..512];
        match field {
            0..60 => write(&mut block[..100], NAMES[usize::from(value) % NAMES.len()]),
            60..120 => write(&mut block[157..257], NAMES[usize::from(value) % NAMES.len()]),
            120..160 => block[156] = KINDS[usize::from(value) % KINDS.len()],
            160..200 => block[124 + usize::from(low) % 12] = value,
            _ => block[usize::from(field & 1) * 256 + usize::from(low)] = value,
        }
    }
    for block in archive.chunks_exact_mut(512) {
        let mut header = tar::Header::from_byte_slice(block).clone();
        if header.as_ustar().is_some() || header.as_gnu().is_some() {
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
    }
    archive
}

fn write(field: &mut [u8], text: &[u8]) {
    field.fill(0);
    field[..text.len()].copy_from_slice(text);
}

#[test]
fn the_seed_archive_unpacks_while_it_is_intact() {
    for form in FORMS {
        let all = unpacked(&SEED, form).unwrap();
        assert_eq!((all.entries, all.skipped), (14, 1));
        assert!(matches!(unpacked(&damaged(&[0, 0, 0, 0]), form), Err(ArchiveError::Refused { .. })));
    }
    assert_eq!(damaged(&[]), *SEED);
}

//= carrel.protocol.property-fuzz-target-decoder
//= promises.images.archive-cut-short-damaged
#[test]
fn fuzz_damaged_archives_never_panic_and_never_escape() {
    bolero::check!().for_each(|edits: &[u8]| {
        for form in FORMS {
            drop(unpacked(&damaged(edits), form));
        }
    });
}

//= carrel.protocol.property-fuzz-target-decoder
//= promises.images.archive-cut-short-damaged
#[test]
fn fuzz_random_bytes_never_panic_and_never_escape() {
    bolero::check!().for_each(|noise: &[u8]| {
        for form in FORMS {
            drop(unpacked(noise, form));
            // After a valid beginning, so that more than the first header is parsed.
            drop(unpacked(&[&SEED[..3072], noise].concat(), form));
        }
    });
}
