//! Names and links that lead elsewhere.

use std::os::unix::fs::PermissionsExt;

use carrel_layers::archive::{ArchiveForm, ArchiveLimits, EntryRejection};

use crate::support::{self, TarBuilder, UnpackFixture, header, record};
use crate::{refused, refused_as};

//= promises.images.names-links-leave-lead
#[test]
fn names_that_escape_are_rejected() {
    for name in ["../sentinel", "..", "etc/../../sentinel", "/../sentinel", "./..//sentinel", "etc/.."] {
        refused(|tar| tar.file(name, b"harm"), name, EntryRejection::Leaves);
        refused(|tar| tar.dir(name), name, EntryRejection::Leaves);
        refused(|tar| tar.symlink(name, "x"), name, EntryRejection::Leaves);
    }
    let long = "../".repeat(50);
    refused(|tar| tar.entry(b"long", b'L', long.as_bytes()).file("x", b""), &long, EntryRejection::Leaves);
    refused(|tar| tar.pax(&[("path", b"../x")]).file("x", b""), "../x", EntryRejection::Leaves);
    refused(|tar| tar.entry(b"g", b'g', &record("path", b"../x")).file("x", b""), "../x", EntryRejection::Leaves);
}

//= promises.images.names-links-leave-lead
#[test]
fn nothing_is_written_through_a_symlink_or_a_file() {
    let outside = tempfile::tempdir().unwrap();
    for target in [outside.path().to_str().unwrap(), "..", ".", "etc", "../../..", "etc/link"] {
        refused(|tar| tar.symlink("way", target).file("way/x", b"harm"), "way/x", EntryRejection::Through);
        refused(|tar| tar.symlink("way", target).dir("way/x"), "way/x", EntryRejection::Through);
        refused(|tar| tar.symlink("way", target).symlink("way/x", "y"), "way/x", EntryRejection::Through);
        refused(|tar| tar.symlink("way", target).hard_link("way/x", "etc/hostname"), "way/x", EntryRejection::Through);
        refused(|tar| tar.symlink("way", target).file("way/deeper/x", b""), "way/deeper/x", EntryRejection::Through);
        // A link is not taken for a directory.
        refused(|tar| tar.symlink("way", target).dir("way"), "way", EntryRejection::Replaces);
    }
    refused(|tar| tar.file("way", b"").file("way/x", b""), "way/x", EntryRejection::Through);
    assert_eq!(support::names(outside.path()), [""; 0]);
}

#[test]
fn a_duplicate_name_is_rejected() {
    let victim = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&victim, "untouched").unwrap();
    let outside = victim.path().to_str().unwrap();
    let mut pipe = header(b"x", b'6');
    pipe.set_mode(0o600);
    let firsts: [&dyn Fn(TarBuilder) -> TarBuilder; 4] = [
        &|tar: TarBuilder| tar.file("x", b"old"),
        &|tar: TarBuilder| tar.symlink("x", outside),
        &|tar: TarBuilder| tar.hard_link("x", "etc/hostname"),
        &|tar: TarBuilder| tar.raw(pipe.clone(), b""),
    ];
    for first in firsts {
        for name in ["x", "./x", ".//x"] {
            refused(|tar| first(tar).file(name, b"new"), "x", EntryRejection::Twice);
            refused(|tar| first(tar).symlink(name, "y"), "x", EntryRejection::Twice);
            refused(|tar| first(tar).hard_link(name, "etc/hostname"), "x", EntryRejection::Twice);
            refused(|tar| first(tar).hard_link(name, "x"), "x", EntryRejection::Twice);
            refused(|tar| first(tar).raw(header(name.as_bytes(), b'6'), b""), "x", EntryRejection::Twice);
        }
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    // A name is deleted once.
    let twice = |tar: TarBuilder| tar.file("etc/.wh.x", b"").file("etc/.wh.x", b"");
    refused_as(ArchiveForm::Layer, ArchiveLimits::default(), twice, "etc/.wh.x", &EntryRejection::Twice);
}

#[test]
fn a_directory_may_repeat_and_a_deleted_name_may_be_created_again() {
    let fixture = UnpackFixture::new();
    let mut again = header(b"etc/", b'5');
    again.set_mode(0o700);
    let archive = TarBuilder::control().raw(again, b"").end();
    for tree in [fixture.root(&archive), fixture.layer(&archive)] {
        let etc = std::fs::metadata(tree.unwrap().at("etc")).unwrap();
        assert_eq!(etc.permissions().mode() & 0o7777, 0o700);
    }
    for archive in [
        TarBuilder::control().file(".wh.x", b"").file("x", b"new"),
        TarBuilder::control().file("x", b"new").file(".wh.x", b""),
    ] {
        let tree = fixture.layer(&archive.end()).unwrap();
        assert_eq!(std::fs::read_to_string(tree.at("x")).unwrap(), "new");
    }
}

//= promises.images.names-links-leave-lead
#[test]
fn hard_links_lead_only_to_earlier_files_of_the_archive() {
    let outside = tempfile::NamedTempFile::new().unwrap();
    let outside = outside.path().to_str().unwrap();
    for target in [outside, "../../../sentinel", "..", "later", "etc", "./", "", "etc/hostname/x"] {
        // The error shows the name in the archive, if it is valid.
        let shown = target.strip_prefix('/').unwrap_or(target);
        refused(|tar| tar.hard_link("way", target).file("later", b""), "way", EntryRejection::HardLink(shown.into()));
    }
    // Through a link of the archive itself.
    let (above, name) = outside.rsplit_once('/').unwrap();
    let through = format!("out/{name}");
    refused(
        |tar| tar.symlink("out", above).hard_link("way", &through),
        "way",
        EntryRejection::HardLink(through.clone()),
    );
    let fixture = UnpackFixture::new();
    let tree = fixture.layer(&TarBuilder::control().hard_link("way", "./etc//hostname").end()).unwrap();
    assert_eq!(std::fs::read_to_string(tree.at("way")).unwrap(), "carrel\n");
}

#[test]
fn a_directory_and_another_file_do_not_replace_each_other() {
    refused(|tar| tar.file("etc", b""), "etc", EntryRejection::Replaces);
    refused(|tar| tar.symlink("etc", "/"), "etc", EntryRejection::Replaces);
    refused(|tar| tar.hard_link("etc", "etc/hostname"), "etc", EntryRejection::Replaces);
    refused(|tar| tar.dir("etc/hostname"), "etc/hostname", EntryRejection::Replaces);
}

//= promises.images.size
#[test]
fn names_that_the_kernel_rejects_are_rejected() {
    refused(|tar| tar.file("", b""), "", EntryRejection::Nameless);
    refused(|tar| tar.file(".", b""), ".", EntryRejection::Nameless);
    refused(|tar| tar.symlink("/", "x"), "/", EntryRejection::Nameless);
    refused(|tar| tar.pax(&[("path", b"a\0b")]).file("x", b""), "a\0b", EntryRejection::ZeroByte);
    let long = "a".repeat(256);
    refused(|tar| tar.pax(&[("path", long.as_bytes())]).file("x", b""), &long, EntryRejection::TooLong);
    let deep = "a/".repeat(129);
    refused(|tar| tar.pax(&[("path", deep.as_bytes())]).dir("x"), &deep[..256], EntryRejection::TooDeep(128));
    let long = "abc/".repeat(1100);
    refused(|tar| tar.pax(&[("path", long.as_bytes())]).dir("x"), &long[..256], EntryRejection::TooLong);
    refused(|tar| tar.symlink("x", ""), "x", EntryRejection::NoTarget);
    refused(|tar| tar.pax(&[("linkpath", b"a\0b")]).symlink("x", "y"), "x", EntryRejection::ZeroByte);
}

//= promises.images.names-links-leave-lead
#[test]
fn absolute_names_are_allowed_in_roots_only() {
    for name in ["/etc/x", "//x", "/."] {
        let shown = name.trim_end_matches('.').replace("//", "/");
        let limits = ArchiveLimits::default();
        refused_as(ArchiveForm::Layer, limits, |tar| tar.dir(name), &shown, &EntryRejection::Absolute);
    }
    let fixture = UnpackFixture::new();
    assert!(fixture.root(&TarBuilder::control().file("/etc/x", b"").end()).unwrap().at("etc/x").is_file());
}
