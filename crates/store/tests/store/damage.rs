//! A row that is not what was written is named, and never served.

use std::fs;

use carrel_store::{ExecState, Options, SandboxState, Store, StoreError, check};
use rusqlite::Connection;

use crate::support::{Place, exec_id, id, ready, run, take, tick, ticks};

/// A store with two sandboxes, execs that ended, and more events than are remembered.
pub(crate) async fn whole() -> Place {
    let place = Place::new();
    let store = place.open_on("boot-1");
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
    place
}

pub(crate) fn sql(place: &Place, sql: &str) {
    Connection::open(place.path()).unwrap().execute_batch(sql).unwrap();
}

fn what(error: StoreError) -> String {
    assert!(error.hint().unwrap().contains("`carrel store repair`"));
    match error {
        StoreError::Damaged { what } => what,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_damaged_exec_or_event_fails_the_read_of_it_and_nothing_else() {
    let place = whole().await;
    sql(&place, "UPDATE execs SET exit_code = 7 WHERE id = 'box-1-exec-1'");
    sql(&place, "UPDATE events SET error_message = 'other' WHERE sandbox = 1 AND sequence = 9");
    let store = place.open_on("boot-1");
    let error = store.exec(&exec_id("box-1-exec-1")).await.unwrap_err();
    assert_eq!(what(error), "exec \"box-1-exec-1\" (row 2) is not what was written: its checksum differs");
    assert!(store.execs(&id("box-1")).await.is_err());
    assert!(store.exec(&exec_id("box-1-exec-0")).await.unwrap().is_some());
    assert_eq!(store.execs(&id("box-2")).await.unwrap().len(), 3);
    let error = store.events(&id("box-1"), 0).unwrap().next().await.unwrap_err();
    assert_eq!(what(error), "event 9 of sandbox row 1 (position 9) is not what was written: its checksum differs");
    assert!(store.all_events(Some(0)).next().await.is_err());
    take(&mut store.events(&id("box-1"), 9).unwrap(), 100).await;
    take(&mut store.events(&id("box-2"), 0).unwrap(), 208).await;
    for name in ["box-1", "box-2"] {
        ticks(&store, &store.sandbox(&id(name)).unwrap(), 3).await;
    }
    store.close().await;
    let found = check(&place.path()).unwrap().violations;
    assert!(found.iter().any(|found| found.contains("event 9 of sandbox row 1")), "{found:?}");
    assert!(found.iter().any(|found| found.contains("exec \"box-1-exec-1\"")), "{found:?}");
}

//= promises.control-plane.damage-store
#[tokio::test]
async fn every_value_of_every_table_counts() {
    let place = whole().await;
    place.assert_good();
    let connection = Connection::open(place.path()).unwrap();
    connection.execute_batch("INSERT INTO gaps VALUES (1, 5, 5, 0)").unwrap();
    drop(connection);
    crate::support::reseal(&place.path());
    place.assert_good();
    for table in ["sandboxes", "execs", "events", "gaps"] {
        let connection = Connection::open(place.path()).unwrap();
        let statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        for column in columns {
            let broken = place.copy();
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
async fn a_damaged_sandbox_is_not_served_and_stays_as_it_is() {
    let place = whole().await;
    sql(&place, "UPDATE sandboxes SET owner = 0 WHERE id = 'box-2'");
    for boot in ["boot-1", "boot-1", "boot-2", "boot-2"] {
        let error = Store::open(&place.path(), crate::support::on(boot)).unwrap_err();
        assert_eq!(what(error), "sandbox \"box-2\" (row 2) is not what was written: its checksum differs");
    }
}

#[tokio::test]
async fn a_broken_page_is_found_at_the_start() {
    let place = whole().await;
    let root: u64 = Connection::open(place.path())
        .unwrap()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'sandboxes'", [], |row| row.get(0))
        .unwrap();
    let mut bytes = fs::read(place.path()).unwrap();
    let at = usize::try_from(root - 1).unwrap() * 4096;
    bytes[at..at + 4096].fill(0xa5);
    fs::write(place.path(), bytes).unwrap();
    let error = Store::open(&place.path(), Options::default()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_clock_that_is_set_back_moves_no_event() {
    let place = Place::new();
    let store = place.open_on("boot-1");
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
    let store = place.open_on("boot-2");
    let row = store.sandbox(&row.id).unwrap();
    let stopped = crate::support::go(&row, carrel_store::EventType::SandboxStopped, SandboxState::Stopped);
    let event = store.commit(stopped).await.unwrap().events[0].clone();
    assert_eq!(event.at.0, 120, "it is known after a start");
    assert_eq!(take(&mut store.events(&row.id, 10).unwrap(), 1).await, [event]);
    assert_eq!(ready(&store, "box-2").await.last_sequence, 2, "others have times of their own");
    assert_eq!(take(&mut store.events(&id("box-2"), 0).unwrap(), 1).await[0].at.0, 7);
}
