//! Where a store comes from: what the marker of a home says about it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use carrel_store::{EventsError, Options, Store, StoreError, StoreOrigin, check, check_with_marker, repair};
use rusqlite::Connection;

use crate::support::{Place, create, id, ready, take, tick, ticks};

const LEAP: u64 = 1 << 20;

#[tokio::test]
async fn a_store_is_current_however_its_daemon_ended() {
    let place = Place::new();
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Missing { home: None });
    fs::write(place.path(), "").unwrap();
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Missing { home: None });
    let store = place.open_at_home("boot-1");
    assert_eq!(*store.opened(), StoreOrigin::Missing { home: None });
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Empty { home: None });
    ready(&store, "box-1").await;
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Current);
    store.close().await;
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Current);
    assert!(!place.beside("-wal").exists(), "to look at it changes nothing");
    let store = place.open_at_home("boot-2");
    assert_eq!(*store.opened(), StoreOrigin::Current);
    drop(store);
    fs::remove_file(place.marker()).unwrap();
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Unmarked);
    assert_eq!(Store::inspect(&place.path(), None).unwrap(), StoreOrigin::Unmarked);
}

#[tokio::test]
async fn a_power_cut_never_makes_a_store_look_older() {
    let place = Place::new();
    let store = place.open_at_home("boot-1");
    let mut row = store.commit(create("box-1")).await.unwrap().sandbox;
    let (mut left, mut synced) = (place.copy(), store.statistics().synced);
    for number in 0..300 {
        let mut change = tick(&row);
        change.synced = number % 17 == 0;
        row = store.commit(change).await.unwrap().sandbox;
        // A power cut leaves what was flushed, and a marker that may be as new as can be.
        if store.statistics().synced > synced {
            (left, synced) = (place.copy(), store.statistics().synced);
        }
        assert_eq!(Store::inspect(&left.path(), Some(&place.marker())).unwrap(), StoreOrigin::Current, "{number}");
    }
    assert!(synced > 17);
}

/// A home, and its store as it was when some events had not happened yet.
async fn older(events: u64) -> (Place, Place, u64, u64) {
    let place = Place::new();
    let store = place.open_at_home("boot-1");
    ready(&store, "box-1").await;
    store.close().await;
    let old = place.copy();
    let store = place.open_at_home("boot-1");
    let row = ticks(&store, &store.sandbox(&id("box-1")).unwrap(), events).await;
    let last = store.commit(tick(&row)).await.unwrap().events[0].clone();
    store.close().await;
    (place, old, last.sequence, last.position)
}

#[tokio::test]
async fn an_older_store_is_recognized_and_gives_nothing_again() {
    let (place, old, seen, position) = older(5).await;
    place.take_file(&old);
    let origin = StoreOrigin::Older { store: 2, home: position };
    assert_eq!(place.inspect().unwrap(), origin);
    let store = place.open_at_home("boot-1");
    assert_eq!(*store.opened(), origin);
    let row = store.sandbox(&id("box-1")).unwrap();
    assert_eq!(row.last_sequence, 2);
    let mut events = store.events(&row.id, seen).unwrap();
    let far = store.events(&row.id, u64::MAX).unwrap_err();
    assert_eq!(far, EventsError::Future { newest: 2, oldest: 1 });
    let next = store.commit(tick(&row)).await.unwrap().events[0].clone();
    assert!(next.sequence > LEAP && next.position > position + LEAP, "{next:?}");
    assert_eq!(take(&mut events, 1).await, [next]);
    store.close().await;
    place.assert_good();
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Current, "from now on it is the store of this home");
}

#[tokio::test]
async fn a_power_cut_right_after_an_older_store_was_opened_lowers_nothing() {
    let (place, old, ..) = older(1).await;
    place.take_file(&old);
    let store = place.open_at_home("boot-1");
    let left = place.copy();
    drop(store);
    let store = left.open_on("boot-2");
    let row = ticks(&store, &store.sandbox(&id("box-1")).unwrap(), 1).await;
    assert!(row.last_sequence > LEAP);
    store.close().await;
    left.assert_good();
}

//= promises.control-plane.store-older-disks-missing
#[tokio::test]
async fn a_store_of_another_home_is_foreign_and_one_that_is_gone_is_missed() {
    let (place, _, _, position) = older(1).await;
    let other = Place::new();
    let store = other.open_at_home("boot-1");
    ready(&store, "other").await;
    store.close().await;
    place.take_file(&other);
    let StoreOrigin::Foreign { store, home, position: marked } = place.inspect().unwrap() else { panic!() };
    assert_ne!(store, home);
    assert_eq!(marked, position);
    let store = place.open_at_home("boot-1");
    let row = store.sandbox(&id("other")).unwrap();
    assert!(store.commit(tick(&row)).await.unwrap().events[0].position > position);
    store.close().await;

    let (place, ..) = older(1).await;
    fs::remove_file(place.path()).unwrap();
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Missing { home: Some(position) });
    let store = place.open_at_home("boot-1");
    let created = store.commit(create("box-1")).await.unwrap().events[0].clone();
    assert!(created.sequence == 1 && created.position > position);
    store.close().await;

    let (place, ..) = older(1).await;
    let empty = Place::new();
    empty.open().close().await;
    place.take_file(&empty);
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Empty { home: Some(position) });
}

#[tokio::test]
async fn a_copy_without_its_log_is_refused_and_left_alone() {
    let place = Place::new();
    // Also one in which nothing has happened yet, and one that was closed before.
    for round in 0..3 {
        let store = place.open_on("boot-1");
        if round > 0 {
            let row = ready(&store, &format!("box-{round}")).await;
            ticks(&store, &row, 600).await;
        }
        let copy = Place::new();
        copy.take_file(&place);
        let before = fs::read(copy.path()).unwrap();
        for _ in 0..2 {
            let error = Store::open(&copy.path(), crate::support::on("boot-1")).unwrap_err();
            assert!(matches!(error, StoreError::LogMissing(_)), "{error}");
            assert!(error.hint().unwrap().contains("carrel store restore FILE"));
            assert!(matches!(copy.inspect(), Err(StoreError::LogMissing(_))));
            assert!(check(&copy.path()).unwrap().violations.iter().any(|found| found.contains("-wal is missing")));
        }
        assert_eq!(copy.named("store.db").len(), 1, "nothing was put beside it");
        assert_eq!(fs::read(copy.path()).unwrap(), before);
        store.close().await;
        copy.take_file(&place);
        copy.assert_good();
        copy.open().close().await;
    }
}

#[tokio::test]
async fn a_log_that_was_emptied_or_damaged_is_an_error_and_repair_takes_what_is_there() {
    for damage in ["empty", "damaged"] {
        let place = Place::new();
        let store = place.open_at_home("boot-1");
        let row = ready(&store, "box-1").await;
        store.close().await;
        let store = place.open_at_home("boot-1");
        let row = ticks(&store, &row, 5).await;
        let mut change = tick(&row);
        change.synced = true;
        store.commit(change).await.unwrap();
        let files = ["", "-wal"].map(|end| fs::read(place.beside(end)).unwrap());
        let marker = fs::read(place.marker()).unwrap();
        store.close().await;
        let [database, mut log] = files;
        if damage == "empty" {
            log.clear()
        } else {
            log[40..].fill(7)
        }
        fs::write(place.path(), database).unwrap();
        fs::write(place.beside("-wal"), log).unwrap();
        fs::write(place.marker(), marker).unwrap();
        let options = || Options { home_mark: Some(place.marker()), ..crate::support::on("boot-1") };
        for error in [place.inspect().unwrap_err(), Store::open(&place.path(), options()).unwrap_err()] {
            assert!(matches!(error, StoreError::LogIncomplete { .. }), "{damage}: {error}");
            assert!(error.hint().unwrap().contains("`carrel store repair`"));
        }
        let report = check_with_marker(&place.path(), Some(&place.marker())).unwrap();
        assert!(report.violations.iter().any(|found| found.contains("positions of events are missing")), "{damage}");
        assert!(repair(&place.path(), Some(&place.marker())).unwrap().missing.is_some());
        let store = place.open_at_home("boot-1");
        assert_eq!(store.sandbox(&id("box-1")).unwrap().last_sequence, 2, "{damage}");
        store.close().await;
    }
}

#[test]
fn a_daemon_that_is_killed_right_after_it_opened_the_store_leaves_the_log() {
    const PLACE: &str = "CARREL_STORE_TO_OPEN";
    if let Some(path) = std::env::var_os(PLACE) {
        let _store = Store::open(path.as_ref(), crate::support::on("boot-1")).unwrap();
        println!("\nopened");
        std::thread::park();
        return;
    }
    let place = Place::new();
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["origin::a_daemon_that_is_killed_right_after_it_opened_the_store_leaves_the_log", "--exact"])
            .arg("--nocapture")
            .env(PLACE, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "opened"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(place.beside("-wal").exists());
        assert!(matches!(place.inspect(), Ok(StoreOrigin::Empty { .. })));
    }
    drop(place.open_on("boot-1"));
    assert!(!place.beside("-wal").exists(), "one that was closed needs none");
}

#[tokio::test]
async fn a_migration_keeps_the_first_store_of_the_older_version() {
    let place = Place::new();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/v1.db");
    fs::copy(fixture, place.path()).unwrap();
    place.open_on("boot-3").close().await;
    let backup = place.beside(".v1.bak");
    let version = |path| -> u32 {
        Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    assert_eq!((version(&backup), version(&place.path())), (1, 3));
    assert_eq!(check(&backup).unwrap().sandboxes, check(&place.path()).unwrap().sandboxes);
    let kept = fs::read(&backup).unwrap();
    let v1 = Connection::open(fixture).unwrap();
    let _ = fs::remove_file(place.path());
    v1.execute("VACUUM INTO ?1", [place.path().to_str().unwrap()]).unwrap();
    Connection::open(place.path())
        .unwrap()
        .execute_batch("DELETE FROM reserved_execs WHERE id = 'exec-failed'")
        .unwrap();
    place.open_on("boot-3").close().await;
    assert_eq!(fs::read(&backup).unwrap(), kept, "it is never replaced");
    assert_eq!(place.named("store.db.v1.bak").len(), 1);
}

#[tokio::test]
async fn a_store_from_before_the_migration_is_older_than_the_marker() {
    let place = Place::new();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/v1.db"), place.path()).unwrap();
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Unmarked);
    place.open_at_home("boot-3").close().await;
    assert_eq!(place.inspect().unwrap(), StoreOrigin::Current);
    fs::copy(place.beside(".v1.bak"), place.path()).unwrap();
    assert!(matches!(place.inspect().unwrap(), StoreOrigin::Older { .. }));
    let store = place.open_at_home("boot-3");
    let row = ticks(&store, &store.sandbox(&id("ready")).unwrap(), 1).await;
    assert!(row.last_sequence > LEAP);
}
