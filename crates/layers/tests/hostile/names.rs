//! Names and links that lead somewhere else.

use std::os::unix::fs::PermissionsExt;

use carrel_layers::archive::{Form, Limits, Refusal};

use crate::support::{self, Fixture, Tar, header, record};
use crate::{refused, refused_as};

//= promises.images.names-links-leave-lead
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

//= promises.images.names-links-leave-lead
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
fn a_name_that_comes_twice_is_refused() {
    let victim = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&victim, "untouched").unwrap();
    let outside = victim.path().to_str().unwrap();
    let mut pipe = header(b"x", b'6');
    pipe.set_mode(0o600);
    let firsts: [&dyn Fn(Tar) -> Tar; 4] = [
        &|tar: Tar| tar.file("x", b"old"),
        &|tar: Tar| tar.symlink("x", outside),
        &|tar: Tar| tar.hard_link("x", "etc/hostname"),
        &|tar: Tar| tar.raw(pipe.clone(), b""),
    ];
    for first in firsts {
        for name in ["x", "./x", ".//x"] {
            refused(|tar| first(tar).file(name, b"new"), "x", Refusal::Twice);
            refused(|tar| first(tar).symlink(name, "y"), "x", Refusal::Twice);
            refused(|tar| first(tar).hard_link(name, "etc/hostname"), "x", Refusal::Twice);
            refused(|tar| first(tar).hard_link(name, "x"), "x", Refusal::Twice);
            refused(|tar| first(tar).raw(header(name.as_bytes(), b'6'), b""), "x", Refusal::Twice);
        }
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    // Something is taken away once.
    let twice = |tar: Tar| tar.file("etc/.wh.x", b"").file("etc/.wh.x", b"");
    refused_as(Form::Layer, Limits::default(), twice, "etc/.wh.x", &Refusal::Twice);
}

#[test]
fn a_directory_may_come_again_and_what_is_taken_away_may_be_there_anew() {
    let fixture = Fixture::new();
    let mut again = header(b"etc/", b'5');
    again.set_mode(0o700);
    let archive = Tar::control().raw(again, b"").end();
    for tree in [fixture.root(&archive), fixture.layer(&archive)] {
        let etc = std::fs::metadata(tree.unwrap().at("etc")).unwrap();
        assert_eq!(etc.permissions().mode() & 0o7777, 0o700);
    }
    for archive in
        [Tar::control().file(".wh.x", b"").file("x", b"new"), Tar::control().file("x", b"new").file(".wh.x", b"")]
    {
        let tree = fixture.layer(&archive.end()).unwrap();
        assert_eq!(std::fs::read_to_string(tree.at("x")).unwrap(), "new");
    }
}

//= promises.images.names-links-leave-lead
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
    let tree = fixture.layer(&Tar::control().hard_link("way", "./etc//hostname").end()).unwrap();
    assert_eq!(std::fs::read_to_string(tree.at("way")).unwrap(), "carrel\n");
}

#[test]
fn a_directory_and_anything_else_do_not_replace_each_other() {
    refused(|tar| tar.file("etc", b""), "etc", Refusal::Replaces);
    refused(|tar| tar.symlink("etc", "/"), "etc", Refusal::Replaces);
    refused(|tar| tar.hard_link("etc", "etc/hostname"), "etc", Refusal::Replaces);
    refused(|tar| tar.dir("etc/hostname"), "etc/hostname", Refusal::Replaces);
}

//= promises.images.size
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

//= promises.images.names-links-leave-lead
#[test]
fn absolute_names_are_for_roots_alone() {
    for name in ["/etc/x", "//x", "/."] {
        let shown = name.trim_end_matches('.').replace("//", "/");
        let limits = Limits::default();
        refused_as(Form::Layer, limits, |tar| tar.dir(name), &shown, &Refusal::Absolute);
    }
    let fixture = Fixture::new();
    assert!(fixture.root(&Tar::control().file("/etc/x", b"").end()).unwrap().at("etc/x").is_file());
}
