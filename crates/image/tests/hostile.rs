//! Archives that mean harm: each is refused by name and leaves nothing, and unpacks without what is wrong with it.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod support;

use carrel_image::ImageError;
use carrel_image::archive::{ArchiveError, Limits, Refusal};

use self::support::{Fixture, Tar, header, record};

/// The archive is refused with a reason, and nothing of it stays. Without the entry it unpacks.
#[track_caller]
fn refused(hostile: impl Fn(Tar) -> Tar, entry: &str, why: Refusal) {
    refused_below(Limits::default(), hostile, entry, why);
}

#[track_caller]
fn refused_below(limits: Limits, hostile: impl Fn(Tar) -> Tar, entry: &str, why: Refusal) {
    let mut fixture = Fixture::new();
    fixture.images = fixture.images.with_limits(limits);
    let sentinel = fixture.home.path().join("sentinel");
    std::fs::write(&sentinel, "untouched").unwrap();
    // In the middle, so that something is there already that has to go.
    let error = fixture.find(&hostile(Tar::control()).file("after", b"x").end()).unwrap_err();
    match &error {
        ImageError::Archive { source: ArchiveError::Refused { entry: named, why: reason }, .. } => {
            assert_eq!((named.as_str(), reason), (entry, &why));
        }
        other => panic!("{other}"),
    }
    nothing_is_left(&fixture);
    assert_eq!(std::fs::read_to_string(&sentinel).unwrap(), "untouched");
    assert_eq!(support::names(fixture.home.path()), ["image.tar", "images", "sentinel"]);
    control(&fixture);
}

#[track_caller]
fn fails(archive: &[u8], expected: impl Fn(&ArchiveError) -> bool) {
    let fixture = Fixture::new();
    match fixture.find(archive) {
        Err(ImageError::Archive { source, .. }) => assert!(expected(&source), "{source}"),
        other => panic!("{other:?}"),
    }
    nothing_is_left(&fixture);
    control(&fixture);
}

#[track_caller]
fn nothing_is_left(fixture: &Fixture) {
    for directory in ["archives", "trees", "staging"] {
        assert_eq!(fixture.names(directory), [""; 0], "{directory}");
    }
}

#[track_caller]
fn control(fixture: &Fixture) {
    let image = fixture.find(&Tar::control().file("after", b"x").end()).unwrap();
    assert_eq!(std::fs::read_to_string(image.root.layers[0].join("etc/hostname")).unwrap(), "carrel\n");
    assert_eq!(image.unwrapped_entries(), 5);
    assert_eq!(fixture.names("staging"), [""; 0]);
}

trait Entries {
    fn unwrapped_entries(&self) -> u64;
}

impl Entries for carrel_image::Image {
    fn unwrapped_entries(&self) -> u64 {
        self.unpacked.unwrap().entries
    }
}

#[test]
fn names_that_leave_are_refused() {
    for name in ["../sentinel", "..", "etc/../../sentinel", "/../sentinel", "./..//sentinel", "etc/.."] {
        refused(|tar| tar.file(name, b"harm"), name, Refusal::Leaves);
        refused(|tar| tar.dir(name), name, Refusal::Leaves);
        refused(|tar| tar.symlink(name, "x"), name, Refusal::Leaves);
    }
    let long = "../".repeat(50);
    refused(|tar| tar.entry(b"long", b'L', long.as_bytes()).file("x", b""), &long, Refusal::Leaves);
    refused(|tar| tar.pax(&[("path", b"../x")]).file("x", b""), "../x", Refusal::Leaves);
    refused(|tar| tar.entry(b"g", b'g', &record("path", b"../x")).file("x", b""), "../x", Refusal::Leaves);
}

#[test]
fn nothing_is_written_through_a_link_or_a_file() {
    let outside = tempfile::tempdir().unwrap();
    for target in [outside.path().to_str().unwrap(), "..", ".", "etc", "../../..", "etc/link"] {
        refused(|tar| tar.symlink("way", target).file("way/x", b"harm"), "way/x", Refusal::Through);
        refused(|tar| tar.symlink("way", target).dir("way/x"), "way/x", Refusal::Through);
        refused(|tar| tar.symlink("way", target).symlink("way/x", "y"), "way/x", Refusal::Through);
        refused(|tar| tar.symlink("way", target).hard_link("way/x", "etc/hostname"), "way/x", Refusal::Through);
        refused(|tar| tar.symlink("way", target).file("way/deeper/x", b""), "way/deeper/x", Refusal::Through);
        // A link that is no directory is not taken for one.
        refused(|tar| tar.symlink("way", target).dir("way"), "way", Refusal::Replaces);
    }
    refused(|tar| tar.file("way", b"").file("way/x", b""), "way/x", Refusal::Through);
    assert_eq!(support::names(outside.path()), [""; 0]);
}

#[test]
fn a_file_in_place_of_a_link_replaces_the_link_and_not_what_it_points_to() {
    let fixture = Fixture::new();
    let victim = fixture.home.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let archive = Tar::control().symlink("x", victim.to_str().unwrap()).file("x", b"new").end();
    let image = fixture.find(&archive).unwrap();
    let x = image.root.layers[0].join("x");
    assert!(std::fs::symlink_metadata(&x).unwrap().is_file());
    assert_eq!(std::fs::read_to_string(x).unwrap(), "new");
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "untouched");
}

#[test]
fn hard_links_lead_to_earlier_files_of_the_same_archive_only() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    let outside = outside.path().to_str().unwrap();
    for target in [outside, "../../../sentinel", "..", "later", "etc", "./", "", "etc/hostname/x"] {
        // What is shown is the name in the archive, if it can be one.
        let shown = target.strip_prefix('/').unwrap_or(target);
        refused(|tar| tar.hard_link("way", target).file("later", b""), "way", Refusal::HardLink(shown.into()));
    }
    // Through a link that the archive brought along.
    let (above, name) = outside.rsplit_once('/').unwrap();
    let through = format!("out/{name}");
    refused(|tar| tar.symlink("out", above).hard_link("way", &through), "way", Refusal::HardLink(through.clone()));
    let fixture = Fixture::new();
    let image = fixture.find(&Tar::control().hard_link("way", "./etc//hostname").end()).unwrap();
    assert_eq!(std::fs::read_to_string(image.root.layers[0].join("way")).unwrap(), "carrel\n");
}

#[test]
fn a_directory_and_anything_else_do_not_replace_each_other() {
    refused(|tar| tar.file("etc", b""), "etc", Refusal::Replaces);
    refused(|tar| tar.symlink("etc", "/"), "etc", Refusal::Replaces);
    refused(|tar| tar.hard_link("etc", "etc/hostname"), "etc", Refusal::Replaces);
    refused(|tar| tar.dir("etc/hostname"), "etc/hostname", Refusal::Replaces);
}

#[test]
fn names_that_cannot_be_are_refused() {
    refused(|tar| tar.file("", b""), "", Refusal::Nameless);
    refused(|tar| tar.file(".", b""), ".", Refusal::Nameless);
    refused(|tar| tar.symlink("/", "x"), "/", Refusal::Nameless);
    refused(|tar| tar.pax(&[("path", b"a\0b")]).file("x", b""), "a\0b", Refusal::ZeroByte);
    let long = "a".repeat(256);
    refused(|tar| tar.pax(&[("path", long.as_bytes())]).file("x", b""), &long, Refusal::TooLong);
    let deep = "a/".repeat(129);
    refused(|tar| tar.pax(&[("path", deep.as_bytes())]).dir("x"), &deep[..256], Refusal::TooDeep(128));
    let long = "abc/".repeat(1100);
    refused(|tar| tar.pax(&[("path", long.as_bytes())]).dir("x"), &long[..256], Refusal::TooLong);
    refused(|tar| tar.symlink("x", ""), "x", Refusal::NoTarget);
    refused(|tar| tar.pax(&[("linkpath", b"a\0b")]).symlink("x", "y"), "x", Refusal::ZeroByte);
}

#[test]
fn owners_that_no_sandbox_has_are_refused() {
    let owned = |uid: u64, gid: u64| {
        let mut header = header(b"x", b'0');
        header.set_uid(uid);
        header.set_gid(gid);
        header
    };
    refused(|tar| tar.raw(owned(65_536, 0), b""), "x", Refusal::Owner(65_536));
    refused(|tar| tar.raw(owned(0, 1 << 32), b""), "x", Refusal::Owner(1 << 32));
    refused(|tar| tar.pax(&[("uid", b"4294967295")]).file("x", b""), "x", Refusal::Owner(4_294_967_295));
    refused(|tar| tar.pax(&[("gid", b"-1")]).file("x", b""), "x", Refusal::Number("gid"));
    Fixture::new().find(&Tar::control().raw(owned(65_535, 65_535), b"").end()).unwrap();
}

#[test]
fn kinds_that_are_not_known_and_content_that_has_no_meaning_are_refused() {
    refused(|tar| tar.entry(b"x", b'M', b""), "x", Refusal::Kind('M'));
    refused(|tar| tar.entry(b"x", b'D', b""), "x", Refusal::Kind('D'));
    for kind in *b"123456" {
        let mut header = header(b"x", kind);
        header.set_link_name("etc/hostname").unwrap();
        header.set_size(3);
        refused(|tar| tar.raw(header.clone(), b"abc"), "x", Refusal::Content);
    }
    refused(|tar| tar.file("x/", b"abc"), "x/", Refusal::Content);
}

#[test]
fn attributes_that_speak_to_the_overlay_are_refused() {
    for name in ["user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect"] {
        let key = format!("SCHILY.xattr.{name}");
        refused(|tar| tar.pax(&[(&key, b"y")]).dir("x"), "x", Refusal::Attribute(name.into()));
    }
}

#[test]
fn extended_headers_are_bounded_and_whole() {
    refused(|tar| tar.entry(b"pax", b'x', b"12 nonsense").file("x", b""), "pax", Refusal::Extension);
    let large = vec![b'a'; (1 << 20) + 1];
    for kind in *b"xgLK" {
        refused(|tar| tar.entry(b"large", kind, &large).file("x", b""), "large", Refusal::Extension);
    }
    // Together they are bounded as well.
    let half = record("comment", &vec![b'a'; 600 << 10]);
    refused(|tar| tar.entry(b"1", b'x', &half).entry(b"2", b'x', &half).file("x", b""), "2", Refusal::Extension);
    let fixture = Fixture::new();
    let error = fixture.find(&Tar::control().pax(&[("path", b"x")]).end()).unwrap_err();
    assert!(matches!(error, ImageError::Archive { source: ArchiveError::Refused { .. }, .. }), "{error}");
    nothing_is_left(&fixture);
}

#[test]
fn bombs_are_refused_before_they_go_off() {
    let small = Limits { bytes: 1000, entries: 10 };
    refused_below(small, |tar| tar.file("x", &[0; 994]), "x", Refusal::TooLarge(1000));
    // So do names of links and attributes.
    let target = "t".repeat(99);
    let links = |tar: Tar| (0..6).fold(tar, |tar, number| tar.symlink(&format!("link-{number}"), &target));
    refused_below(Limits { bytes: 600, entries: 100 }, links, "link-5", Refusal::TooLarge(600));
    let value = [b'v'; 994];
    refused_below(
        Limits { bytes: 1000, entries: 100 },
        |tar| tar.pax(&[("SCHILY.xattr.user.x", &value)]).file("x", b""),
        "x",
        Refusal::TooLarge(1000),
    );
    let names = ["1", "2", "3", "4", "5", "6", "7"];
    let many = |tar: Tar| names.iter().fold(tar, |tar, name| tar.file(name, b""));
    refused_below(small, many, "7", Refusal::TooMany(10));
    refused_below(small, |tar| tar.dir("a/b/c/d/e/f/g/h/i"), "a/b/c/d/e/f/g/h/i", Refusal::TooMany(10));
    // Sizes that are only claimed.
    let mut claimed = header(b"x", b'0');
    claimed.set_size(1 << 62);
    refused(|tar| tar.raw(claimed.clone(), b""), "x", Refusal::TooLarge(64 << 30));
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
        Refusal::SparseMap,
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
        Refusal::TooLarge(64 << 30),
    );
}

#[test]
fn numbers_that_lie_are_refused() {
    let with = |change: fn(&mut tar::OldHeader)| {
        let mut header = header(b"x", b'0');
        change(header.as_old_mut());
        header
    };
    refused(|tar| tar.raw(with(|h| h.size = *b"99999999999\0"), b""), "x", Refusal::Number("size"));
    refused(|tar| tar.raw(with(|h| h.size = [0xff; 12]), b""), "x", Refusal::Number("size"));
    refused(|tar| tar.raw(with(|h| h.mode = *b"rwxrwxrw"), b""), "x", Refusal::Number("mode"));
    refused(
        |tar| tar.raw(with(|h| h.mtime = [0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), b""),
        "x",
        Refusal::Number("mtime"),
    );
    refused(|tar| tar.pax(&[("size", b"18446744073709551615")]).file("x", b""), "x", Refusal::Number("size"));
}

#[test]
fn sparse_maps_that_contradict_themselves_are_refused() {
    let sparse = |map: &str, size: &str, content: usize| {
        let mut body = map.as_bytes().to_vec();
        body.resize(512 + content, 0);
        let size = size.to_owned();
        move |tar: Tar| {
            tar.pax(&[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"x"),
                ("GNU.sparse.realsize", size.as_bytes()),
            ])
            .file("x", &body)
        }
    };
    for (map, size, content) in [
        ("1\n0\n600\n", "600", 100),
        ("1\n0\n100\n", "99", 100),
        ("2\n50\n50\n0\n50\n", "100", 100),
        ("1\n18446744073709551615\n100\n", "100", 100),
        ("99999999999\n", "100", 0),
        ("nonsense\n", "100", 0),
    ] {
        refused(sparse(map, size, content), "x", Refusal::SparseMap);
    }
    let sound = sparse("1\n50\n50\n", "200", 50)(Tar::control()).end();
    let image = Fixture::new();
    let image = (image.find(&sound).unwrap(), image);
    assert_eq!(std::fs::metadata(image.0.root.layers[0].join("x")).unwrap().len(), 200);
    refused(|tar| tar.pax(&[("GNU.sparse.map", b"0,1")]).file("x", b"x"), "x", Refusal::SparseFormat);
}

#[test]
fn an_archive_that_is_cut_short_is_refused_wherever_it_is_cut() {
    let whole = Tar::control().pax(&[("path", b"y")]).file("x", &[7; 700]).end();
    let end = whole.len() - 1024;
    for length in (1..end).step_by(100).chain([512, 1024, end - 512, end]) {
        fails(&whole[..length], |error| match error {
            ArchiveError::CutShort => true,
            ArchiveError::NotATar(None) => length < 512,
            _ => false,
        });
    }
    // One block of zeros is an end, too.
    Fixture::new().find(&whole[..end + 512]).unwrap();
    // The size says more than there is.
    let mut claimed = header(b"x", b'0');
    claimed.set_size(1 << 20);
    fails(&Tar::control().raw(claimed, b"little").end(), |error| matches!(error, ArchiveError::CutShort));
}

#[test]
fn an_archive_that_is_damaged_is_refused() {
    let mut archive = Tar::control().file("x", b"").end();
    let offset = Tar::control().0.len();
    archive[offset] ^= 1;
    fails(&archive, |error| matches!(error, ArchiveError::Damaged(at) if *at == offset as u64));
    // Zeros between two entries: some readers would stop there, and some go on.
    let mut archive = Tar::control();
    archive.0.extend_from_slice(&[0; 512]);
    let archive = archive.file("x", b"").end();
    fails(&archive, |error| matches!(error, ArchiveError::Damaged(_)));
}

#[test]
fn what_is_no_tar_is_told_apart() {
    for (content, hint) in [
        (&b""[..], None),
        (b"#!/bin/sh\n", None),
        (&[0xaa; 4096], None),
        (b"\x1f\x8b\x08\0", Some("gunzip")),
        (b"\x28\xb5\x2f\xfd\0", Some("unzstd")),
        (b"\xfd7zXZ\0", Some("unxz")),
        (b"BZh9", Some("bunzip2")),
        (&[0; 10240], Some("zeros")),
    ] {
        fails(content, |error| match error {
            ArchiveError::NotATar(given) => {
                given.is_some_and(|given| given.contains(hint.unwrap_or("\0"))) == hint.is_some()
            }
            _ => false,
        });
    }
}

#[test]
fn a_tar_in_a_tar_is_only_a_file() {
    let fixture = Fixture::new();
    let inner = Tar::control().file("../harm", b"").end();
    let image = fixture.find(&Tar::control().file("inner.tar", &inner).end()).unwrap();
    assert_eq!(std::fs::read(image.root.layers[0].join("inner.tar")).unwrap(), inner);
}

#[test]
fn an_image_in_layers_is_not_taken_for_a_root() {
    let fixture = Fixture::new();
    let archive = Tar::default().file("manifest.json", b"[]").file("oci-layout", b"{}").dir("blobs/").end();
    assert!(matches!(fixture.find(&archive), Err(ImageError::Layers(_))));
    nothing_is_left(&fixture);
    fixture.find(&Tar::default().file("manifest.json", b"[]").dir("usr/").end()).unwrap();
}
