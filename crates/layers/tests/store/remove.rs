//! Removal: it never breaks what is in use, and leaves nothing behind.

use std::os::fd::AsFd;
use std::process::Command;

use carrel_layers::{Digest, ImageStoreError};

use crate::memory::{StoreHome, amd64, open, release, two_layers};
use crate::support::TarBuilder;

const NAME: &str = "example.org/image:latest";
const OTHER: &str = "example.org/image:other";

#[test]
fn an_image_is_removed_with_its_last_name_and_all_its_own_content() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    home.store.name(OTHER, stored.digest).unwrap();
    let removed = home.store.remove(OTHER).unwrap();
    assert_eq!((removed.names, removed.images, removed.bytes), (vec![OTHER.to_owned()], vec![], 0));
    assert_eq!(home.store.find(NAME).unwrap().unwrap().digest, stored.digest);
    let removed = home.store.remove(NAME).unwrap();
    assert_eq!((removed.names, removed.images, removed.left), (vec![NAME.to_owned()], vec![stored.digest], false));
    assert!(removed.bytes >= stored.size + stored.packed);
    home.assert_empty();
    assert!(matches!(home.store.remove(NAME), Err(ImageStoreError::Unknown(_))));
}

#[test]
fn an_image_is_removed_by_its_digest_or_a_prefix() {
    let home = StoreHome::new();
    for digits in [12, 64] {
        let stored = home.pull(&two_layers().source()).unwrap();
        assert!(
            matches!(home.store.remove(&stored.digest.hex()[..4]), Err(ImageStoreError::Unknown(_))),
            "it is too short"
        );
        let removed = home.store.remove(&stored.digest.hex()[..digits]).unwrap();
        assert_eq!((removed.images, removed.names), (vec![stored.digest], vec![NAME.to_owned()]));
        home.assert_empty();
    }
    let stored = home.pull(&two_layers().source()).unwrap();
    home.store.remove(&stored.digest.to_string()).unwrap();
    home.assert_empty();
}

#[test]
fn content_of_another_image_stays() {
    let home = StoreHome::new();
    let first = home.pull(&two_layers().source()).unwrap();
    let more = two_layers().layer(TarBuilder::default().dir("./").file("new", b"new").end()).source();
    let second = home.store.pull(Some(OTHER), &more, &amd64(), &()).unwrap();
    home.store.remove(OTHER).unwrap();
    assert_eq!(home.names("layers").len(), 2);
    assert!(first.root.layers.iter().all(|layer| layer.is_dir()));
    assert!(!second.root.layers[0].exists());
    let source = two_layers().source();
    home.pull(&source).unwrap();
    assert_eq!(source.take_requests(), [], "all of it is still there");
}

//= promises.images.image-something-runs-sandbox
#[test]
fn a_held_image_stays_until_it_is_released() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    let held = home.store.hold(stored.digest).unwrap();
    let again = open(home.directory.path()).hold(stored.digest).unwrap();
    drop(held);
    assert!(matches!(home.store.remove(NAME), Err(ImageStoreError::InUse { .. })));
    home.store.prune(true).unwrap();
    assert_eq!(home.store.find(NAME).unwrap().unwrap(), stored);
    assert_eq!(home.store.usage().unwrap().used, 1);
    release(again);
    home.store.remove(NAME).unwrap();
    home.assert_empty();
    assert!(matches!(home.store.hold(stored.digest), Err(ImageStoreError::Unknown(_))));
}

//= promises.images.image-something-runs-sandbox
#[test]
fn an_inherited_hold_keeps_the_image() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    let held = home.store.hold(stored.digest).unwrap();
    let inherited = held.as_fd().try_clone_to_owned().unwrap();
    let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).stdout(inherited).spawn().unwrap();
    drop(held);
    assert!(matches!(home.store.remove(NAME), Err(ImageStoreError::InUse { .. })));
    drop(child.stdin.take());
    child.wait().unwrap();
    home.store.remove(NAME).unwrap();
    home.assert_empty();
}

//= promises.images.image-something-runs-sandbox
#[test]
fn a_persistent_user_keeps_an_image_while_its_directory_exists() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    let owner = home.directory.path().join("sandbox");
    assert!(matches!(home.store.need(stored.digest, "box", &owner), Err(ImageStoreError::MissingOwner(_))));
    std::fs::create_dir(&owner).unwrap();
    home.store.need(stored.digest, "box", &owner).unwrap();
    home.store.need(stored.digest, "box", &owner).unwrap();
    for bad in ["", "..", "a/b", ".hidden"] {
        assert!(matches!(home.store.need(stored.digest, bad, &owner), Err(ImageStoreError::InvalidName(_))), "{bad}");
    }
    let Err(ImageStoreError::InUse { users, .. }) = home.store.remove(NAME) else { panic!() };
    assert_eq!(users, ["box"]);
    home.store.prune(true).unwrap();
    assert!(home.store.find(NAME).unwrap().is_some());
    // The link counts, not its creator: another store respects it too.
    assert!(matches!(open(home.directory.path()).remove(NAME), Err(ImageStoreError::InUse { .. })));
    // A user that crashed before it could unregister does not count.
    std::fs::remove_dir(&owner).unwrap();
    home.store.remove(NAME).unwrap();
    home.assert_empty();
}

#[test]
fn a_persistent_user_that_is_removed_keeps_no_image() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    home.store.need(stored.digest, "box", home.directory.path()).unwrap();
    home.store.forget(stored.digest, "box").unwrap();
    home.store.forget(stored.digest, "box").unwrap();
    home.store.remove(NAME).unwrap();
    home.store.forget(stored.digest, "box").unwrap();
    assert!(matches!(home.store.need(stored.digest, "box", home.directory.path()), Err(ImageStoreError::Unknown(_))));
}

#[test]
fn prune_removes_unnamed_images_and_with_unused_all_that_are_not_in_use() {
    let home = StoreHome::new();
    let old = home.pull(&two_layers().source()).unwrap();
    let new = home.pull(&two_layers().config("User", "app".into()).source()).unwrap();
    std::fs::write(home.path("partial").join(Digest::of(b"x").hex()), [0; 1000]).unwrap();
    let usage = home.store.usage().unwrap();
    assert_eq!((usage.images, usage.used, usage.layers, usage.partial), (2, 0, 2, 1000));
    let removed = home.store.prune(false).unwrap();
    assert_eq!((removed.images, removed.names), (vec![old.digest], vec![]));
    assert_eq!(home.store.list().unwrap(), std::slice::from_ref(&new));
    home.assert_clean();
    let usage = home.store.usage().unwrap();
    assert_eq!((usage.images, usage.partial), (1, 0));
    assert_eq!((usage.unpacked, usage.blobs), (new.size, new.packed));
    assert_eq!(usage.reclaimable, usage.unpacked + usage.blobs);
    let held = home.store.hold(new.digest).unwrap();
    assert_eq!(home.store.usage().unwrap().reclaimable, 0);
    release(held);
    let removed = home.store.prune(true).unwrap();
    assert_eq!((removed.images, removed.names), (vec![new.digest], vec![NAME.to_owned()]));
    home.assert_empty();
}

#[test]
fn content_stays_during_a_pull_and_the_next_removal_takes_it() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    let adding = std::fs::File::open(home.path("lock")).unwrap();
    rustix::fs::flock(&adding, rustix::fs::FlockOperation::LockShared).unwrap();
    let removed = home.store.remove(NAME).unwrap();
    assert_eq!((removed.images, removed.left, removed.bytes), (vec![stored.digest], true, 0));
    assert_eq!((home.names("images"), home.names("layers").len()), (vec![], 2));
    release(adding);
    assert!(!home.store.prune(false).unwrap().left);
    home.assert_empty();
}

#[test]
fn a_name_without_image_does_not_resolve_and_is_removed() {
    let home = StoreHome::new();
    let stored = home.pull(&two_layers().source()).unwrap();
    std::fs::remove_dir_all(home.path("images").join(stored.digest.hex())).unwrap();
    assert_eq!(home.store.find(NAME).unwrap(), None);
    assert_eq!(home.store.prune(false).unwrap().names, [NAME]);
    home.assert_empty();
}

//= promises.images.image-something-runs-sandbox
#[test]
fn concurrent_pulls_and_removals_leave_complete_images() {
    let home = StoreHome::new();
    let sources: Vec<_> =
        (0..3).map(|number| two_layers().config("User", number.to_string().into()).source()).collect();
    std::thread::scope(|scope| {
        for (number, source) in sources.iter().enumerate() {
            let (name, home) = (format!("example.org/{number}"), &home);
            scope.spawn(move || {
                let store = open(home.directory.path());
                for _ in 0..10 {
                    let stored = store.pull(Some(&name), source, &amd64(), &()).unwrap();
                    // A held image is complete.
                    if let Ok(_held) = store.hold(stored.digest) {
                        assert_eq!(std::fs::read(stored.root.layers[1].join("etc/hostname")).unwrap(), b"carrel\n");
                    }
                    match store.remove(&name) {
                        Ok(_) | Err(ImageStoreError::InUse { .. } | ImageStoreError::Unknown(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    home.store.prune(true).unwrap();
    home.assert_empty();
}
