//! Retention of events and execs.

use carrel_store::{
    EventType, EventsError, ExecState, RetentionLimit, SandboxState, Store, StoreError, StoreOptions, Timestamp, check,
    repair,
};
use rusqlite::Connection;

use crate::support::{TestStore, create, exec_id, id, ready, reseal, run, take, tick, ticks, transition};

fn count(count: u64) -> RetentionLimit {
    RetentionLimit { count: Some(count), since: None }
}

fn since(since: i64) -> RetentionLimit {
    RetentionLimit { count: None, since: Some(Timestamp(since)) }
}

/// Removes all events that exceed a limit; returns how many.
async fn trim(store: &Store, keep: RetentionLimit) -> usize {
    let mut removed = 0;
    for (sandbox, through) in store.overdue_events(keep).await.unwrap() {
        loop {
            match store.trim_events(&sandbox, through).await.unwrap() {
                0 => break,
                some => removed += some,
            }
        }
    }
    removed
}

#[tokio::test]
async fn only_the_newest_events_are_kept_and_an_older_sequence_has_expired() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let row = ticks(&store, &row, 1500).await;
    ready(&store, "box-2").await;
    assert_eq!(trim(&store, count(10)).await, 1492);
    assert_eq!(trim(&store, count(10)).await, 0);
    for reopened in [false, true] {
        let store = if reopened { test_store.open() } else { store.clone() };
        assert_eq!(store.events(&row.id, 1491).unwrap_err(), EventsError::Expired { oldest: 1493 });
        assert_eq!(store.events(&row.id, 1).unwrap_err(), EventsError::Expired { oldest: 1493 });
        assert_eq!(store.events(&row.id, 1503).unwrap_err(), EventsError::Future { newest: 1502, oldest: 1493 });
        for all in [0, 1492] {
            let observed = take(&mut store.events(&row.id, all).unwrap(), 10).await;
            assert!(observed.iter().map(|event| event.sequence).eq(1493..=1502));
        }
        assert_eq!(take(&mut store.events(&id("box-2"), 0).unwrap(), 2).await.len(), 2);
        store.close().await;
        test_store.assert_good();
    }
}

//= promises.control-plane.past
#[tokio::test]
async fn events_beyond_the_age_limit_are_removed_except_the_newest() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let mut row = ready(&store, "box-1").await;
    for at in [10, 20, 30] {
        let mut change = tick(&row);
        change.events[0].at = Timestamp(at);
        row = store.commit(change).await.unwrap().sandbox;
    }
    assert_eq!(store.overdue_events(since(7)).await.unwrap(), []);
    assert_eq!(trim(&store, since(20)).await, 3);
    assert_eq!(trim(&store, since(1000)).await, 1);
    assert_eq!(store.overdue_events(since(1000)).await.unwrap(), []);
    let observed = take(&mut store.events(&row.id, 0).unwrap(), 1).await;
    assert_eq!((observed[0].sequence, observed[0].at), (5, Timestamp(30)));
    // The sequence continues.
    let row = ticks(&store, &row, 1).await;
    assert_eq!(row.last_sequence, 6);
    store.close().await;
    test_store.assert_good();
}

#[tokio::test]
async fn a_cursor_whose_events_were_removed_fails_as_expired() {
    let test_store = TestStore::new();
    let store = Store::open(&test_store.path(), StoreOptions { recent: 4, ..StoreOptions::default() }).unwrap();
    let row = ready(&store, "box-1").await;
    let mut events = store.events(&row.id, 1).unwrap();
    let mut beginning = store.events(&row.id, 0).unwrap();
    ticks(&store, &row, 600).await;
    trim(&store, count(2)).await;
    assert!(matches!(events.next().await, Err(StoreError::Expired { oldest: 601 })));
    assert_eq!(take(&mut beginning, 2).await[0].sequence, 601);
}

#[tokio::test]
async fn ended_execs_are_removed_oldest_first_and_their_ids_stay_reserved() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let mut row = ready(&store, "box-1").await;
    for number in 0..6 {
        let name = format!("exec-{number}");
        row = store.commit(run(&row, &name, ExecState::Running)).await.unwrap().sandbox;
        if number != 1 {
            row = store.commit(run(&row, &name, ExecState::Failed)).await.unwrap().sandbox;
        }
    }
    let overdue = store.overdue_execs(count(3)).await.unwrap();
    let ids: Vec<_> = overdue.iter().map(|(_, exec)| exec.to_string()).collect();
    assert_eq!(ids, ["exec-0", "exec-2", "exec-3"]);
    // A running exec is never removed.
    let mut execs: Vec<_> = overdue.into_iter().map(|(_, exec)| exec).collect();
    execs.push(exec_id("exec-1"));
    assert_eq!(store.trim_execs(&row.id, execs).await.unwrap(), 3);
    assert_eq!(store.overdue_execs(count(3)).await.unwrap(), []);
    assert!(store.exec(&exec_id("exec-0")).await.unwrap().is_none());
    assert!(store.exec(&exec_id("exec-1")).await.unwrap().is_some());
    let again = store.commit(run(&row, "exec-0", ExecState::Running)).await;
    assert!(matches!(again, Err(StoreError::ExecIdTaken)));
    test_store.assert_good();
    // The start and end events of the others may be removed as well.
    assert_eq!(trim(&store, count(3)).await, 10);
    test_store.assert_good();
    let old = store.overdue_execs(since(7)).await.unwrap();
    assert_eq!(old.len(), 2);
    assert_eq!(store.overdue_execs(since(6)).await.unwrap(), []);
    store.close().await;
    test_store.assert_good();
}

#[tokio::test]
async fn a_check_accepts_a_trimmed_beginning_and_nothing_else() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let row = store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-1", ExecState::Finished)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-2", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-2", ExecState::Finished)).await.unwrap().sandbox;
    ticks(&store, &row, 2).await;
    store.trim_execs(&row.id, vec![exec_id("exec-1")]).await.unwrap();
    store.trim_events(&row.id, 3).await.unwrap();
    store.close().await;
    test_store.assert_good();
    for (sql, sentence) in [
        ("UPDATE trimmed SET events = 2", "its first event is 4"),
        ("UPDATE trimmed SET events = 4", "its first event is 4"),
        ("DELETE FROM trimmed", "its first event is 4"),
        ("DELETE FROM events WHERE sequence = 6", "event 7 follows 5"),
        ("UPDATE trimmed SET execs = 0", "its events name exec exec-1, which does not exist"),
        ("DELETE FROM execs WHERE id = 'exec-2'", "its events name exec exec-2, which does not exist"),
        ("DELETE FROM events WHERE sequence > 3", "it has no events"),
        ("INSERT INTO trimmed VALUES (9, 1, 0, 0)", "9 is the row of a trimmed sandbox that does not exist"),
    ] {
        let broken = test_store.copy();
        Connection::open(broken.path()).unwrap().execute_batch(sql).unwrap();
        reseal(&broken.path());
        let found = check(&broken.path()).unwrap().violations;
        assert!(found.iter().any(|found| found.contains(sentence)), "{sql}: {found:#?}");
    }
    let broken = test_store.copy();
    Connection::open(broken.path()).unwrap().execute_batch("UPDATE trimmed SET execs = 7").unwrap();
    let found = check(&broken.path()).unwrap().violations;
    assert!(found.iter().any(|found| found.contains("its retention record cannot be read")), "{found:#?}");
    Store::open(&broken.path(), StoreOptions::default()).unwrap_err();
}

#[tokio::test]
async fn a_repair_keeps_a_trimmed_history() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let row = store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-1", ExecState::Finished)).await.unwrap().sandbox;
    ticks(&store, &row, 3).await;
    ready(&store, "box-2").await;
    store.trim_events(&row.id, 2).await.unwrap();
    store.trim_execs(&row.id, vec![exec_id("exec-1")]).await.unwrap();
    store.close().await;
    // The other sandbox is damaged.
    Connection::open(test_store.path())
        .unwrap()
        .execute_batch("UPDATE sandboxes SET image = 'x' WHERE id = 'box-2'")
        .unwrap();
    let report = repair(&test_store.path(), None).unwrap();
    assert_eq!(report.lost_sandboxes, ["box-2"]);
    test_store.assert_good();
    let incomplete: u64 = Connection::open(test_store.path())
        .unwrap()
        .query_row("SELECT count(*) FROM incomplete_sandboxes", [], |row| row.get(0))
        .unwrap();
    assert_eq!(incomplete, 0);
    let store = test_store.open();
    assert_eq!(store.events(&row.id, 1).unwrap_err(), EventsError::Expired { oldest: 3 });
    store.purge(&row.id).await.unwrap();
    store.close().await;
    test_store.assert_good();
}

#[tokio::test]
async fn a_cursor_of_a_deleted_sandbox_reads_all_events() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = store.commit(create("box-1")).await.unwrap().sandbox;
    let mut follower = store.events(&row.id, 1).unwrap();
    let row = store
        .commit(transition(&row, EventType::SandboxDeleteRequested, SandboxState::Deleting))
        .await
        .unwrap()
        .sandbox;
    take(&mut follower, 1).await;
    let row = store.commit(transition(&row, EventType::SandboxDeleted, SandboxState::Deleted)).await.unwrap().sandbox;
    for shrunk in [false, true] {
        if shrunk {
            store.shrink();
        }
        let mut behind = store.events(&row.id, 2).unwrap();
        assert_eq!(take(&mut behind, 1).await[0].kind, EventType::SandboxDeleted);
        assert_eq!(take(&mut store.events(&row.id, 0).unwrap(), 3).await.len(), 3);
    }
    assert_eq!(take(&mut follower, 1).await[0].kind, EventType::SandboxDeleted);
    // It can still be updated without an event.
    let change =
        carrel_store::Change { events: vec![], ..transition(&row, EventType::SandboxDeleted, SandboxState::Deleted) };
    store.commit(change).await.unwrap();
    store.close().await;
    test_store.assert_good();
}
