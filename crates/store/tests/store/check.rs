//! The check of a store.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_store::{
    Change, EventType, ExecState, SandboxState, Store, StoreOptions, ViolationKind, check, check_with_marker,
};
use rusqlite::Connection;

use crate::support::{TestStore, backup, ready, reseal, run, tick, ticks, transition};

/// A store with at least one row of every kind.
async fn whole() -> TestStore {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let row = store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-1", ExecState::Finished)).await.unwrap().sandbox;
    store.commit(run(&row, "exec-2", ExecState::Running)).await.unwrap();
    let gone = ready(&store, "gone-1").await;
    let gone = store
        .commit(transition(&gone, EventType::SandboxDeleteRequested, SandboxState::Deleting))
        .await
        .unwrap()
        .sandbox;
    store.commit(transition(&gone, EventType::SandboxDeleted, SandboxState::Deleted)).await.unwrap();
    store.close().await;
    test_store
}

#[tokio::test]
async fn a_check_of_an_intact_store_in_use_counts_its_rows_and_finds_no_violation() {
    let test_store = whole().await;
    let report = check(&test_store.path()).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.sandboxes, report.execs, report.events), (2, 2, 9));
    let store = test_store.open();
    ready(&store, "box-2").await;
    let report = check(&test_store.path()).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.sandboxes, report.events), (3, 11));
}

/// Each kind of violation in rows whose checksums are right, a change that causes it, and a part of its sentence.
const SEALED: &[(ViolationKind, &str, &str)] = &[
    (ViolationKind::Gap, "DELETE FROM events WHERE sequence = 3 AND sandbox = 1", "sandbox box-1: event 4 follows 2"),
    (
        ViolationKind::FirstSequence,
        "DELETE FROM events WHERE sequence = 1 AND sandbox = 1",
        "sandbox box-1: its first event is 2",
    ),
    (
        ViolationKind::FirstType,
        "UPDATE events SET kind = 2 WHERE sequence = 1 AND sandbox = 1",
        "its first event is SandboxPreparing with Pending",
    ),
    (ViolationKind::NoEvents, "DELETE FROM events WHERE sandbox = 1", "sandbox box-1: it has no events"),
    (
        ViolationKind::NewestState,
        "UPDATE sandboxes SET state = 4 WHERE number = 1",
        "it is Stopped, but its newest event says Ready",
    ),
    (
        ViolationKind::NewestSequence,
        "UPDATE sandboxes SET last_sequence = 6 WHERE number = 1",
        "its newest event is 5, but its row says 6",
    ),
    (
        ViolationKind::Ceiling,
        "UPDATE sandboxes SET ceiling = 4 WHERE number = 1",
        "its newest event is above its ceiling, 4",
    ),
    (
        ViolationKind::Transition,
        "UPDATE events SET state = 6 WHERE sequence = 3 AND sandbox = 1",
        "at event 3 it went from Ready to Deleted",
    ),
    (
        ViolationKind::CommitOrder,
        "UPDATE events SET position = 1000 WHERE sequence = 2 AND sandbox = 1",
        "event 3 was committed before 2",
    ),
    (
        ViolationKind::ExecRunning,
        "UPDATE execs SET state = 1 WHERE id = 'exec-1'",
        "exec exec-1 is Running, but its events say that it ended",
    ),
    (ViolationKind::ExecEnds, "UPDATE execs SET state = 2 WHERE id = 'exec-2'", "exec exec-2 ended 0 times"),
    (
        ViolationKind::ExecOutcome,
        "UPDATE execs SET state = 3 WHERE id = 'exec-1'",
        "exec exec-1 is Failed, but its last event says otherwise",
    ),
    (
        ViolationKind::ExecEventOrder,
        "UPDATE events SET subject = 'exec-1' WHERE subject = 'exec-2'",
        "ExecStarted of exec exec-1, out of order",
    ),
    (
        ViolationKind::ExecStarts,
        "UPDATE events SET subject = 'exec-3' WHERE subject = 'exec-2'",
        "exec exec-2 was started 0 times",
    ),
    (
        ViolationKind::UnknownExec,
        "DELETE FROM execs WHERE id = 'exec-2'",
        "its events name exec exec-2, which does not exist",
    ),
    (
        ViolationKind::ExecEventWithoutExec,
        "UPDATE events SET about = 0 WHERE sequence = 3",
        "event 3 is about an exec but has no exec id",
    ),
    (
        ViolationKind::ExecEventState,
        "UPDATE events SET exec_state = 2 WHERE sequence = 5",
        "event 5 is ExecStarted but has exec state Finished",
    ),
    (
        ViolationKind::ExecOutlived,
        "UPDATE execs SET sandbox = 2 WHERE id = 'exec-2'",
        "exec exec-2 is Running in a deleted sandbox",
    ),
    (
        ViolationKind::ExecWithoutSandbox,
        "UPDATE execs SET sandbox = 9 WHERE id = 'exec-2'",
        "exec-2 is an exec without a sandbox",
    ),
    (
        ViolationKind::SandboxNotReserved,
        "DELETE FROM reserved_sandboxes WHERE id = 'box-1'",
        "box-1 is a sandbox whose id is not reserved",
    ),
    (ViolationKind::ExecNotReserved, "DELETE FROM reserved_execs", "exec-1 is an exec whose id is not reserved"),
    (
        ViolationKind::PauseState,
        "UPDATE events SET kind = 15, state = 4 WHERE sequence = 2 AND sandbox = 1",
        "is SandboxPaused of a sandbox in state Stopped",
    ),
    (ViolationKind::UnreadableEvent, "UPDATE events SET kind = 99 WHERE sequence = 2", "an event cannot be read"),
    (ViolationKind::UnreadableSandbox, "UPDATE sandboxes SET labels = '?'", "a sandbox cannot be read"),
    (ViolationKind::Gap, "INSERT INTO gaps VALUES (1, 2, 9, 0)", "event 3 follows 2"),
    (
        ViolationKind::GapWithoutSandbox,
        "INSERT INTO gaps VALUES (7, 2, 9, 0)",
        "2 is the start of a gap without a sandbox",
    ),
    (
        ViolationKind::TrimmedWithoutSandbox,
        "INSERT INTO trimmed VALUES (9, 1, 0, 0)",
        "9 is the row of a trimmed sandbox that does not exist",
    ),
    (
        ViolationKind::EventWithoutSandbox,
        "DELETE FROM sandboxes WHERE number = 2",
        "is the position of an event without a sandbox",
    ),
];

/// The same with checksums that are wrong.
const UNSEALED: &[(ViolationKind, &str, &str)] = &[
    (ViolationKind::UnreadableExec, "UPDATE execs SET exit_code = 7 WHERE id = 'exec-1'", "an exec cannot be read"),
    (ViolationKind::UnreadableGap, "INSERT INTO gaps VALUES (1, 2, 9, 0)", "a gap cannot be read"),
    (
        ViolationKind::UnreadableTrimmed,
        "INSERT INTO trimmed VALUES (1, 0, 0, 7)",
        "its retention record cannot be read",
    ),
];

//= promises.control-plane.fit-together-store
#[tokio::test]
async fn every_kind_of_violation_is_reported() {
    let test_store = whole().await;
    let mut tested = BTreeSet::new();
    for (cases, is_sealed) in [(SEALED, true), (UNSEALED, false)] {
        for (kind, sql, sentence) in cases {
            let broken = test_store.copy();
            Connection::open(broken.path()).unwrap().execute_batch(sql).unwrap();
            if is_sealed {
                reseal(&broken.path());
            }
            let report = check(&broken.path()).unwrap();
            assert!(report.violations.iter().any(|found| found.contains(sentence)), "{sql}: {:#?}", report.violations);
            assert!(report.kinds.contains(kind), "{sql}: {:?}", report.kinds);
            tested.insert(*kind);
        }
    }
    // No statement of SQL causes these. Their tests: a_damaged_index_is_reported, a_missing_log_is_reported and
    // missing_events_are_reported.
    tested.extend([ViolationKind::DamagedDatabase, ViolationKind::LogMissing, ViolationKind::EventsMissing]);
    assert_eq!(tested, ViolationKind::ALL.iter().copied().collect(), "a kind has no case");
    assert_eq!(ViolationKind::ALL.len(), 33);
}

//= promises.control-plane.fit-together-store
#[tokio::test]
async fn a_missing_log_is_reported() {
    let test_store = TestStore::new();
    let store = test_store.open();
    ready(&store, "box-1").await;
    let copy = TestStore::new();
    copy.take_file(&test_store);
    assert!(check(&copy.path()).unwrap().kinds.contains(&ViolationKind::LogMissing));
    assert!(check(&test_store.path()).unwrap().is_good(), "the control");
}

//= promises.control-plane.fit-together-store
#[tokio::test]
async fn missing_events_are_reported() {
    let test_store = TestStore::new();
    let store = test_store.open_at_home("boot-1");
    let row = ready(&store, "box-1").await;
    store.close().await;
    let before = std::fs::read(test_store.path()).unwrap();
    let store = test_store.open_at_home("boot-1");
    store.commit(Change { synced: true, ..tick(&row) }).await.unwrap();
    store.close().await;
    let marker = test_store.marker();
    assert!(check_with_marker(&test_store.path(), Some(&marker)).unwrap().is_good(), "the control");
    std::fs::write(test_store.path(), before).unwrap();
    let report = check_with_marker(&test_store.path(), Some(&marker)).unwrap();
    assert_eq!(report.kinds, [ViolationKind::EventsMissing].into(), "{:?}", report.violations);
}

#[tokio::test]
async fn a_recorded_gap_is_not_a_violation() {
    let test_store = whole().await;
    let connection = Connection::open(test_store.path()).unwrap();
    connection.execute_batch("UPDATE events SET sequence = 10 WHERE sequence = 5 AND sandbox = 1").unwrap();
    connection.execute_batch("UPDATE sandboxes SET last_sequence = 10 WHERE number = 1").unwrap();
    reseal(&test_store.path());
    assert_eq!(check(&test_store.path()).unwrap().violations, ["sandbox box-1: event 10 follows 4"]);
    connection.execute_batch("INSERT INTO gaps VALUES (1, 4, 9, 0)").unwrap();
    reseal(&test_store.path());
    test_store.assert_good();
}

//= promises.control-plane.fit-together-store
#[tokio::test]
async fn a_damaged_index_is_reported() {
    let test_store = whole().await;
    let mut bytes = std::fs::read(test_store.path()).unwrap();
    // An index in the wrong order.
    let at = bytes.windows(6).rposition(|bytes| bytes == b"gone-1").unwrap();
    bytes[at..at + 6].copy_from_slice(b"aaaa-1");
    std::fs::write(test_store.path(), bytes).unwrap();
    let report = check(&test_store.path()).unwrap();
    assert!(report.kinds.contains(&ViolationKind::DamagedDatabase), "{:?}", report.violations);
}

#[test]
fn a_store_in_use_by_another_process_is_consistent_at_any_time_and_after_a_kill() {
    const STORE_PATH: &str = "CARREL_STORE_TO_WRITE";
    if let Some(path) = std::env::var_os(STORE_PATH) {
        return write_without_end(path.as_ref());
    }
    let test_store = TestStore::new();
    let mut last = 0;
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("check::a_store_in_use_by_another_process_is_consistent_at_any_time_and_after_a_kill")
            .args(["--exact", "--nocapture"])
            .env(STORE_PATH, test_store.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        for _ in 0..8 {
            // Each check comes after so many changes that the log was reset.
            assert!(lines.any(|line| line == "written"));
            let report = check(&test_store.path()).unwrap();
            assert_eq!(report.violations, Vec::<String>::new());
            assert!(report.events >= last.max(700), "{} after {last}", report.events);
            last = report.events;
        }
        backup(&test_store.path(), &test_store.backups().join("backup"), true).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        test_store.assert_good();
    }
}

#[test]
fn a_reader_that_meets_the_end_of_a_transaction_retries() {
    const STORE_PATH: &str = "CARREL_STORE_TO_HOLD";
    /// The offset of the second copy of the header: while the copies differ, a writer is at work.
    const SECOND_HEADER: u64 = 48;
    if let Some(path) = std::env::var_os(STORE_PATH) {
        return hold_open(path.as_ref());
    }
    let test_store = TestStore::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("check::a_reader_that_meets_the_end_of_a_transaction_retries")
        .args(["--exact", "--nocapture"])
        .env(STORE_PATH, test_store.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "written"));
    let index = test_store.path().with_extension("db-shm");
    // It stays open: closing it would release the locks of the readers.
    let index = std::fs::File::options().read(true).write(true).open(index).unwrap();
    let mut header = [0; 48];
    index.read_exact_at(&mut header, SECOND_HEADER).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                index.write_all_at(&[0xff; 48], SECOND_HEADER).unwrap();
                std::thread::yield_now();
                index.write_all_at(&header, SECOND_HEADER).unwrap();
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = (0..50)
            .map(|_| {
                let origin = Store::inspect(&test_store.path(), None);
                let copied = backup(&test_store.path(), &test_store.backups().join("backup"), true);
                (check(&test_store.path()).map(|report| report.is_good()), origin.is_ok(), copied.is_ok())
            })
            .collect();
        is_done.store(true, Ordering::Relaxed);
        for (is_good, is_inspected, is_copied) in results {
            assert!(is_good.unwrap() && is_inspected && is_copied);
        }
    });
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Keeps a store open until its standard input ends.
#[tokio::main(flavor = "current_thread")]
async fn hold_open(path: &Path) {
    let options = StoreOptions { index_lock: Some(carrel_sandbox::lock_byte), ..StoreOptions::default() };
    let store = Store::open(path, options).unwrap();
    ready(&store, "box-1").await;
    println!("\nwritten");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Commits changes until it is killed.
#[tokio::main(flavor = "current_thread")]
async fn write_without_end(path: &Path) {
    let options = StoreOptions { index_lock: Some(carrel_sandbox::lock_byte), ..StoreOptions::default() };
    let store = Store::open(path, options).unwrap();
    let id = crate::support::id("box-1");
    let mut row = match store.sandbox(&id) {
        Some(row) => row,
        None => ready(&store, "box-1").await,
    };
    loop {
        row = ticks(&store, &row, 700).await;
        println!("\nwritten");
    }
}
