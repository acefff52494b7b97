//! A power cut takes commits without fsync, and their numbers are never reused.

use carrel_store::{EventsError, Store, check};

use crate::support::{TestStore, id, on, ready, take, tick, ticks};

/// A store without its last 31 events, as after a power cut, with the newest sequence and position that were seen.
async fn cut() -> (TestStore, u64, u64) {
    let test_store = TestStore::new();
    let store = test_store.open_on("boot-1");
    let row = ready(&store, "box-1").await;
    let mut synced = tick(&row);
    synced.synced = true;
    let row = store.commit(synced).await.unwrap().sandbox;
    let left = test_store.copy();
    let row = ticks(&store, &row, 30).await;
    let last = store.commit(tick(&row)).await.unwrap().events[0].clone();
    (left, last.sequence, last.position)
}

//= control.order.sequence-daemon-gives-source
//= promises.control-plane.sequence-seen
#[tokio::test]
async fn a_sequence_seen_before_a_power_cut_is_never_reused() {
    let (left, observed, position) = cut().await;
    // Without a power cut they are reused, so the log really lacks them.
    let control = left.copy();
    let store = control.open_on("boot-1");
    let row = store.sandbox(&id("box-1")).unwrap();
    let again = store.commit(tick(&row)).await.unwrap().events[0].clone();
    assert!(again.sequence == 4 && again.sequence < observed && again.position < position);
    drop(store);

    let store = left.open_on("boot-2");
    let row = store.sandbox(&id("box-1")).unwrap();
    assert_eq!(row.last_sequence, 3);
    // A client that saw them continues from there; a higher sequence is refused.
    let mut events = store.events(&row.id, observed).unwrap();
    assert_eq!(store.events(&row.id, 68).unwrap_err(), EventsError::Future { newest: 3, oldest: 1 });
    let mut from_start = store.events(&row.id, 0).unwrap();
    let next = store.commit(tick(&row)).await.unwrap().events[0].clone();
    assert_eq!(next.sequence, 68, "the first above the ceiling");
    assert!(next.position > position);
    assert_eq!(store.statistics().synced, 1);
    assert_eq!(take(&mut events, 1).await, [next]);
    let all: Vec<_> = take(&mut from_start, 4).await.iter().map(|event| event.sequence).collect();
    assert_eq!(all, [1, 2, 3, 68]);
    let row = store.sandbox(&row.id).unwrap();
    assert_eq!(ticks(&store, &row, 1).await.last_sequence, 69);
    store.close().await;
    left.assert_good();
}

#[tokio::test]
async fn a_second_power_cut_without_commits_adds_no_gap() {
    let (left, ..) = cut().await;
    let store = left.open_on("boot-2");
    let again = left.copy();
    drop(store);
    for boot in ["boot-3", "boot-4"] {
        let store = again.open_on(boot);
        // The copy is taken while it is open, so it was never closed.
        let copy = again.copy();
        copy.assert_good();
        drop(store);
        let store = copy.open_on("boot-5");
        let row = store.sandbox(&id("box-1")).unwrap();
        assert_eq!(ticks(&store, &row, 1).await.last_sequence, 68);
        store.close().await;
        copy.assert_good();
    }
}

#[tokio::test]
async fn a_clean_shutdown_of_the_host_leaves_no_gap() {
    let test_store = TestStore::new();
    let store = test_store.open_on("boot-1");
    let row = ready(&store, "box-1").await;
    ticks(&store, &row, 5).await;
    store.close().await;
    let store = test_store.open_on("boot-2");
    let row = store.sandbox(&row.id).unwrap();
    assert_eq!(ticks(&store, &row, 1).await.last_sequence, 8);
    store.close().await;
    assert_eq!(check(&test_store.path()).unwrap().events, 8);
    test_store.assert_good();
}

#[tokio::test]
async fn a_crash_of_the_daemon_leaves_no_gap() {
    let test_store = TestStore::new();
    let store = test_store.open_on("boot-1");
    let row = ready(&store, "box-1").await;
    ticks(&store, &row, 5).await;
    let left = test_store.copy();
    let store = Store::open(&left.path(), on("boot-1")).unwrap();
    let row = store.sandbox(&row.id).unwrap();
    assert_eq!(ticks(&store, &row, 1).await.last_sequence, 8);
    store.close().await;
    left.assert_good();
}
