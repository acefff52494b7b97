//! What is removed of a history that is longer than it is kept.

use carrel_store::{
    EventType, EventsError, ExecState, Keep, Options, SandboxState, Store, StoreError, Timestamp, check, repair,
};
use rusqlite::Connection;

use crate::support::{Place, create, exec_id, go, id, ready, reseal, run, take, tick, ticks};

fn count(count: u64) -> Keep {
    Keep { count: Some(count), since: None }
}

fn since(since: i64) -> Keep {
    Keep { count: None, since: Some(Timestamp(since)) }
}

/// Removes all events that are overdue; says how many.
async fn trim(store: &Store, keep: Keep) -> usize {
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
async fn only_the_newest_events_are_kept_and_an_older_place_has_expired() {
    let place = Place::new();
    let store = place.open();
    let row = ready(&store, "box-1").await;
    let row = ticks(&store, &row, 1500).await;
    ready(&store, "box-2").await;
    assert_eq!(trim(&store, count(10)).await, 1492);
    assert_eq!(trim(&store, count(10)).await, 0);
    for reopened in [false, true] {
        let store = if reopened { place.open() } else { store.clone() };
        assert_eq!(store.events(&row.id, 1491).unwrap_err(), EventsError::Expired { oldest: 1493 });
        assert_eq!(store.events(&row.id, 1).unwrap_err(), EventsError::Expired { oldest: 1493 });
        assert_eq!(store.events(&row.id, 1503).unwrap_err(), EventsError::Future { newest: 1502, oldest: 1493 });
        for all in [0, 1492] {
            let seen = take(&mut store.events(&row.id, all).unwrap(), 10).await;
            assert!(seen.iter().map(|event| event.sequence).eq(1493..=1502));
        }
        assert_eq!(take(&mut store.events(&id("box-2"), 0).unwrap(), 2).await.len(), 2);
        store.close().await;
        place.assert_good();
    }
}

//= promises.control-plane.past
#[tokio::test]
async fn events_that_are_too_old_go_but_never_the_newest() {
    let place = Place::new();
    let store = place.open();
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
    let seen = take(&mut store.events(&row.id, 0).unwrap(), 1).await;
    assert_eq!((seen[0].sequence, seen[0].at), (5, Timestamp(30)));
    // It goes on where it was.
    let row = ticks(&store, &row, 1).await;
    assert_eq!(row.last_sequence, 6);
    store.close().await;
    place.assert_good();
}

#[tokio::test]
async fn a_reader_that_was_overtaken_is_told_so() {
    let place = Place::new();
    let store = Store::open(&place.path(), Options { recent: 4, ..Options::default() }).unwrap();
    let row = ready(&store, "box-1").await;
    let mut events = store.events(&row.id, 1).unwrap();
    let mut beginning = store.events(&row.id, 0).unwrap();
    ticks(&store, &row, 600).await;
    trim(&store, count(2)).await;
    assert!(matches!(events.next().await, Err(StoreError::Expired { oldest: 601 })));
    assert_eq!(take(&mut beginning, 2).await[0].sequence, 601);
}

#[tokio::test]
async fn execs_that_have_ended_go_oldest_first_and_their_ids_stay_taken() {
    let place = Place::new();
    let store = place.open();
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
    // One that runs is not removed, whoever asks.
    let mut execs: Vec<_> = overdue.into_iter().map(|(_, exec)| exec).collect();
    execs.push(exec_id("exec-1"));
    assert_eq!(store.trim_execs(&row.id, execs).await.unwrap(), 3);
    assert_eq!(store.overdue_execs(count(3)).await.unwrap(), []);
    assert!(store.exec(&exec_id("exec-0")).await.unwrap().is_none());
    assert!(store.exec(&exec_id("exec-1")).await.unwrap().is_some());
    let again = store.commit(run(&row, "exec-0", ExecState::Running)).await;
    assert!(matches!(again, Err(StoreError::ExecIdTaken)));
    place.assert_good();
    // The beginnings and the ends of the others may be gone as well.
    assert_eq!(trim(&store, count(3)).await, 10);
    place.assert_good();
    let old = store.overdue_execs(since(7)).await.unwrap();
    assert_eq!(old.len(), 2);
    assert_eq!(store.overdue_execs(since(6)).await.unwrap(), []);
    store.close().await;
    place.assert_good();
}

#[tokio::test]
async fn a_check_accepts_a_trimmed_beginning_and_nothing_else() {
    let place = Place::new();
    let store = place.open();
    let row = ready(&store, "box-1").await;
    let row = store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-1", ExecState::Finished)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-2", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-2", ExecState::Finished)).await.unwrap().sandbox;
    ticks(&store, &row, 2).await;
    store.trim_execs(&row.id, vec![exec_id("exec-1")]).await.unwrap();
    store.trim_events(&row.id, 3).await.unwrap();
    store.close().await;
    place.assert_good();
    for (sql, sentence) in [
        ("UPDATE trimmed SET events = 2", "its first event is 4"),
        ("UPDATE trimmed SET events = 4", "its first event is 4"),
        ("DELETE FROM trimmed", "its first event is 4"),
        ("DELETE FROM events WHERE sequence = 6", "event 7 follows 5"),
        ("UPDATE trimmed SET execs = 0", "its events tell of exec exec-1, which there is not"),
        ("DELETE FROM execs WHERE id = 'exec-2'", "its events tell of exec exec-2, which there is not"),
        ("DELETE FROM events WHERE sequence > 3", "it has no event"),
        ("INSERT INTO trimmed VALUES (9, 1, 0, 0)", "9 is the row of a trimmed sandbox that there is not"),
    ] {
        let broken = place.copy();
        Connection::open(broken.path()).unwrap().execute_batch(sql).unwrap();
        reseal(&broken.path());
        let found = check(&broken.path()).unwrap().violations;
        assert!(found.iter().any(|found| found.contains(sentence)), "{sql}: {found:#?}");
    }
    let broken = place.copy();
    Connection::open(broken.path()).unwrap().execute_batch("UPDATE trimmed SET execs = 7").unwrap();
    let found = check(&broken.path()).unwrap().violations;
    assert!(found.iter().any(|found| found.contains("what was trimmed of it cannot be read")), "{found:#?}");
    Store::open(&broken.path(), Options::default()).unwrap_err();
}

#[tokio::test]
async fn a_repair_keeps_a_trimmed_history_whole() {
    let place = Place::new();
    let store = place.open();
    let row = ready(&store, "box-1").await;
    let row = store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-1", ExecState::Finished)).await.unwrap().sandbox;
    ticks(&store, &row, 3).await;
    ready(&store, "box-2").await;
    store.trim_events(&row.id, 2).await.unwrap();
    store.trim_execs(&row.id, vec![exec_id("exec-1")]).await.unwrap();
    store.close().await;
    // Another sandbox is damaged.
    Connection::open(place.path())
        .unwrap()
        .execute_batch("UPDATE sandboxes SET image = 'x' WHERE id = 'box-2'")
        .unwrap();
    let report = repair(&place.path(), None).unwrap();
    assert_eq!(report.lost_sandboxes, ["box-2"]);
    place.assert_good();
    let incomplete: u64 = Connection::open(place.path())
        .unwrap()
        .query_row("SELECT count(*) FROM incomplete_sandboxes", [], |row| row.get(0))
        .unwrap();
    assert_eq!(incomplete, 0);
    let store = place.open();
    assert_eq!(store.events(&row.id, 1).unwrap_err(), EventsError::Expired { oldest: 3 });
    store.purge(&row.id).await.unwrap();
    store.close().await;
    place.assert_good();
}

#[tokio::test]
async fn a_deleted_sandbox_is_followed_to_its_end_and_read_from_its_beginning() {
    let place = Place::new();
    let store = place.open();
    let row = store.commit(create("box-1")).await.unwrap().sandbox;
    let mut follower = store.events(&row.id, 1).unwrap();
    let row = store.commit(go(&row, EventType::SandboxDeleteRequested, SandboxState::Deleting)).await.unwrap().sandbox;
    take(&mut follower, 1).await;
    let row = store.commit(go(&row, EventType::SandboxDeleted, SandboxState::Deleted)).await.unwrap().sandbox;
    for shrunk in [false, true] {
        if shrunk {
            store.shrink();
        }
        let mut behind = store.events(&row.id, 2).unwrap();
        assert_eq!(take(&mut behind, 1).await[0].kind, EventType::SandboxDeleted);
        assert_eq!(take(&mut store.events(&row.id, 0).unwrap(), 3).await.len(), 3);
    }
    assert_eq!(take(&mut follower, 1).await[0].kind, EventType::SandboxDeleted);
    // It can still be changed, without an event.
    let change = carrel_store::Change { events: vec![], ..go(&row, EventType::SandboxDeleted, SandboxState::Deleted) };
    store.commit(change).await.unwrap();
    store.close().await;
    place.assert_good();
}
