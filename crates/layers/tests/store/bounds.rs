//! The limits apply to all layers of an image together, and free disk space is preserved.

use std::process::Command;

use carrel_layers::archive::ArchiveLimits;
use carrel_layers::{ImageStore, ImageStoreError, Unpacker};

use crate::memory::{ImageBuilder, MemorySource, StoreHome, amd64};
use crate::pull::noise;
use crate::support::TarBuilder;

/// The variable that names a small disk to a process of these tests.
const DISK: &str = "CARREL_TEST_DISK";

/// A home with smaller limits for layers.
fn home(limits: ArchiveLimits) -> StoreHome {
    let home = StoreHome::new();
    let unpacker = Unpacker { program: env!("CARGO_BIN_EXE_carrel-unpack").into(), limits };
    let store = ImageStore::open(home.directory.path(), unpacker).unwrap();
    StoreHome { store, ..home }
}

/// This many distinct layers.
fn image(layers: usize, layer: impl Fn(usize, TarBuilder) -> TarBuilder) -> MemorySource {
    (0..layers)
        .fold(ImageBuilder::default(), |build, number| {
            build.layer(layer(number, TarBuilder::default().dir("./")).end())
        })
        .source()
}

//= promises.images.image-unpacks
#[test]
fn all_layers_together_may_have_four_times_the_bytes_of_one() {
    let home = home(ArchiveLimits { bytes: 100_000, entries: 100 });
    // The compressed data is small.
    let large = |number: usize, tar: TarBuilder| tar.file(&format!("{number}"), &vec![7; 80_000]);
    home.pull(&image(4, large)).unwrap();
    home.store.prune(true).unwrap();
    let error = home.pull(&image(6, large)).unwrap_err();
    assert!(matches!(error, ImageStoreError::Unpack { .. }) && error.to_string().contains("more than"), "{error}");
    home.store.prune(true).unwrap();
    home.assert_empty();
}

#[test]
fn all_layers_together_may_have_four_times_the_entries_of_one() {
    let home = home(ArchiveLimits { bytes: 1 << 30, entries: 50 });
    let many =
        |number: usize, tar: TarBuilder| (0..45).fold(tar, |tar, file| tar.file(&format!("{number}-{file}"), b""));
    home.pull(&image(4, many)).unwrap();
    home.store.prune(true).unwrap();
    let error = home.pull(&image(6, many)).unwrap_err();
    assert!(error.to_string().contains("entries"), "{error}");
    home.store.prune(true).unwrap();
    home.assert_empty();
}

#[test]
fn layers_that_exist_already_count_for_the_image() {
    let home = home(ArchiveLimits { bytes: 100_000, entries: 100 });
    let large = |number: usize| TarBuilder::default().dir("./").file(&format!("{number}"), &[7; 80_000]).end();
    let all = (0..6).map(large).collect::<Vec<_>>();
    for layer in &all {
        home.pull(&ImageBuilder::default().layer(layer.clone()).source()).unwrap();
    }
    let whole = all.iter().cloned().fold(ImageBuilder::default(), ImageBuilder::layer).source();
    assert!(matches!(home.pull(&whole), Err(ImageStoreError::TooLarge(400_000))));
    let part = all.iter().take(4).cloned().fold(ImageBuilder::default(), ImageBuilder::layer).source();
    home.pull(&part).unwrap();
}

/// A layer with many long paths of directories without entries.
fn unfounded(number: usize, tar: TarBuilder) -> TarBuilder {
    let part = format!("{}/", "d".repeat(250));
    let deep = |chain: usize| format!("{number}-{chain}/{}x", part.repeat(15));
    (0..280).fold(tar, |tar, chain| tar.pax(&[("path", deep(chain).as_bytes())]).file("x", b""))
}

#[test]
fn directories_without_entries_are_limited_for_all_layers_together() {
    let home = StoreHome::new();
    home.pull(&image(1, unfounded)).unwrap();
    home.store.prune(true).unwrap();
    assert!(matches!(home.pull(&image(2, unfounded)), Err(ImageStoreError::TooManyMissingEntries)));
    home.store.prune(true).unwrap();
    home.assert_empty();
}

/// The child process on a small disk; on its own it does nothing.
#[test]
fn another_process_fills_a_disk() {
    let Ok(path) = std::env::var(DISK) else { return };
    let store = crate::memory::open(path.as_ref());
    let home = StoreHome { directory: tempfile::tempdir().unwrap(), store };
    let names = |directory: &str| crate::support::names(&std::path::Path::new(&path).join("images").join(directory));
    let some =
        |size: usize| move |number: usize, tar: TarBuilder| tar.file(&format!("{number}"), &noise(size + number));
    // Each layer alone would fit.
    let error = home.store.pull(Some("large"), &image(6, some(2 << 20)), &amd64(), &()).unwrap_err();
    assert!(
        matches!(error, ImageStoreError::Full(_)) && error.to_string().contains("hint: run `carrel prune`"),
        "{error}"
    );
    for directory in ["blobs", "layers", "partial", "staging", "images", "names"] {
        assert_eq!(names(directory), [""; 0], "{directory}");
    }
    home.store.pull(Some("small"), &image(1, some(2 << 20)), &amd64(), &()).unwrap();
    eprintln!("the disk was not filled");
}

//= promises.images.image-unpacks
#[test]
fn the_disk_is_not_filled_and_an_image_that_does_not_fit_is_removed() {
    let disk = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=16m tmpfs "$CARREL_TEST_DISK" && exec "$0" "$@""#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "bounds::another_process_fills_a_disk", "--nocapture"])
        .env(DISK, disk.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("the disk was not filled"), "{printed}");
}
