//! Archives that hold images in layers, compressed: decompressed by the process that unpacks, and bounded.

use std::path::PathBuf;

use carrel_layers::archive::Limits;
use carrel_layers::{Digest, Source, SourceError, Store, Unpacker};
use serde_json::json;

use crate::memory::{Home, amd64, two_layers};
use crate::support::{Tar, gzip, zstd};

/// An image in a layout, as a tar.
fn layout(home: &Home) -> Vec<u8> {
    let at = home.directory.path().join("layout");
    two_layers().source().layout(&at);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", at).unwrap();
    archive.into_inner().unwrap()
}

fn write(home: &Home, bytes: &[u8]) -> PathBuf {
    let path = home.directory.path().join("archive");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn error(outcome: Result<impl Source, SourceError>) -> String {
    outcome.err().unwrap().to_string()
}

#[test]
fn an_archive_that_is_compressed_is_what_it_is_without() {
    let home = Home::new();
    let tar = layout(&home);
    for archive in [tar.clone(), gzip(&tar), zstd(&tar)] {
        let source = home.store.layout(&write(&home, &archive), None).unwrap();
        let stored = home.store.pull(None, &source, &amd64(), &()).unwrap();
        assert_eq!(stored.digest, two_layers().source().digest());
        home.assert_clean();
        home.store.prune(true).unwrap();
    }
    // It is another program that reads it: without that one, only what is not compressed can be read.
    let elsewhere = tempfile::tempdir().unwrap();
    let store = Store::open(elsewhere.path(), Unpacker::new("/nowhere/carrel-unpack")).unwrap();
    assert!(error(store.layout(&write(&home, &gzip(&tar)), None)).contains("/nowhere/carrel-unpack"));
    assert!(store.layout(&write(&home, &tar), None).is_ok());
}

#[test]
fn an_archive_that_is_damaged_or_too_large_is_refused_and_leaves_nothing() {
    let home = Home::new();
    let tar = layout(&home);
    let packed = gzip(&tar);
    let damaged = error(home.store.layout(&write(&home, &packed[..packed.len() / 2]), None));
    assert!(damaged.contains("damaged or cut short"), "{damaged}");
    home.assert_clean();
    let limits = Limits { bytes: tar.len() as u64 - 1, entries: 10 };
    let unpacker = Unpacker { program: env!("CARGO_BIN_EXE_carrel-unpack").into(), limits };
    let store = Store::open(home.directory.path(), unpacker).unwrap();
    let large = error(store.layout(&write(&home, &packed), None));
    assert!(large.contains("more than"), "{large}");
    home.assert_clean();
    assert!(home.store.layout(&write(&home, &packed), None).is_ok());
}

#[test]
fn an_archive_that_unpacks_to_over_a_thousand_times_itself_is_refused() {
    let home = Home::new();
    // Behind the end of a tar there may be zeros.
    let mut bomb = layout(&home);
    bomb.resize(300 << 20, 0);
    let (path, why) = (write(&home, &zstd(&bomb)), "1000 times as large");
    for outcome in [error(home.store.layout(&path, None)), error(home.store.docker_archive(&path, None))] {
        assert!(outcome.contains(why), "{outcome}");
    }
    home.assert_clean();
    bomb.truncate(200 << 20);
    assert!(home.store.layout(&write(&home, &zstd(&bomb)), None).is_ok());
}

/// An archive of Docker's that names one compressed layer many times.
fn repeated(times: usize) -> Vec<u8> {
    let layer = Tar::default().dir("./").file("file", b"").end();
    let diff_ids = vec![Digest::of(&layer); times];
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = json!({ "architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs });
    let manifest = json!([{ "Config": "config.json", "Layers": vec!["layer.tar"; times] }]);
    let bytes = |value: &serde_json::Value| serde_json::to_vec(value).unwrap();
    Tar::default()
        .file("config.json", &bytes(&config))
        .file("layer.tar", &gzip(&layer))
        .file("manifest.json", &bytes(&manifest))
        .end()
}

#[test]
fn a_layer_that_is_named_often_is_one_and_not_named_too_often() {
    let home = Home::new();
    let source = home.store.docker_archive(&write(&home, &repeated(512)), None).unwrap();
    let stored = home.store.pull(None, &source, &amd64(), &()).unwrap();
    assert_eq!((stored.layers.len(), home.names("layers").len()), (512, 1));
    let many = error(home.store.docker_archive(&write(&home, &repeated(20_000)), None));
    assert!(many.contains("it has 20000 layers"), "{many}");
}
