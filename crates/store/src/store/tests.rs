//! Interleavings of the writer thread with readers.

#[allow(dead_code, reason = "tests outside use the rest")]
#[path = "../../tests/store/support.rs"]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use self::support::{TestStore, create, exec_id, id, ready, run, take, tick, transition};
use super::*;
use crate::backend::{CommittedBatch, EventRange, LoadedRows};
use crate::{EventType, SandboxState};

/// A backend that blocks before and after every batch until its gate opens.
struct GatedBackend {
    sqlite: Sqlite,
    sizes: Sender<usize>,
    before: Receiver<()>,
    after: Receiver<()>,
    broken: Arc<AtomicBool>,
}

/// The controls of a [`GatedBackend`].
struct BackendGates {
    sizes: Receiver<usize>,
    before: Sender<()>,
    after: Sender<()>,
    broken: Arc<AtomicBool>,
}

impl Backend for GatedBackend {
    fn load(&mut self) -> Result<LoadedRows, StoreError> {
        self.sqlite.load()
    }

    fn commit(&mut self, batch: Vec<Change>) -> Result<CommittedBatch, StoreError> {
        let _ = self.sizes.send(batch.len());
        let _ = self.before.recv();
        if self.broken.load(Ordering::SeqCst) {
            return Err(StoreError::database(io::Error::other("broken")));
        }
        let done = self.sqlite.commit(batch);
        let _ = self.after.recv();
        done
    }

    fn purge(&mut self, sandbox: &SandboxId) -> Result<(), StoreError> {
        self.sqlite.purge(sandbox)
    }

    fn trim_events(
        &mut self,
        sandbox: &SandboxId,
        range: EventRange,
        announce: &mut dyn FnMut(Sequence),
    ) -> Result<usize, StoreError> {
        self.sqlite.trim_events(sandbox, range, announce)
    }

    fn trim_execs(&mut self, sandbox: &SandboxId, execs: &[ExecId]) -> Result<usize, StoreError> {
        self.sqlite.trim_execs(sandbox, execs)
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.sqlite.close()
    }
}

impl BackendGates {
    /// Lets one batch pass both gates.
    fn pass(&self) {
        self.before.send(()).unwrap();
        self.after.send(()).unwrap();
    }
}

fn gated(test_store: &TestStore) -> (Store, BackendGates) {
    let sqlite = Sqlite::open(&test_store.path(), "boot-1", &StoreOptions::default()).unwrap();
    let (sizes, observed) = channel();
    let (open_before, before) = channel();
    let (open_after, after) = channel();
    let broken = Arc::new(AtomicBool::new(false));
    let gates = BackendGates { sizes: observed, before: open_before, after: open_after, broken: broken.clone() };
    let backend = GatedBackend { sqlite, sizes, before, after, broken };
    let reader = Arc::new(SqliteReader::new(&test_store.path(), None));
    (Store::with_backend(Box::new(backend), reader, &StoreOptions::default(), StoreOrigin::Unmarked).unwrap(), gates)
}

/// Starts a commit, and returns when it is queued.
async fn queue(store: &Store, change: Change) -> tokio::task::JoinHandle<Result<CommittedChange, StoreError>> {
    let committer = store.clone();
    let before = store.queue.sender.as_ref().unwrap().capacity();
    let task = tokio::spawn(async move { committer.commit(change).await });
    while store.queue.sender.as_ref().unwrap().capacity() == before {
        tokio::task::yield_now().await;
    }
    task
}

/// A store with a running sandbox and a batch of one change at its first gate, so that all changes queued now form one
/// batch.
async fn busy(test_store: &TestStore) -> (Store, BackendGates, Arc<Sandbox>) {
    {
        let store = test_store.open_on("boot-1");
        ready(&store, "box-1").await;
        store.close().await;
    }
    let (store, gates) = gated(test_store);
    let row = store.sandbox(&id("box-1")).unwrap();
    let committer = store.clone();
    tokio::spawn(async move { committer.commit(create("other")).await });
    tokio::task::yield_now().await;
    assert_eq!(gates.sizes.recv().unwrap(), 1);
    (store, gates, row)
}

#[tokio::test]
async fn queued_changes_are_one_batch_and_a_refused_change_does_not_affect_the_others() {
    let test_store = TestStore::new();
    let (store, gates, row) = busy(&test_store).await;
    let first = queue(&store, run(&row, "exec-1", ExecState::Running)).await;
    let stale = queue(&store, run(&row, "exec-2", ExecState::Running)).await;
    let taken = queue(&store, create("box-1")).await;
    let last = queue(&store, create("box-2")).await;
    gates.pass();
    gates.pass();
    assert_eq!(first.await.unwrap().unwrap().events[0].sequence, 3);
    assert!(matches!(stale.await.unwrap(), Err(StoreError::Stale)));
    assert!(matches!(taken.await.unwrap(), Err(StoreError::SandboxIdTaken)));
    assert_eq!(last.await.unwrap().unwrap().events[0].sequence, 1);
    assert_eq!(gates.sizes.recv().unwrap(), 4);
    assert_eq!(store.statistics(), StoreStatistics { commits: 3, batches: 2, synced: 2 });
    assert!(store.exec(&exec_id("exec-2")).await.unwrap().is_none());
    store.close().await;
    test_store.assert_good();
}

#[tokio::test]
async fn a_failed_batch_is_invisible_and_does_not_affect_the_next_one() {
    let test_store = TestStore::new();
    let (store, gates, row) = busy(&test_store).await;
    let mut events = store.events(&row.id, 2).unwrap();
    let lost = queue(&store, tick(&row)).await;
    let lost_too = queue(&store, create("box-2")).await;
    gates.pass();
    assert_eq!(gates.sizes.recv().unwrap(), 2);
    gates.broken.store(true, Ordering::SeqCst);
    gates.before.send(()).unwrap();
    for lost in [lost, lost_too] {
        assert!(matches!(lost.await.unwrap(), Err(StoreError::Database(_))));
    }
    assert_eq!(store.sandbox(&row.id).unwrap(), row);
    assert!(store.sandbox(&id("box-2")).is_none());
    gates.broken.store(false, Ordering::SeqCst);
    gates.pass();
    let next = store.commit(tick(&row)).await.unwrap();
    assert_eq!(take(&mut events, 1).await, next.events, "the next batch reuses its sequence");
    assert_eq!(next.events[0].sequence, 3);
}

//= promises.control-plane.read-after-event
#[tokio::test]
async fn a_committed_change_is_invisible_until_it_is_published() {
    let test_store = TestStore::new();
    let (store, gates, row) = busy(&test_store).await;
    let mut started = run(&row, "exec-1", ExecState::Running);
    started.events.push(transition(&row, EventType::SandboxStopRequested, SandboxState::Ready).events.remove(0));
    let started = queue(&store, started).await;
    gates.pass();
    gates.before.send(()).unwrap();
    // It is in the database as soon as another connection can read it.
    while SqliteReader::new(&test_store.path(), None).exec(&exec_id("exec-1")).unwrap().is_none() {
        thread::yield_now();
    }
    assert_eq!(store.exec(&exec_id("exec-1")).await.unwrap(), None);
    assert_eq!(store.execs(&row.id).await.unwrap(), []);
    assert_eq!(store.sandbox(&row.id).unwrap(), row);
    assert_eq!(store.events(&row.id, 3).unwrap_err(), EventsError::Future { newest: 2, oldest: 1 });
    let mut past = store.events(&row.id, 0).unwrap();
    assert_eq!(take(&mut past, 2).await.len(), 2, "stored events end at the published sequence");
    gates.after.send(()).unwrap();
    started.await.unwrap().unwrap();
    assert_eq!(take(&mut past, 2).await[0].sequence, 3);
    assert_eq!(store.exec(&exec_id("exec-1")).await.unwrap().unwrap().1, 4);
    assert_eq!(store.execs(&row.id).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_dropped_cursor_removes_its_subscription() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let first = store.events(&row.id, 0).unwrap();
    let second = store.events(&row.id, 0).unwrap();
    assert!(store.events(&id("nobody"), 0).is_err());
    assert_eq!(store.shared.listeners.sandboxes(), 1);
    drop(first);
    assert_eq!(store.shared.listeners.sandboxes(), 1);
    drop(second);
    assert_eq!(store.shared.listeners.sandboxes(), 0);
}

#[tokio::test]
async fn a_full_queue_blocks_callers_and_loses_nothing() {
    let test_store = TestStore::new();
    let store =
        Store::open(&test_store.path(), StoreOptions { queue: 1, batch: 2, ..StoreOptions::default() }).unwrap();
    let tasks: Vec<_> = (0..40)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(create(&format!("box-{number}"))).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(store.sandboxes().len(), 40);
    assert!(store.statistics().batches >= 20, "no batch exceeds the limit");
}
