//! Headers that say what no sandbox has, or contradict themselves.

use std::os::unix::fs::MetadataExt;

use carrel_layers::archive::{Form, Limits, Refusal};

use crate::support::{self, Fixture, Tar, header, record};
use crate::{fails, refused, refused_as};

//= promises.images.owners
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
    let fixture = Fixture::new();
    let tree = fixture.layer(&Tar::control().raw(owned(65_535, 65_535), b"").end()).unwrap();
    assert_eq!(std::fs::metadata(tree.at("x")).unwrap().uid(), 65_535);
}

#[test]
fn kinds_that_are_not_known_and_content_that_has_no_meaning_are_refused() {
    refused(|tar| tar.entry(b"x", b'M', b""), "x", Refusal::Kind('M'));
    refused(|tar| tar.entry(b"x", b'D', b""), "x", Refusal::Kind('D'));
    for kind in *b"1256" {
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
    fails(&Tar::control().pax(&[("path", b"x")]).end(), Form::Root, &[r#"entry "" is refused: the extended header"#]);
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
    let fixture = Fixture::new();
    assert_eq!(std::fs::metadata(fixture.layer(&sound).unwrap().at("x")).unwrap().len(), 200);
    refused(|tar| tar.pax(&[("GNU.sparse.map", b"0,1")]).file("x", b"x"), "x", Refusal::SparseFormat);
}

//= promises.images.devices
#[test]
fn devices_are_refused_but_where_a_sandbox_has_its_own() {
    for kind in *b"34" {
        let mut device = header(b"x", kind);
        device.set_device_major(1).unwrap();
        device.set_device_minor(3).unwrap();
        refused(|tar| tar.raw(device.clone(), b""), "x", Refusal::Device);
        // One that an overlay would take for something that is gone.
        refused(|tar| tar.entry(b"etc/hostname", kind, b""), "etc/hostname", Refusal::Device);
        refused(|tar| tar.entry(b"development", kind, b""), "development", Refusal::Device);
    }
    let fixture = Fixture::new();
    let tree = fixture.layer(&Tar::control().dir("dev").entry(b"dev/sda", b'4', b"").end()).unwrap();
    assert_eq!((tree.unpacked.skipped, support::names(&tree.at("dev"))), (1, vec![]));
}

#[test]
fn what_takes_away_nothing_that_can_be_is_refused() {
    let layer = |hostile: fn(Tar) -> Tar, entry: &str, why: Refusal| {
        refused_as(Form::Layer, Limits::default(), hostile, entry, &why);
    };
    layer(|tar| tar.file("etc/.wh.", b""), "etc/.wh.", Refusal::Whiteout);
    layer(|tar| tar.file("etc/.wh..", b""), "etc/.wh..", Refusal::Whiteout);
    layer(|tar| tar.file(".wh...", b""), ".wh...", Refusal::Whiteout);
    layer(|tar| tar.file(".wh.etc/hostname", b""), ".wh.etc/hostname", Refusal::Whiteout);
    layer(|tar| tar.dir("etc/.wh.x"), "etc/.wh.x", Refusal::Whiteout);
    layer(|tar| tar.symlink("etc/.wh.x", "y"), "etc/.wh.x", Refusal::Whiteout);
    layer(|tar| tar.file(".wh..wh..opq", b""), ".wh..wh..opq", Refusal::OpaqueRoot);
    layer(|tar| tar.file("etc/link/.wh.x", b""), "etc/link/.wh.x", Refusal::Through);
    layer(|tar| tar.file("etc/link/.wh..wh..opq", b""), "etc/link/.wh..wh..opq", Refusal::Through);
    // A name that is gone is no file to link to.
    let gone = Refusal::HardLink("etc/gone".into());
    layer(|tar| tar.file("etc/.wh.gone", b"").hard_link("x", "etc/gone"), "x", gone);
}
