//! Stores of every schema version, as the code of that version wrote them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use carrel_store::{
    EventType, ExecId, ExecState, IdNamespace, Pairs, Sandbox, SandboxId, SandboxState, Store, Timestamp, check,
};
use rusqlite::Connection;

use crate::support::{TestStore, create, id, ready, run, take, tick, ticks, transition};

/// The directory of the fixtures.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores")
}

fn version(path: &Path) -> u32 {
    Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// The version that the current code writes.
async fn current() -> u32 {
    let test_store = TestStore::new();
    test_store.open().close().await;
    version(&test_store.path())
}

/// Everything that can be read from a store, and the next sequence of each sandbox.
async fn contents(store: &Store) -> String {
    let mut text = String::new();
    let mut rows = store.sandboxes();
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    for row in rows {
        writeln!(text, "{row:#?}").unwrap();
        for exec in store.execs(&row.id).await.unwrap() {
            writeln!(text, "{exec:#?}").unwrap();
        }
        let events = take(&mut store.events(&row.id, 0).unwrap(), stored(store, &row).await).await;
        for event in events {
            writeln!(text, "{event:?}").unwrap();
        }
        if row.state != SandboxState::Deleted {
            let next = store.commit(tick(&row)).await.unwrap().events[0].clone();
            writeln!(text, "next: sequence {}", next.sequence).unwrap();
        }
    }
    let running: Vec<_> =
        store.running_execs(None).iter().map(|(exec, sequence)| format!("{} at {sequence}", exec.id)).collect();
    writeln!(text, "running: {running:?}").unwrap();
    text
}

/// The number of stored events of a sandbox, which gaps do not count for.
async fn stored(store: &Store, row: &Sandbox) -> usize {
    let mut events = store.events(&row.id, 0).unwrap();
    let mut count = 0;
    loop {
        let batch = events.next().await.unwrap().unwrap();
        count += batch.len();
        if batch.last().unwrap().sequence == row.last_sequence {
            return count;
        }
    }
}

/// A sandbox of another user, with text of every kind.
fn foreign() -> carrel_store::Change {
    let mut change = create("demo");
    let id = SandboxId::new("demo").unwrap().within(IdNamespace::User(1000));
    change.sandbox.id = id;
    change.sandbox.labels = Pairs::from([("Straße".into(), "日本語 🦀".into()), ("empty".into(), String::new())]);
    change.sandbox.spec = r#"{"image":"host","env":{"A":"é\u0000\"\n"}}"#.into();
    change.sandbox.reason = "weil: „so“".into();
    change.sandbox.idle_ms = None;
    change.sandbox.active_at = Timestamp(i64::MAX);
    change
}

/// Fills a store with at least one row of every kind.
async fn fill(test_store: &TestStore) -> TestStore {
    use SandboxState::{Deleted, Deleting, Failed, Pending, Stopped};
    let store = test_store.open_on("boot-1");
    store.commit(create("pending")).await.unwrap();
    let row = ready(&store, "ready").await;
    let row = store.commit(run(&row, "exec-finished", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-finished", ExecState::Finished)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-failed", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-failed", ExecState::Failed)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-cancelled", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-cancelled", ExecState::Cancelled)).await.unwrap().sandbox;
    store.commit(run(&row, "exec-running", ExecState::Running)).await.unwrap();
    let row = store.commit(create("failed")).await.unwrap().sandbox;
    store.commit(transition(&row, EventType::SandboxFailed, Failed)).await.unwrap();
    let row = ready(&store, "stopped").await;
    store.commit(transition(&row, EventType::SandboxStopped, Stopped)).await.unwrap();
    let row = ready(&store, "resumed").await;
    let row = store.commit(transition(&row, EventType::SandboxStopped, Stopped)).await.unwrap().sandbox;
    store.commit(transition(&row, EventType::SandboxAccepted, Pending)).await.unwrap();
    for (name, gone) in [("deleting", false), ("deleted", true), ("purged", true)] {
        let row = ready(&store, name).await;
        let row = store.commit(transition(&row, EventType::SandboxDeleteRequested, Deleting)).await.unwrap().sandbox;
        if gone {
            store.commit(transition(&row, EventType::SandboxDeleted, Deleted)).await.unwrap();
        }
    }
    store.purge(&id("purged")).await.unwrap();
    let row = ready(&store, "trimmed").await;
    let row = store.commit(run(&row, "exec-trimmed", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-trimmed", ExecState::Finished)).await.unwrap().sandbox;
    ticks(&store, &row, 3).await;
    store.trim_events(&row.id, 3).await.unwrap();
    store.trim_execs(&row.id, vec![ExecId::new("exec-trimmed").unwrap()]).await.unwrap();
    let row = store.commit(foreign()).await.unwrap().sandbox;
    let row = store.commit(transition(&row, EventType::SandboxReady, SandboxState::Ready)).await.unwrap().sandbox;
    let mut change = run(&row, "held", ExecState::Running);
    let exec = ExecId::new("held").unwrap().within(IdNamespace::User(1000));
    for started in &mut change.execs {
        let carrel_store::ExecChange::New(started) = started else { continue };
        started.id = exec.clone();
    }
    if let carrel_store::EventDetails::Exec { exec: named, .. } = &mut change.events[0].details {
        *named = exec;
    }
    store.commit(change).await.unwrap();
    // A power cut, after which one sandbox has a gap after its events and the others before them.
    let left = test_store.copy();
    drop(store);
    let store = left.open_on("boot-2");
    ticks(&store, &store.sandbox(&id("ready")).unwrap(), 2).await;
    store.close().await;
    left
}

#[tokio::test]
#[ignore = "writes the fixture of the current schema version, once"]
async fn write_the_store_of_the_current_version() {
    let (path, snapshot) = fixture(current().await);
    assert!(!path.exists(), "{} is written only once", path.display());
    let left = fill(&TestStore::new()).await;
    Connection::open(left.path()).unwrap().execute_batch("PRAGMA journal_mode=DELETE; VACUUM").unwrap();
    fs::copy(left.path(), &path).unwrap();
    fs::write(snapshot, contents(&left.open_on("boot-3")).await).unwrap();
}

fn fixture(version: u32) -> (PathBuf, PathBuf) {
    (directory().join(format!("v{version}.db")), directory().join(format!("v{version}.txt")))
}

//= promises.control-plane.damage-store
#[tokio::test]
async fn a_store_of_every_version_is_read_as_it_was_written() {
    let current = current().await;
    for found in 1..=current {
        let (path, snapshot) = fixture(found);
        assert!(path.exists(), "schema version {found} has no fixture: see crates/store/tests/stores/README.md");
        let test_store = TestStore::new();
        fs::copy(&path, test_store.path()).unwrap();
        assert_eq!(version(&test_store.path()), found);
        test_store.assert_good();
        let store = test_store.open_on("boot-3");
        test_store.assert_good();
        assert_eq!(contents(&store).await, fs::read_to_string(&snapshot).unwrap(), "version {found}");
        store.close().await;
        assert_eq!(version(&test_store.path()), current);
        assert_eq!(check(&test_store.path()).unwrap().violations, Vec::<String>::new());
    }
}
