//! Compressed archives of images: decompressed by the confined process, within limits.

use std::path::PathBuf;

use carrel_layers::archive::ArchiveLimits;
use carrel_layers::{Digest, ImageSource, ImageStore, SourceError, Unpacker};
use serde_json::json;

use crate::memory::{StoreHome, amd64, two_layers};
use crate::support::{TarBuilder, gzip, zstd};

/// An image in a layout, as a tar.
fn layout(home: &StoreHome) -> Vec<u8> {
    let at = home.directory.path().join("layout");
    two_layers().source().layout(&at);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", at).unwrap();
    archive.into_inner().unwrap()
}

fn write(home: &StoreHome, bytes: &[u8]) -> PathBuf {
    let path = home.directory.path().join("archive");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn error(outcome: Result<impl ImageSource, SourceError>) -> String {
    outcome.err().unwrap().to_string()
}

#[test]
fn a_compressed_archive_is_the_same_image() {
    let home = StoreHome::new();
    let tar = layout(&home);
    for archive in [tar.clone(), gzip(&tar), zstd(&tar)] {
        let source = home.store.layout(&write(&home, &archive), None).unwrap();
        let stored = home.store.pull(None, &source, &amd64(), &()).unwrap();
        assert_eq!(stored.digest, two_layers().source().digest());
        home.assert_clean();
        home.store.prune(true).unwrap();
    }
    // Another program decompresses it: without that program, only uncompressed archives can be read.
    let elsewhere = tempfile::tempdir().unwrap();
    let store = ImageStore::open(elsewhere.path(), Unpacker::new("/nowhere/carrel-unpack")).unwrap();
    assert!(error(store.layout(&write(&home, &gzip(&tar)), None)).contains("/nowhere/carrel-unpack"));
    assert!(store.layout(&write(&home, &tar), None).is_ok());
}

#[test]
fn a_damaged_or_oversized_archive_is_rejected_and_leaves_nothing() {
    let home = StoreHome::new();
    let tar = layout(&home);
    let packed = gzip(&tar);
    let damaged = error(home.store.layout(&write(&home, &packed[..packed.len() / 2]), None));
    assert!(damaged.contains("damaged or truncated"), "{damaged}");
    home.assert_clean();
    let limits = ArchiveLimits { bytes: tar.len() as u64 - 1, entries: 10 };
    let unpacker = Unpacker { program: env!("CARGO_BIN_EXE_carrel-unpack").into(), limits };
    let store = ImageStore::open(home.directory.path(), unpacker).unwrap();
    let large = error(store.layout(&write(&home, &packed), None));
    assert!(large.contains("more than"), "{large}");
    home.assert_clean();
    assert!(home.store.layout(&write(&home, &packed), None).is_ok());
}

#[test]
fn an_archive_beyond_the_compression_ratio_is_rejected() {
    let home = StoreHome::new();
    // Zeros may follow the end of a tar.
    let mut bomb = layout(&home);
    bomb.resize(300 << 20, 0);
    let (path, why) = (write(&home, &zstd(&bomb)), "the compression ratio is over 1000");
    for outcome in [error(home.store.layout(&path, None)), error(home.store.docker_archive(&path, None))] {
        assert!(outcome.contains(why), "{outcome}");
    }
    home.assert_clean();
    bomb.truncate(200 << 20);
    assert!(home.store.layout(&write(&home, &zstd(&bomb)), None).is_ok());
}

/// A Docker archive that lists one compressed layer many times.
fn repeated(times: usize) -> Vec<u8> {
    let layer = TarBuilder::default().dir("./").file("file", b"").end();
    let diff_ids = vec![Digest::of(&layer); times];
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = json!({ "architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs });
    let manifest = json!([{ "Config": "config.json", "Layers": vec!["layer.tar"; times] }]);
    let bytes = |value: &serde_json::Value| serde_json::to_vec(value).unwrap();
    TarBuilder::default()
        .file("config.json", &bytes(&config))
        .file("layer.tar", &gzip(&layer))
        .file("manifest.json", &bytes(&manifest))
        .end()
}

#[test]
fn a_layer_that_is_listed_repeatedly_is_hashed_once_and_limited() {
    let home = StoreHome::new();
    let source = home.store.docker_archive(&write(&home, &repeated(512)), None).unwrap();
    let stored = home.store.pull(None, &source, &amd64(), &()).unwrap();
    assert_eq!((stored.layers.len(), home.names("layers").len()), (512, 1));
    let many = error(home.store.docker_archive(&write(&home, &repeated(20_000)), None));
    assert!(many.contains("has 20000 layers"), "{many}");
}
