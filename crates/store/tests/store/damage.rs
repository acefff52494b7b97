//! A row with a wrong checksum is reported, and never served.

use std::fs;

use carrel_store::{ExecState, SandboxState, Store, StoreError, StoreOptions, check};
use rusqlite::Connection;

use crate::support::{TestStore, exec_id, id, ready, run, take, tick, ticks};

/// A store with two sandboxes, ended execs, and more events than are cached.
pub(crate) async fn whole() -> TestStore {
    let test_store = TestStore::new();
    let store = test_store.open_on("boot-1");
    for name in ["box-1", "box-2"] {
        let mut row = ready(&store, name).await;
        for number in 0..3 {
            let exec = format!("{name}-exec-{number}");
            row = store.commit(run(&row, &exec, ExecState::Running)).await.unwrap().sandbox;
            row = store.commit(run(&row, &exec, ExecState::Finished)).await.unwrap().sandbox;
        }
        ticks(&store, &row, 200).await;
    }
    store.close().await;
    test_store
}

pub(crate) fn sql(test_store: &TestStore, sql: &str) {
    Connection::open(test_store.path()).unwrap().execute_batch(sql).unwrap();
}

fn what(error: StoreError) -> String {
    assert!(error.hint().unwrap().contains("`carrel store repair`"));
    match error {
        StoreError::Damaged { what } => what,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_damaged_exec_or_event_fails_only_its_own_read() {
    let test_store = whole().await;
    sql(&test_store, "UPDATE execs SET exit_code = 7 WHERE id = 'box-1-exec-1'");
    sql(&test_store, "UPDATE events SET error_message = 'other' WHERE sandbox = 1 AND sequence = 9");
    let store = test_store.open_on("boot-1");
    let error = store.exec(&exec_id("box-1-exec-1")).await.unwrap_err();
    assert_eq!(what(error), "exec \"box-1-exec-1\" (row 2) is damaged: its checksum differs");
    assert!(store.execs(&id("box-1")).await.is_err());
    assert!(store.exec(&exec_id("box-1-exec-0")).await.unwrap().is_some());
    assert_eq!(store.execs(&id("box-2")).await.unwrap().len(), 3);
    let error = store.events(&id("box-1"), 0).unwrap().next().await.unwrap_err();
    assert_eq!(what(error), "event 9 of sandbox row 1 (position 9) is damaged: its checksum differs");
    assert!(store.all_events(Some(0)).next().await.is_err());
    take(&mut store.events(&id("box-1"), 9).unwrap(), 100).await;
    take(&mut store.events(&id("box-2"), 0).unwrap(), 208).await;
    for name in ["box-1", "box-2"] {
        ticks(&store, &store.sandbox(&id(name)).unwrap(), 3).await;
    }
    store.close().await;
    let found = check(&test_store.path()).unwrap().violations;
    assert!(found.iter().any(|found| found.contains("event 9 of sandbox row 1")), "{found:?}");
    assert!(found.iter().any(|found| found.contains("exec \"box-1-exec-1\"")), "{found:?}");
}

//= promises.control-plane.damage-store
#[tokio::test]
async fn every_value_of_every_table_is_part_of_its_checksum() {
    let test_store = whole().await;
    test_store.assert_good();
    let connection = Connection::open(test_store.path()).unwrap();
    connection.execute_batch("INSERT INTO gaps VALUES (1, 5, 5, 0)").unwrap();
    drop(connection);
    crate::support::reseal(&test_store.path());
    test_store.assert_good();
    for table in ["sandboxes", "execs", "events", "gaps"] {
        let connection = Connection::open(test_store.path()).unwrap();
        let statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        for column in columns {
            let broken = test_store.copy();
            let value = format!(
                "CASE typeof({column}) WHEN 'integer' THEN {column} + 1000000 WHEN 'text' THEN {column} || 'x'
                    WHEN 'blob' THEN CAST({column} || 'x' AS BLOB) ELSE 1 END"
            );
            let key = if table == "gaps" { "sandbox = 1" } else { "rowid = 1" };
            sql(&broken, &format!("UPDATE {table} SET {column} = {value} WHERE {key}"));
            assert!(!check(&broken.path()).unwrap().is_good(), "{table}.{column}");
        }
    }
}

#[tokio::test]
async fn a_damaged_sandbox_row_fails_the_open_and_is_not_changed() {
    let test_store = whole().await;
    sql(&test_store, "UPDATE sandboxes SET owner = 0 WHERE id = 'box-2'");
    for boot in ["boot-1", "boot-1", "boot-2", "boot-2"] {
        let error = Store::open(&test_store.path(), crate::support::on(boot)).unwrap_err();
        assert_eq!(what(error), "sandbox \"box-2\" (row 2) is damaged: its checksum differs");
    }
}

#[tokio::test]
async fn a_broken_page_fails_the_open() {
    let test_store = whole().await;
    let root: u64 = Connection::open(test_store.path())
        .unwrap()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'sandboxes'", [], |row| row.get(0))
        .unwrap();
    let mut bytes = fs::read(test_store.path()).unwrap();
    let at = usize::try_from(root - 1).unwrap() * 4096;
    bytes[at..at + 4096].fill(0xa5);
    fs::write(test_store.path(), bytes).unwrap();
    let error = Store::open(&test_store.path(), StoreOptions::default()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn timestamps_never_decrease_when_the_clock_is_set_back() {
    let test_store = TestStore::new();
    let store = test_store.open_on("boot-1");
    let mut row = ready(&store, "box-1").await;
    let mut times = Vec::new();
    for at in [100, 50, 120, 7] {
        let mut change = tick(&row);
        change.events.push(change.events[0].clone());
        (change.events[0].at.0, change.events[1].at.0) = (at, at - 1);
        let committed = store.commit(change).await.unwrap();
        times.extend(committed.events.iter().map(|event| event.at.0));
        row = committed.sandbox;
    }
    assert_eq!(times, [100, 100, 100, 100, 120, 120, 120, 120]);
    store.close().await;
    let store = test_store.open_on("boot-2");
    let row = store.sandbox(&row.id).unwrap();
    let stopped = crate::support::transition(&row, carrel_store::EventType::SandboxStopped, SandboxState::Stopped);
    let event = store.commit(stopped).await.unwrap().events[0].clone();
    assert_eq!(event.at.0, 120, "the newest timestamp is known after a reopen");
    assert_eq!(take(&mut store.events(&row.id, 10).unwrap(), 1).await, [event]);
    assert_eq!(ready(&store, "box-2").await.last_sequence, 2, "other sandboxes have separate timestamps");
    assert_eq!(take(&mut store.events(&id("box-2"), 0).unwrap(), 1).await[0].at.0, 7);
}

#[tokio::test]
async fn whether_a_store_has_sandboxes_is_read_without_a_check_of_other_rows() {
    let missing = TestStore::new();
    assert!(Store::has_sandboxes(&missing.path()).is_err());
    fs::write(missing.path(), "").unwrap();
    assert!(!Store::has_sandboxes(&missing.path()).unwrap());
    let test_store = whole().await;
    sql(&test_store, "UPDATE events SET error_message = 'other'");
    assert!(Store::has_sandboxes(&test_store.path()).unwrap());
    sql(&test_store, "DELETE FROM sandboxes");
    assert!(!Store::has_sandboxes(&test_store.path()).unwrap());
    assert!(!check(&test_store.path()).unwrap().is_good());
    // One in use is read with its log; without it, it is not a whole store.
    let test_store = TestStore::new();
    let store = test_store.open();
    assert!(!Store::has_sandboxes(&test_store.path()).unwrap());
    ready(&store, "box-1").await;
    assert!(Store::has_sandboxes(&test_store.path()).unwrap());
    let copy = TestStore::new();
    fs::copy(test_store.path(), copy.path()).unwrap();
    assert!(matches!(Store::has_sandboxes(&copy.path()), Err(StoreError::LogMissing(_))));
}
