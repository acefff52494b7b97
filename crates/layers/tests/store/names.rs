//! Names and records under concurrent changes: an image keeps existing as long as it has a name.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_layers::{ImageStoreError, StoredImage};

use crate::memory::{ImageBuilder, MemorySource, StoreHome, amd64, open, two_layers};

const NAME: &str = "example.org/image:latest";

/// Images without layers, which are pulled quickly.
fn empty(number: usize) -> MemorySource {
    ImageBuilder::default().config("User", number.to_string().into()).source()
}

#[test]
fn a_named_image_survives_a_concurrent_prune() {
    let home = StoreHome::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pruning = scope.spawn(|| {
            let store = open(home.directory.path());
            let mut removed = 0;
            while !done.load(Ordering::Relaxed) {
                removed += store.prune(false).unwrap().images.len();
            }
            removed
        });
        let adding: Vec<_> = (0..2)
            .map(|thread| {
                let home = &home;
                scope.spawn(move || {
                    let store = open(home.directory.path());
                    for number in 0..40 {
                        let (name, image) = (format!("{thread}-{number}"), empty(thread * 1000 + number));
                        let stored = store.pull(Some(&name), &image, &amd64(), &()).unwrap();
                        assert_eq!(store.find(&name).unwrap().map(|found| found.digest), Some(stored.digest), "{name}");
                        // Without a name it may be removed at any time.
                        store.pull(None, &empty(100_000 + thread * 1000 + number), &amd64(), &()).unwrap();
                    }
                })
            })
            .collect();
        adding.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        pruning.join().unwrap();
    });
    let names: usize = home.store.list().unwrap().iter().map(|stored| stored.names.len()).sum();
    assert_eq!(names, 80);
    home.store.prune(false).unwrap();
    assert_eq!(home.names("images").len(), 80);
}

#[test]
fn a_name_that_is_added_while_another_is_removed_keeps_the_image() {
    let home = StoreHome::new();
    let image = two_layers().source();
    for round in 0..25 {
        let stored = home.pull(&image).unwrap();
        let other = format!("example.org/other:{round}");
        let named = std::thread::scope(|scope| {
            let naming = scope.spawn(|| open(home.directory.path()).name(&other, stored.digest));
            match home.store.remove(NAME) {
                Ok(_) | Err(ImageStoreError::InUse { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            naming.join().unwrap()
        });
        // Either the name was added first and keeps it, or there was no image left to name.
        match named {
            Ok(()) => assert_eq!(home.store.find(&other).unwrap().unwrap().digest, stored.digest),
            Err(ImageStoreError::Unknown(_)) => assert_eq!(home.store.find(&other).unwrap(), None),
            Err(error) => panic!("{error}"),
        }
        home.store.prune(true).unwrap();
    }
    home.assert_empty();
}

/// Two images; the record of the first is unreadable.
fn damaged(home: &StoreHome, with: &[u8]) -> (StoredImage, StoredImage) {
    let first = home.pull(&two_layers().source()).unwrap();
    let second = home.store.pull(Some("second"), &two_layers().config("User", "app".into()).source(), &amd64(), &());
    std::fs::write(home.path("images").join(first.digest.hex()).join("image.json"), with).unwrap();
    (first, second.unwrap())
}

#[test]
fn an_image_with_an_unreadable_record_does_not_block_others() {
    for with in [&b""[..], b"{", b"\0\0\0\0", br#"{"digest":"sha256:00"}"#] {
        let home = StoreHome::new();
        let (first, second) = damaged(&home, with);
        assert_eq!(home.store.list().unwrap(), std::slice::from_ref(&second));
        assert_eq!(home.store.damaged().unwrap(), [first.digest]);
        assert_eq!(home.store.find("second").unwrap(), Some(second.clone()));
        assert_eq!(home.store.usage().unwrap().images, 2);
        let Err(ImageStoreError::Damaged { digest, .. }) = home.store.find(NAME) else { panic!() };
        assert_eq!(digest, first.digest);
        let new = home.store.pull(Some("new"), &empty(1), &amd64(), &()).unwrap();
        // Its size is unknown: all of it may belong to no other image.
        let removed = home.store.remove("second").unwrap();
        assert_eq!((removed.images, removed.left), (vec![second.digest], true));
        assert!(home.store.prune(false).unwrap().left);
        assert_eq!(home.names("layers").len(), 2);
        assert!(first.root.layers.iter().all(|layer| layer.join("etc").is_dir()));
        // It can be removed, and then the rest is freed.
        let removed = home.store.remove(&first.digest.to_string()).unwrap();
        assert_eq!((removed.images, removed.names), (vec![first.digest], vec![NAME.to_owned()]));
        assert!(!home.store.prune(false).unwrap().left);
        assert_eq!((home.names("layers").len(), home.names("images")), (0, vec![new.digest.hex()]));
        home.pull(&two_layers().source()).unwrap();
    }
}

#[test]
fn an_image_in_use_stays_even_if_its_record_is_unreadable() {
    let home = StoreHome::new();
    let (first, _) = damaged(&home, b"");
    let held = home.store.hold(first.digest).unwrap();
    assert!(matches!(home.store.remove(&first.digest.to_string()), Err(ImageStoreError::InUse { .. })));
    home.store.prune(true).unwrap();
    assert_eq!(home.names("images"), [first.digest.hex()]);
    drop(held);
    home.store.prune(true).unwrap();
    home.store.prune(true).unwrap();
    home.assert_empty();
}

#[test]
fn a_persistent_user_counts_after_the_home_was_moved() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    let disk = home.directory.path().join("disks/box");
    std::fs::create_dir_all(&disk).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    home.store.need(stored.digest, "box", &disk).unwrap();
    home.store.need(stored.digest, "other", elsewhere.path()).unwrap();
    let moved = tempfile::tempdir().unwrap();
    let at = moved.path().join("home");
    let users =
        |home: &Path| crate::support::names(&home.join("images/images").join(stored.digest.hex()).join("users"));
    std::fs::rename(home.directory.path(), &at).unwrap();
    let store = open(&at);
    store.forget(stored.digest, "other").unwrap();
    assert_eq!(store.usage().unwrap().used, 1);
    assert!(store.in_use(stored.digest));
    let Err(ImageStoreError::InUse { users: needed, .. }) = store.remove(NAME) else { panic!() };
    assert_eq!(needed, ["box"]);
    // Listing removes nothing, also when a file is missing for a moment.
    std::fs::rename(at.join("disks"), at.join("away")).unwrap();
    assert_eq!(store.usage().unwrap().used, 0);
    assert!(!store.in_use(stored.digest));
    assert_eq!(users(&at), ["box"]);
    std::fs::rename(at.join("away"), at.join("disks")).unwrap();
    assert!(store.in_use(stored.digest));
    std::fs::remove_dir_all(at.join("disks")).unwrap();
    store.remove(NAME).unwrap();
}
