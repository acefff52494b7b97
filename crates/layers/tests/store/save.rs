//! Saved changes of a sandbox become an image that unpacks to the same tree.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use carrel_layers::{ImageConfig, ImageStoreError, SandboxChanges};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use crate::memory::{MemoryTarget, RecordedProgress, StoreHome, amd64, tree, two_layers};
use crate::trees::assert_same;

const NAME: &str = "example.org/saved:1";

fn changes(upper: &Path, first: u32) -> SandboxChanges {
    SandboxChanges { upper: OwnedFd::from(std::fs::File::open(upper).unwrap()), first, without: Vec::new() }
}

fn attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, CString::new(name).unwrap(), value, XattrFlags::empty()).unwrap();
}

fn device(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

/// An upper directory with every kind of entry, stored with ids from `first` on.
fn upper(home: &StoreHome, first: u32) -> PathBuf {
    let at = home.directory.path().join("upper");
    let long = "long".repeat(50);
    for directory in ["etc", "opt/app/bin", "var/cache", &format!("deep/{long}")] {
        std::fs::create_dir_all(at.join(directory)).unwrap();
    }
    device(&at.join("etc/gone"));
    attribute(&at.join("var/cache"), "user.overlay.opaque", b"y");
    std::fs::write(at.join("etc/motd"), "changed\n").unwrap();
    std::fs::write(at.join("opt/app/bin/tool"), vec![7; 100_000]).unwrap();
    std::fs::hard_link(at.join("opt/app/bin/tool"), at.join("opt/app/bin/same")).unwrap();
    std::fs::write(at.join(format!("deep/{long}/{long}")), "").unwrap();
    symlink("/opt/app/bin/tool", at.join("etc/link")).unwrap();
    symlink(format!("/deep/{long}"), at.join("etc/long")).unwrap();
    attribute(&at.join("etc/motd"), "user.note", b"a\0b\n");
    // `cap_net_raw` for every user.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::mknodat(CWD, at.join("var/pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    let mut waiting = vec![at.clone()];
    while let Some(path) = waiting.pop() {
        if std::fs::symlink_metadata(&path).unwrap().is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        std::os::unix::fs::lchown(&path, Some(first), Some(first)).unwrap();
    }
    chown(at.join("opt/app"), Some(first + 1000), Some(first + 100)).unwrap();
    chown(at.join("opt/app/bin/tool"), Some(first + 65_535), None).unwrap();
    std::fs::set_permissions(at.join("opt/app/bin/tool"), PermissionsExt::from_mode(0o4755)).unwrap();
    std::fs::set_permissions(at.join("opt/app"), PermissionsExt::from_mode(0o2770)).unwrap();
    attribute(&at.join("opt/app/bin/tool"), "security.capability", &capability);
    let file = std::fs::File::open(at.join("etc/motd")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500)).unwrap();
    at
}

//= promises.images.saved-sandbox-pushed-pulled
#[test]
fn a_saved_image_has_the_tree_that_was_there() {
    let home = StoreHome::new();
    let base = home.pull(&two_layers().source()).unwrap();
    let upper = upper(&home, 0);
    let config = ImageConfig { cmd: vec!["bash".into()], ..base.config.clone() };
    let stored = home.store.save(Some(base.digest), &changes(&upper, 0), &config, NAME, &()).unwrap();
    assert_eq!(stored.layers.len(), 3);
    assert_eq!((stored.config.cmd, &stored.root.layers[1..]), (vec!["bash".to_owned()], &base.root.layers[..]));
    assert_same(&tree(&stored.root.layers[0]), &tree(&upper));
    assert_eq!(home.store.find(NAME).unwrap().unwrap().digest, stored.digest);
    home.assert_clean();
    // The same changes are the same image.
    let again = home.store.save(Some(base.digest), &changes(&upper, 0), &config, NAME, &()).unwrap();
    assert_eq!(again.digest, stored.digest);
    // Pushed and pulled again, it is the same.
    let sent = MemoryTarget::default();
    home.store.push(stored.digest, &sent, &()).unwrap();
    let other = StoreHome::new();
    let pulled = other.store.pull(Some(NAME), &sent.source(), &amd64(), &()).unwrap();
    assert_eq!((pulled.digest, pulled.layers), (stored.digest, stored.layers));
    for (ours, theirs) in pulled.root.layers.iter().zip(&stored.root.layers) {
        assert_same(&tree(ours), &tree(theirs));
    }
    // Its base image may be removed, and the layers that it needs stay.
    home.store.remove("example.org/image:latest").unwrap();
    assert!(stored.root.layers.iter().all(|layer| layer.is_dir()));
}

#[test]
fn ids_on_disk_are_mapped_to_those_of_the_sandbox() {
    let (plain, shifted) = (StoreHome::new(), StoreHome::new());
    let expected = upper(&plain, 0);
    let upper = upper(&shifted, 1 << 20);
    // An id outside of the sandbox's range belongs to no user.
    std::fs::write(upper.join("stray"), "").unwrap();
    let stored = shifted.store.save(None, &changes(&upper, 1 << 20), &ImageConfig::default(), NAME, &()).unwrap();
    let owners = |at: &Path| -> Vec<_> {
        let lines = tree(at).into_iter();
        lines.map(|(path, line)| (path, line.split(" links").next().unwrap().to_owned())).collect()
    };
    let mut ours = owners(&stored.root.layers[0]);
    ours.retain(|(path, _)| path != Path::new("stray"));
    assert_eq!(ours, owners(&expected));
    let stray = std::fs::metadata(stored.root.layers[0].join("stray")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&stray), 65_534);
}

#[test]
fn what_a_layer_cannot_contain_is_skipped_or_reported() {
    let home = StoreHome::new();
    let upper = home.directory.path().join("upper");
    std::fs::create_dir_all(upper.join("run/inside")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(upper.join("run/socket")).unwrap();
    let progress = RecordedProgress::default();
    let without = SandboxChanges { without: vec!["run/inside".into()], ..changes(&upper, 0) };
    let stored = home.store.save(None, &without, &ImageConfig::default(), NAME, &progress).unwrap();
    assert_eq!(crate::support::names(&stored.root.layers[0].join("run")), [""; 0]);
    assert_eq!(progress.messages.into_inner().unwrap(), ["skipped 1 sockets or devices"]);

    std::fs::write(upper.join("run/.wh.name"), "").unwrap();
    let error = home.store.save(None, &changes(&upper, 0), &ImageConfig::default(), "other", &()).unwrap_err();
    assert!(matches!(&error, ImageStoreError::Save { entry, .. } if entry == "run/.wh.name"), "{error}");
    assert!(home.store.find("other").unwrap().is_none());
    std::fs::remove_file(upper.join("run/.wh.name")).unwrap();
    let deep = (0..200).fold(upper.clone(), |path, _| path.join("d"));
    std::fs::create_dir_all(deep).unwrap();
    let error = home.store.save(None, &changes(&upper, 0), &ImageConfig::default(), "other", &()).unwrap_err();
    assert!(error.to_string().contains("deeper than 128"), "{error}");
    home.assert_clean();
}

#[test]
fn regular_files_are_whiteouts_only_where_their_directory_allows_it() {
    let home = StoreHome::new();
    let upper = home.directory.path().join("upper");
    for directory in ["marked", "plain"] {
        std::fs::create_dir_all(upper.join(directory)).unwrap();
        std::fs::write(upper.join(directory).join("file"), "").unwrap();
        attribute(&upper.join(directory).join("file"), "user.overlay.whiteout", b"");
    }
    attribute(&upper.join("marked"), "user.overlay.opaque", b"x");
    let stored = home.store.save(None, &changes(&upper, 0), &ImageConfig::default(), NAME, &()).unwrap();
    let kind = |path: &str| std::fs::symlink_metadata(stored.root.layers[0].join(path)).unwrap().is_file();
    assert!(!kind("marked/file") && kind("plain/file"));
}

#[test]
fn a_missing_base_image_is_an_error() {
    let home = StoreHome::new();
    let upper = upper(&home, 0);
    let none = carrel_layers::Digest::of(b"none");
    let outcome = home.store.save(Some(none), &changes(&upper, 0), &ImageConfig::default(), NAME, &());
    assert!(matches!(outcome, Err(ImageStoreError::Unknown(_))));
    assert!(matches!(home.store.push(none, &MemoryTarget::default(), &()), Err(ImageStoreError::Unknown(_))));
    assert_eq!(home.names("layers"), [""; 0]);
}
