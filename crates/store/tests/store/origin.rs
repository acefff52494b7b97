//! The origin of a store, according to the marker of its home.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use carrel_store::{EventsError, Store, StoreError, StoreOptions, StoreOrigin, check, check_with_marker, repair};
use rusqlite::Connection;

use crate::support::{TestStore, create, id, ready, take, tick, ticks};

const SEQUENCE_JUMP: u64 = 1 << 20;

#[tokio::test]
async fn a_store_is_current_after_a_close_and_after_a_crash() {
    let test_store = TestStore::new();
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Missing { home: None });
    fs::write(test_store.path(), "").unwrap();
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Missing { home: None });
    let store = test_store.open_at_home("boot-1");
    assert_eq!(*store.origin(), StoreOrigin::Missing { home: None });
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Empty { home: None });
    ready(&store, "box-1").await;
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Current);
    store.close().await;
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Current);
    assert!(!test_store.beside("-wal").exists(), "an inspection changes nothing");
    let store = test_store.open_at_home("boot-2");
    assert_eq!(*store.origin(), StoreOrigin::Current);
    drop(store);
    fs::remove_file(test_store.marker()).unwrap();
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Unmarked);
    assert_eq!(Store::inspect(&test_store.path(), None).unwrap(), StoreOrigin::Unmarked);
}

#[tokio::test]
async fn a_power_cut_never_makes_a_store_look_older() {
    let test_store = TestStore::new();
    let store = test_store.open_at_home("boot-1");
    let mut row = store.commit(create("box-1")).await.unwrap().sandbox;
    let (mut left, mut synced) = (test_store.copy(), store.statistics().synced);
    for number in 0..300 {
        let mut change = tick(&row);
        change.synced = number % 17 == 0;
        row = store.commit(change).await.unwrap().sandbox;
        // A power cut leaves what was fsynced, and a marker that may be as new as possible.
        if store.statistics().synced > synced {
            (left, synced) = (test_store.copy(), store.statistics().synced);
        }
        assert_eq!(Store::inspect(&left.path(), Some(&test_store.marker())).unwrap(), StoreOrigin::Current, "{number}");
    }
    assert!(synced > 17);
}

/// A home, and a copy of its store from before some events.
async fn older(events: u64) -> (TestStore, TestStore, u64, u64) {
    let test_store = TestStore::new();
    let store = test_store.open_at_home("boot-1");
    ready(&store, "box-1").await;
    store.close().await;
    let old = test_store.copy();
    let store = test_store.open_at_home("boot-1");
    let row = ticks(&store, &store.sandbox(&id("box-1")).unwrap(), events).await;
    let last = store.commit(tick(&row)).await.unwrap().events[0].clone();
    store.close().await;
    (test_store, old, last.sequence, last.position)
}

#[tokio::test]
async fn an_older_store_is_recognized_and_reuses_no_sequence() {
    let (test_store, old, observed, position) = older(5).await;
    test_store.take_file(&old);
    let origin = StoreOrigin::Older { store: 2, home: position };
    assert_eq!(test_store.inspect().unwrap(), origin);
    let store = test_store.open_at_home("boot-1");
    assert_eq!(*store.origin(), origin);
    let row = store.sandbox(&id("box-1")).unwrap();
    assert_eq!(row.last_sequence, 2);
    let mut events = store.events(&row.id, observed).unwrap();
    let far = store.events(&row.id, u64::MAX).unwrap_err();
    assert_eq!(far, EventsError::Future { newest: 2, oldest: 1 });
    let next = store.commit(tick(&row)).await.unwrap().events[0].clone();
    assert!(next.sequence > SEQUENCE_JUMP && next.position > position + SEQUENCE_JUMP, "{next:?}");
    assert_eq!(take(&mut events, 1).await, [next]);
    store.close().await;
    test_store.assert_good();
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Current, "from now on it is current");
}

#[tokio::test]
async fn a_power_cut_right_after_opening_an_older_store_lowers_no_sequence() {
    let (test_store, old, ..) = older(1).await;
    test_store.take_file(&old);
    let store = test_store.open_at_home("boot-1");
    let left = test_store.copy();
    drop(store);
    let store = left.open_on("boot-2");
    let row = ticks(&store, &store.sandbox(&id("box-1")).unwrap(), 1).await;
    assert!(row.last_sequence > SEQUENCE_JUMP);
    store.close().await;
    left.assert_good();
}

//= promises.control-plane.store-older-disks-missing
#[tokio::test]
async fn a_store_of_another_home_is_foreign_and_a_removed_one_is_missing() {
    let (test_store, _, _, position) = older(1).await;
    let other = TestStore::new();
    let store = other.open_at_home("boot-1");
    ready(&store, "other").await;
    store.close().await;
    test_store.take_file(&other);
    let StoreOrigin::Foreign { store, home, position: marked } = test_store.inspect().unwrap() else { panic!() };
    assert_ne!(store, home);
    assert_eq!(marked, position);
    let store = test_store.open_at_home("boot-1");
    let row = store.sandbox(&id("other")).unwrap();
    assert!(store.commit(tick(&row)).await.unwrap().events[0].position > position);
    store.close().await;

    let (test_store, ..) = older(1).await;
    fs::remove_file(test_store.path()).unwrap();
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Missing { home: Some(position) });
    let store = test_store.open_at_home("boot-1");
    let created = store.commit(create("box-1")).await.unwrap().events[0].clone();
    assert!(created.sequence == 1 && created.position > position);
    store.close().await;

    let (test_store, ..) = older(1).await;
    let empty = TestStore::new();
    empty.open().close().await;
    test_store.take_file(&empty);
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Empty { home: Some(position) });
}

#[tokio::test]
async fn a_copy_without_its_log_is_refused_and_not_changed() {
    let test_store = TestStore::new();
    // Also a store without any event, and one that was closed before.
    for round in 0..3 {
        let store = test_store.open_on("boot-1");
        if round > 0 {
            let row = ready(&store, &format!("box-{round}")).await;
            ticks(&store, &row, 600).await;
        }
        let copy = TestStore::new();
        copy.take_file(&test_store);
        let before = fs::read(copy.path()).unwrap();
        for _ in 0..2 {
            let error = Store::open(&copy.path(), crate::support::on("boot-1")).unwrap_err();
            assert!(matches!(error, StoreError::LogMissing(_)), "{error}");
            assert!(error.hint().unwrap().contains("carrel store restore FILE"));
            assert!(matches!(copy.inspect(), Err(StoreError::LogMissing(_))));
            assert!(check(&copy.path()).unwrap().violations.iter().any(|found| found.contains("-wal is missing")));
        }
        assert_eq!(copy.named("store.db").len(), 1, "no file was created beside it");
        assert_eq!(fs::read(copy.path()).unwrap(), before);
        store.close().await;
        copy.take_file(&test_store);
        copy.assert_good();
        copy.open().close().await;
    }
}

#[tokio::test]
async fn a_log_without_a_frame_is_no_loss() {
    let test_store = TestStore::new();
    let store = test_store.open_at_home("boot-1");
    let row = ready(&store, "box-1").await;
    let log = fs::read(test_store.beside("-wal")).unwrap();
    store.close().await;
    // So it is when a daemon is killed between the header and the first frame.
    fs::write(test_store.beside("-wal"), &log[..32]).unwrap();
    for with_index in [true, false] {
        if !with_index {
            let _ = fs::remove_file(test_store.beside("-shm"));
        }
        assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Current);
        test_store.assert_good();
    }
    let store = test_store.open_at_home("boot-1");
    assert_eq!(store.sandbox(&row.id).unwrap().last_sequence, row.last_sequence);
    store.close().await;
}

#[tokio::test]
async fn an_emptied_or_damaged_log_is_an_error_and_a_repair_keeps_the_rest() {
    let flipped = [0, 3, 9, 10, 15, 24, 31];
    for damage in ["empty", "header", "damaged"].map(str::to_owned).into_iter().chain(flipped.map(|at| at.to_string()))
    {
        let test_store = TestStore::new();
        let store = test_store.open_at_home("boot-1");
        let row = ready(&store, "box-1").await;
        store.close().await;
        let store = test_store.open_at_home("boot-1");
        let row = ticks(&store, &row, 5).await;
        let mut change = tick(&row);
        change.synced = true;
        store.commit(change).await.unwrap();
        let files = ["", "-wal"].map(|end| fs::read(test_store.beside(end)).unwrap());
        let marker = fs::read(test_store.marker()).unwrap();
        store.close().await;
        let [database, mut log] = files;
        match damage.as_str() {
            "empty" => log.clear(),
            "header" => log.truncate(32),
            "damaged" => log[40..].fill(7),
            at => log[at.parse::<usize>().unwrap()] ^= 0x21,
        }
        fs::write(test_store.path(), database).unwrap();
        fs::write(test_store.beside("-wal"), log).unwrap();
        fs::write(test_store.marker(), marker).unwrap();
        let options = || StoreOptions { home_marker: Some(test_store.marker()), ..crate::support::on("boot-1") };
        for error in [test_store.inspect().unwrap_err(), Store::open(&test_store.path(), options()).unwrap_err()] {
            assert!(matches!(error, StoreError::LogIncomplete { .. }), "{damage}: {error}");
            assert!(error.hint().unwrap().contains("`carrel store repair`"));
        }
        let report = check_with_marker(&test_store.path(), Some(&test_store.marker())).unwrap();
        assert!(report.violations.iter().any(|found| found.contains("positions of events are missing")), "{damage}");
        assert!(repair(&test_store.path(), Some(&test_store.marker())).unwrap().missing.is_some());
        let store = test_store.open_at_home("boot-1");
        assert_eq!(store.sandbox(&id("box-1")).unwrap().last_sequence, 2, "{damage}");
        store.close().await;
    }
}

#[test]
fn a_daemon_killed_right_after_opening_the_store_leaves_the_log() {
    const STORE_PATH: &str = "CARREL_STORE_TO_OPEN";
    if let Some(path) = std::env::var_os(STORE_PATH) {
        let _store = Store::open(path.as_ref(), crate::support::on("boot-1")).unwrap();
        println!("\nopened");
        std::thread::park();
        return;
    }
    let test_store = TestStore::new();
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["origin::a_daemon_killed_right_after_opening_the_store_leaves_the_log", "--exact"])
            .arg("--nocapture")
            .env(STORE_PATH, test_store.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "opened"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(test_store.beside("-wal").exists());
        assert!(matches!(test_store.inspect(), Ok(StoreOrigin::Empty { .. })));
    }
    drop(test_store.open_on("boot-1"));
    assert!(!test_store.beside("-wal").exists(), "a closed store needs no log");
}

#[tokio::test]
async fn a_migration_keeps_the_first_copy_of_the_older_version() {
    let test_store = TestStore::new();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/v1.db");
    fs::copy(fixture, test_store.path()).unwrap();
    test_store.open_on("boot-3").close().await;
    let backup = test_store.beside(".v1.bak");
    let version = |path| -> u32 {
        Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    assert_eq!((version(&backup), version(&test_store.path())), (1, 3));
    assert_eq!(check(&backup).unwrap().sandboxes, check(&test_store.path()).unwrap().sandboxes);
    let kept = fs::read(&backup).unwrap();
    let v1 = Connection::open(fixture).unwrap();
    let _ = fs::remove_file(test_store.path());
    v1.execute("VACUUM INTO ?1", [test_store.path().to_str().unwrap()]).unwrap();
    Connection::open(test_store.path())
        .unwrap()
        .execute_batch("DELETE FROM reserved_execs WHERE id = 'exec-failed'")
        .unwrap();
    test_store.open_on("boot-3").close().await;
    assert_eq!(fs::read(&backup).unwrap(), kept, "the copy is never replaced");
    assert_eq!(test_store.named("store.db.v1.bak").len(), 1);
}

#[tokio::test]
async fn a_store_from_before_the_migration_is_older_than_the_marker() {
    let test_store = TestStore::new();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/v1.db"), test_store.path()).unwrap();
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Unmarked);
    test_store.open_at_home("boot-3").close().await;
    assert_eq!(test_store.inspect().unwrap(), StoreOrigin::Current);
    fs::copy(test_store.beside(".v1.bak"), test_store.path()).unwrap();
    assert!(matches!(test_store.inspect().unwrap(), StoreOrigin::Older { .. }));
    let store = test_store.open_at_home("boot-3");
    let row = ticks(&store, &store.sandbox(&id("ready")).unwrap(), 1).await;
    assert!(row.last_sequence > SEQUENCE_JUMP);
}
