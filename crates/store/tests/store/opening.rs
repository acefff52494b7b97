//! Opening files, and their modes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use carrel_store::{Store, StoreError, StoreOptions, check};
use rusqlite::Connection;

use crate::support::{TestStore, ready};

#[tokio::test]
async fn the_store_is_readable_by_its_owner_only() {
    let test_store = TestStore::new();
    fs::write(test_store.path(), "").unwrap();
    fs::set_permissions(test_store.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let store = test_store.open();
    ready(&store, "box-1").await;
    for end in ["", "-wal", "-shm"] {
        let file = test_store.path().with_file_name(format!("store.db{end}"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600, "{}", file.display());
    }
}

#[test]
fn a_foreign_file_is_refused_and_not_changed() {
    let test_store = TestStore::new();
    fs::write(
        test_store.path(),
        "not a database, and longer than the header of one would have to be to be read as one",
    )
    .unwrap();
    refuses(&test_store, |error| matches!(error, StoreError::NotOurs(_)));
    let test_store = TestStore::new();
    Connection::open(test_store.path()).unwrap().execute_batch("CREATE TABLE theirs (a)").unwrap();
    refuses(&test_store, |error| matches!(error, StoreError::OtherDatabase(_)));
}

fn refuses(test_store: &TestStore, is_expected: fn(&StoreError) -> bool) {
    let before = (fs::read(test_store.path()).unwrap(), fs::metadata(test_store.path()).unwrap().permissions());
    let error = Store::open(&test_store.path(), StoreOptions::default()).unwrap_err();
    assert!(is_expected(&error), "{error}");
    assert!(check(&test_store.path()).is_err_and(|error| is_expected(&error)));
    assert_eq!((fs::read(test_store.path()).unwrap(), fs::metadata(test_store.path()).unwrap().permissions()), before);
}

#[tokio::test]
async fn a_newer_store_is_refused_with_both_versions() {
    let test_store = TestStore::new();
    test_store.open().close().await;
    Connection::open(test_store.path()).unwrap().pragma_update(None, "user_version", 9).unwrap();
    let error = Store::open(&test_store.path(), StoreOptions::default()).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 9, known: 3, .. }), "{error}");
    assert!(error.to_string().contains("version 9"));
    assert!(error.hint().unwrap().ends_with("store.db.v3.bak"), "{error}");
    assert!(matches!(check(&test_store.path()), Err(StoreError::Newer { .. })));
}

#[test]
fn a_check_does_not_create_a_missing_store() {
    let test_store = TestStore::new();
    assert!(matches!(check(&test_store.path()), Err(StoreError::File { .. })));
    assert!(!test_store.path().exists());
    let nowhere = test_store.path().join("nowhere");
    assert!(matches!(Store::open(&nowhere, StoreOptions::default()), Err(StoreError::File { .. })));
}
