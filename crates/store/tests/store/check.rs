//! What a look through the store finds.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_store::{EventType, ExecState, Options, SandboxState, Store, check};
use rusqlite::Connection;

use crate::support::{Place, backup, go, ready, reseal, run, ticks};

/// A store with one of everything.
async fn whole() -> Place {
    let place = Place::new();
    let store = place.open();
    let row = ready(&store, "box-1").await;
    let row = store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-1", ExecState::Finished)).await.unwrap().sandbox;
    store.commit(run(&row, "exec-2", ExecState::Running)).await.unwrap();
    let gone = ready(&store, "gone-1").await;
    let gone =
        store.commit(go(&gone, EventType::SandboxDeleteRequested, SandboxState::Deleting)).await.unwrap().sandbox;
    store.commit(go(&gone, EventType::SandboxDeleted, SandboxState::Deleted)).await.unwrap();
    store.close().await;
    place
}

#[tokio::test]
async fn a_whole_store_is_counted_and_good_even_while_it_works() {
    let place = whole().await;
    let report = check(&place.path()).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.sandboxes, report.execs, report.events), (2, 2, 9));
    let store = place.open();
    ready(&store, "box-2").await;
    let report = check(&place.path()).unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.sandboxes, report.events), (3, 11));
}

//= promises.control-plane.fit-together-store
#[tokio::test]
async fn every_broken_promise_is_named() {
    let place = whole().await;
    for (sql, sentence) in [
        ("DELETE FROM events WHERE sequence = 3 AND sandbox = 1", "sandbox box-1: event 4 follows 2"),
        ("DELETE FROM events WHERE sequence = 1 AND sandbox = 1", "sandbox box-1: its first event is 2"),
        (
            "UPDATE events SET kind = 2 WHERE sequence = 1 AND sandbox = 1",
            "its first event is SandboxPreparing with Pending",
        ),
        ("DELETE FROM events WHERE sandbox = 1", "sandbox box-1: it has no event"),
        ("UPDATE sandboxes SET state = 4 WHERE number = 1", "it is Stopped, and its newest event says Ready"),
        ("UPDATE sandboxes SET last_sequence = 6 WHERE number = 1", "its newest event is 5, and its row says 6"),
        ("UPDATE sandboxes SET ceiling = 4 WHERE number = 1", "its newest event is above its ceiling, 4"),
        ("UPDATE events SET state = 6 WHERE sequence = 3 AND sandbox = 1", "at event 3 it went from Ready to Deleted"),
        ("UPDATE events SET position = 1000 WHERE sequence = 2 AND sandbox = 1", "event 3 was committed before 2"),
        ("UPDATE execs SET state = 1 WHERE id = 'exec-1'", "exec exec-1 runs, and has ended"),
        ("UPDATE execs SET state = 2 WHERE id = 'exec-2'", "exec exec-2 ended 0 times"),
        ("UPDATE execs SET state = 3 WHERE id = 'exec-1'", "exec exec-1 is Failed, and its last event says otherwise"),
        (
            "UPDATE events SET subject = 'exec-1' WHERE subject = 'exec-2'",
            "ExecStarted of exec-1, which is not its turn",
        ),
        ("UPDATE events SET subject = 'exec-3' WHERE subject = 'exec-2'", "exec exec-2 was started 0 times"),
        ("DELETE FROM execs WHERE id = 'exec-2'", "its events tell of exec exec-2, which there is not"),
        ("UPDATE events SET about = 0 WHERE sequence = 3", "event 3 is about an exec and names none"),
        ("UPDATE events SET exec_state = 2 WHERE sequence = 5", "event 5 is ExecStarted and says Finished"),
        ("UPDATE execs SET sandbox = 2 WHERE id = 'exec-2'", "exec exec-2 runs in a sandbox that is gone"),
        ("UPDATE execs SET sandbox = 9 WHERE id = 'exec-2'", "exec-2 is an exec of no sandbox"),
        ("DELETE FROM reserved_sandboxes WHERE id = 'box-1'", "box-1 is a sandbox whose id is not reserved"),
        ("DELETE FROM reserved_execs", "exec-1 is an exec whose id is not reserved"),
        (
            "UPDATE events SET kind = 15, state = 4 WHERE sequence = 2 AND sandbox = 1",
            "is SandboxPaused of one that is Stopped",
        ),
        ("UPDATE events SET kind = 99 WHERE sequence = 2", "an event cannot be read"),
        ("UPDATE sandboxes SET labels = '?'", "a sandbox cannot be read"),
        ("INSERT INTO gaps VALUES (1, 2, 9, 0)", "event 3 follows 2"),
        ("INSERT INTO gaps VALUES (7, 2, 9, 0)", "2 begins a gap of no sandbox"),
        ("DELETE FROM sandboxes WHERE number = 2", "is an event of no sandbox"),
    ] {
        let broken = place.copy();
        Connection::open(broken.path()).unwrap().execute_batch(sql).unwrap();
        reseal(&broken.path());
        let found = check(&broken.path()).unwrap().violations;
        assert!(found.iter().any(|found| found.contains(sentence)), "{sql}: {found:#?}");
    }
}

#[tokio::test]
async fn a_recorded_gap_is_no_hole() {
    let place = whole().await;
    let connection = Connection::open(place.path()).unwrap();
    connection.execute_batch("UPDATE events SET sequence = 10 WHERE sequence = 5 AND sandbox = 1").unwrap();
    connection.execute_batch("UPDATE sandboxes SET last_sequence = 10 WHERE number = 1").unwrap();
    reseal(&place.path());
    assert_eq!(check(&place.path()).unwrap().violations, ["sandbox box-1: event 10 follows 4"]);
    connection.execute_batch("INSERT INTO gaps VALUES (1, 4, 9, 0)").unwrap();
    reseal(&place.path());
    place.assert_good();
}

#[tokio::test]
async fn a_damaged_file_is_noticed() {
    let place = whole().await;
    let mut bytes = std::fs::read(place.path()).unwrap();
    // An index that lost its order.
    let at = bytes.windows(6).rposition(|bytes| bytes == b"gone-1").unwrap();
    bytes[at..at + 6].copy_from_slice(b"aaaa-1");
    std::fs::write(place.path(), bytes).unwrap();
    let found = check(&place.path()).unwrap().violations;
    assert!(!found.is_empty());
}

#[test]
fn a_store_that_another_process_writes_is_good_at_every_moment_and_when_that_is_killed() {
    const PLACE: &str = "CARREL_STORE_TO_WRITE";
    if let Some(path) = std::env::var_os(PLACE) {
        return write_without_end(path.as_ref());
    }
    let place = Place::new();
    let mut last = 0;
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("check::a_store_that_another_process_writes_is_good_at_every_moment_and_when_that_is_killed")
            .args(["--exact", "--nocapture"])
            .env(PLACE, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        for _ in 0..8 {
            // Each is after so many changes that the log was begun anew.
            assert!(lines.any(|line| line == "written"));
            let report = check(&place.path()).unwrap();
            assert_eq!(report.violations, Vec::<String>::new());
            assert!(report.events >= last.max(700), "{} after {last}", report.events);
            last = report.events;
        }
        backup(&place.path(), &place.backups().join("backup"), true).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        place.assert_good();
    }
}

#[test]
fn a_reader_that_meets_the_end_of_a_transaction_reads_again() {
    const PLACE: &str = "CARREL_STORE_TO_HOLD";
    /// Where the second copy of the header begins: while they differ, a writer is at work.
    const SECOND_HEADER: u64 = 48;
    if let Some(path) = std::env::var_os(PLACE) {
        return hold_open(path.as_ref());
    }
    let place = Place::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("check::a_reader_that_meets_the_end_of_a_transaction_reads_again")
        .args(["--exact", "--nocapture"])
        .env(PLACE, place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "written"));
    let index = place.path().with_extension("db-shm");
    // It stays open to the end: to close it would release the locks of those who read.
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
                let origin = Store::inspect(&place.path(), None);
                let copied = backup(&place.path(), &place.backups().join("backup"), true);
                (check(&place.path()).map(|report| report.is_good()), origin.is_ok(), copied.is_ok())
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

/// Has a store open until its input ends.
#[tokio::main(flavor = "current_thread")]
async fn hold_open(path: &Path) {
    let options = Options { index_lock: Some(carrel_sandbox::lock_byte), ..Options::default() };
    let store = Store::open(path, options).unwrap();
    ready(&store, "box-1").await;
    println!("\nwritten");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Makes changes until somebody kills it.
#[tokio::main(flavor = "current_thread")]
async fn write_without_end(path: &Path) {
    let options = Options { index_lock: Some(carrel_sandbox::lock_byte), ..Options::default() };
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
