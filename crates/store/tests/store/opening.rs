//! Which files are opened, and how they are left.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use carrel_store::{Options, Store, StoreError, check};
use rusqlite::Connection;

use crate::support::{Place, ready};

#[tokio::test]
async fn nobody_else_reads_the_store() {
    let place = Place::new();
    fs::write(place.path(), "").unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let store = place.open();
    ready(&store, "box-1").await;
    for end in ["", "-wal", "-shm"] {
        let file = place.path().with_file_name(format!("store.db{end}"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600, "{}", file.display());
    }
}

#[test]
fn a_file_of_somebody_else_is_refused_and_left_alone() {
    let place = Place::new();
    fs::write(place.path(), "not a database, and longer than the header of one would have to be to be read as one")
        .unwrap();
    refuses(&place);
    let place = Place::new();
    Connection::open(place.path()).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    refuses(&place);
}

fn refuses(place: &Place) {
    let before = (fs::read(place.path()).unwrap(), fs::metadata(place.path()).unwrap().permissions());
    let error = Store::open(&place.path(), Options::default()).unwrap_err();
    assert!(matches!(error, StoreError::NotOurs(_)), "{error}");
    assert!(matches!(check(&place.path()), Err(StoreError::NotOurs(_))));
    assert_eq!((fs::read(place.path()).unwrap(), fs::metadata(place.path()).unwrap().permissions()), before);
}

#[tokio::test]
async fn a_newer_store_is_refused_with_both_versions() {
    let place = Place::new();
    place.open().close().await;
    Connection::open(place.path()).unwrap().pragma_update(None, "user_version", 9).unwrap();
    let error = Store::open(&place.path(), Options::default()).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 9, known: 3, .. }), "{error}");
    assert!(error.to_string().contains("version 9"));
    assert!(matches!(check(&place.path()), Err(StoreError::Newer { .. })));
}

#[test]
fn a_store_that_is_not_there_is_not_made_by_a_check() {
    let place = Place::new();
    assert!(matches!(check(&place.path()), Err(StoreError::File { .. })));
    assert!(!place.path().exists());
    let nowhere = place.path().join("nowhere");
    assert!(matches!(Store::open(&nowhere, Options::default()), Err(StoreError::File { .. })));
}
