//! Headers with values that no sandbox supports, or that contradict each other.

use std::os::unix::fs::MetadataExt;

use carrel_layers::archive::{ArchiveForm, ArchiveLimits, EntryRejection};

use crate::support::{self, TarBuilder, UnpackFixture, header, record};
use crate::{fails, refused, refused_as};

//= promises.images.owners
#[test]
fn owners_out_of_range_are_rejected() {
    let owned = |uid: u64, gid: u64| {
        let mut header = header(b"x", b'0');
        header.set_uid(uid);
        header.set_gid(gid);
        header
    };
    refused(|tar| tar.raw(owned(65_536, 0), b""), "x", EntryRejection::Owner(65_536));
    refused(|tar| tar.raw(owned(0, 1 << 32), b""), "x", EntryRejection::Owner(1 << 32));
    refused(|tar| tar.pax(&[("uid", b"4294967295")]).file("x", b""), "x", EntryRejection::Owner(4_294_967_295));
    refused(|tar| tar.pax(&[("gid", b"-1")]).file("x", b""), "x", EntryRejection::Number("gid"));
    let fixture = UnpackFixture::new();
    let tree = fixture.layer(&TarBuilder::control().raw(owned(65_535, 65_535), b"").end()).unwrap();
    assert_eq!(std::fs::metadata(tree.at("x")).unwrap().uid(), 65_535);
}

#[test]
fn unknown_types_and_content_without_meaning_are_rejected() {
    refused(|tar| tar.entry(b"x", b'M', b""), "x", EntryRejection::Kind('M'));
    refused(|tar| tar.entry(b"x", b'D', b""), "x", EntryRejection::Kind('D'));
    for kind in *b"1256" {
        let mut header = header(b"x", kind);
        header.set_link_name("etc/hostname").unwrap();
        header.set_size(3);
        refused(|tar| tar.raw(header.clone(), b"abc"), "x", EntryRejection::Content);
    }
    refused(|tar| tar.file("x/", b"abc"), "x/", EntryRejection::Content);
}

#[test]
fn attributes_of_overlayfs_are_rejected() {
    for name in ["user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect"] {
        let key = format!("SCHILY.xattr.{name}");
        refused(|tar| tar.pax(&[(&key, b"y")]).dir("x"), "x", EntryRejection::Attribute(name.into()));
    }
}

#[test]
fn extended_headers_are_limited_and_complete() {
    refused(|tar| tar.entry(b"pax", b'x', b"12 nonsense").file("x", b""), "pax", EntryRejection::Extension);
    let large = vec![b'a'; (1 << 20) + 1];
    for kind in *b"xgLK" {
        refused(|tar| tar.entry(b"large", kind, &large).file("x", b""), "large", EntryRejection::Extension);
    }
    // Their sum is bounded as well.
    let half = record("comment", &vec![b'a'; 600 << 10]);
    refused(|tar| tar.entry(b"1", b'x', &half).entry(b"2", b'x', &half).file("x", b""), "2", EntryRejection::Extension);
    fails(
        &TarBuilder::control().pax(&[("path", b"x")]).end(),
        ArchiveForm::Root,
        &[r#"entry "" is rejected: the extended header"#],
    );
}

#[test]
fn invalid_numbers_are_rejected() {
    let with = |change: fn(&mut tar::OldHeader)| {
        let mut header = header(b"x", b'0');
        change(header.as_old_mut());
        header
    };
    refused(|tar| tar.raw(with(|h| h.size = *b"99999999999\0"), b""), "x", EntryRejection::Number("size"));
    refused(|tar| tar.raw(with(|h| h.size = [0xff; 12]), b""), "x", EntryRejection::Number("size"));
    refused(|tar| tar.raw(with(|h| h.mode = *b"rwxrwxrw"), b""), "x", EntryRejection::Number("mode"));
    refused(
        |tar| tar.raw(with(|h| h.mtime = [0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), b""),
        "x",
        EntryRejection::Number("mtime"),
    );
    refused(|tar| tar.pax(&[("size", b"18446744073709551615")]).file("x", b""), "x", EntryRejection::Number("size"));
}

#[test]
fn inconsistent_sparse_maps_are_rejected() {
    let sparse = |map: &str, size: &str, content: usize| {
        let mut body = map.as_bytes().to_vec();
        body.resize(512 + content, 0);
        let size = size.to_owned();
        move |tar: TarBuilder| {
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
        refused(sparse(map, size, content), "x", EntryRejection::SparseMap);
    }
    let sound = sparse("1\n50\n50\n", "200", 50)(TarBuilder::control()).end();
    let fixture = UnpackFixture::new();
    assert_eq!(std::fs::metadata(fixture.layer(&sound).unwrap().at("x")).unwrap().len(), 200);
    refused(|tar| tar.pax(&[("GNU.sparse.map", b"0,1")]).file("x", b"x"), "x", EntryRejection::SparseFormat);
}

//= promises.images.devices
#[test]
fn devices_are_rejected_except_below_dev() {
    for kind in *b"34" {
        let mut device = header(b"x", kind);
        device.set_device_major(1).unwrap();
        device.set_device_minor(3).unwrap();
        refused(|tar| tar.raw(device.clone(), b""), "x", EntryRejection::Device);
        // An overlay would take this entry for a whiteout.
        refused(|tar| tar.entry(b"etc/hostname", kind, b""), "etc/hostname", EntryRejection::Device);
        refused(|tar| tar.entry(b"development", kind, b""), "development", EntryRejection::Device);
    }
    let fixture = UnpackFixture::new();
    let tree = fixture.layer(&TarBuilder::control().dir("dev").entry(b"dev/sda", b'4', b"").end()).unwrap();
    assert_eq!((tree.unpacked.skipped, support::names(&tree.at("dev"))), (1, vec![]));
}

#[test]
fn invalid_whiteouts_are_rejected() {
    let layer = |hostile: fn(TarBuilder) -> TarBuilder, entry: &str, why: EntryRejection| {
        refused_as(ArchiveForm::Layer, ArchiveLimits::default(), hostile, entry, &why);
    };
    layer(|tar| tar.file("etc/.wh.", b""), "etc/.wh.", EntryRejection::Whiteout);
    layer(|tar| tar.file("etc/.wh..", b""), "etc/.wh..", EntryRejection::Whiteout);
    layer(|tar| tar.file(".wh...", b""), ".wh...", EntryRejection::Whiteout);
    layer(|tar| tar.file(".wh.etc/hostname", b""), ".wh.etc/hostname", EntryRejection::Whiteout);
    layer(|tar| tar.dir("etc/.wh.x"), "etc/.wh.x", EntryRejection::Whiteout);
    layer(|tar| tar.symlink("etc/.wh.x", "y"), "etc/.wh.x", EntryRejection::Whiteout);
    layer(|tar| tar.file(".wh..wh..opq", b""), ".wh..wh..opq", EntryRejection::OpaqueRoot);
    layer(|tar| tar.file("etc/link/.wh.x", b""), "etc/link/.wh.x", EntryRejection::Through);
    layer(|tar| tar.file("etc/link/.wh..wh..opq", b""), "etc/link/.wh..wh..opq", EntryRejection::Through);
    // A deleted name cannot be the target of a hard link.
    let gone = EntryRejection::HardLink("etc/gone".into());
    layer(|tar| tar.file("etc/.wh.gone", b"").hard_link("x", "etc/gone"), "x", gone);
}
