//! What happens between two steps of the writer.

#[allow(dead_code, reason = "tests outside use the rest")]
#[path = "../../tests/store/support.rs"]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use self::support::{Place, create, exec_id, go, id, ready, run, take, tick};
use super::*;
use crate::backend::{Batch, Loaded, Range};
use crate::{EventType, SandboxState};

/// A database that waits before and after every batch until it is let on.
struct Gated {
    sqlite: Sqlite,
    sizes: Sender<usize>,
    before: Receiver<()>,
    after: Receiver<()>,
    broken: Arc<AtomicBool>,
}

/// Whoever lets it on.
struct Gates {
    sizes: Receiver<usize>,
    before: Sender<()>,
    after: Sender<()>,
    broken: Arc<AtomicBool>,
}

impl Backend for Gated {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.sqlite.load()
    }

    fn commit(&mut self, batch: Vec<Change>) -> Result<Batch, StoreError> {
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
        range: Range,
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

impl Gates {
    /// Lets one batch through, both gates.
    fn pass(&self) {
        self.before.send(()).unwrap();
        self.after.send(()).unwrap();
    }
}

fn gated(place: &Place) -> (Store, Gates) {
    let sqlite = Sqlite::open(&place.path(), "boot-1", &Options::default()).unwrap();
    let (sizes, seen) = channel();
    let (open_before, before) = channel();
    let (open_after, after) = channel();
    let broken = Arc::new(AtomicBool::new(false));
    let gates = Gates { sizes: seen, before: open_before, after: open_after, broken: broken.clone() };
    let backend = Gated { sqlite, sizes, before, after, broken };
    let reader = Arc::new(SqliteReader::new(&place.path(), None));
    (Store::over(Box::new(backend), reader, &Options::default(), StoreOrigin::Unmarked).unwrap(), gates)
}

/// Asks for a change, and returns when it is queued.
async fn queue(store: &Store, change: Change) -> tokio::task::JoinHandle<Result<Committed, StoreError>> {
    let asking = store.clone();
    let before = store.queue.sender.as_ref().unwrap().capacity();
    let asked = tokio::spawn(async move { asking.commit(change).await });
    while store.queue.sender.as_ref().unwrap().capacity() == before {
        tokio::task::yield_now().await;
    }
    asked
}

/// A store with a sandbox that runs, and with a batch of one at its first gate, so that what is queued now is one batch.
async fn busy(place: &Place) -> (Store, Gates, Arc<Sandbox>) {
    {
        let store = place.open_on("boot-1");
        ready(&store, "box-1").await;
        store.close().await;
    }
    let (store, gates) = gated(place);
    let row = store.sandbox(&id("box-1")).unwrap();
    let asking = store.clone();
    tokio::spawn(async move { asking.commit(create("other")).await });
    tokio::task::yield_now().await;
    assert_eq!(gates.sizes.recv().unwrap(), 1);
    (store, gates, row)
}

#[tokio::test]
async fn what_waits_is_committed_at_once_and_a_refusal_touches_nothing_else() {
    let place = Place::new();
    let (store, gates, row) = busy(&place).await;
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
    assert_eq!(store.statistics(), Statistics { commits: 3, batches: 2, synced: 2 });
    assert!(store.exec(&exec_id("exec-2")).await.unwrap().is_none());
    store.close().await;
    place.assert_good();
}

#[tokio::test]
async fn a_batch_that_fails_fails_alone_and_nobody_sees_it() {
    let place = Place::new();
    let (store, gates, row) = busy(&place).await;
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
    assert_eq!(take(&mut events, 1).await, next.events, "and the next is what was not");
    assert_eq!(next.events[0].sequence, 3);
}

//= promises.control-plane.read-after-event
#[tokio::test]
async fn what_is_committed_and_not_published_is_seen_by_nobody() {
    let place = Place::new();
    let (store, gates, row) = busy(&place).await;
    let mut started = run(&row, "exec-1", ExecState::Running);
    started.events.push(go(&row, EventType::SandboxStopRequested, SandboxState::Ready).events.remove(0));
    let started = queue(&store, started).await;
    gates.pass();
    gates.before.send(()).unwrap();
    // It is in the database as soon as somebody else can read it there.
    while SqliteReader::new(&place.path(), None).exec(&exec_id("exec-1")).unwrap().is_none() {
        thread::yield_now();
    }
    assert_eq!(store.exec(&exec_id("exec-1")).await.unwrap(), None);
    assert_eq!(store.execs(&row.id).await.unwrap(), []);
    assert_eq!(store.sandbox(&row.id).unwrap(), row);
    assert_eq!(store.events(&row.id, 3).unwrap_err(), EventsError::Future { newest: 2, oldest: 1 });
    let mut past = store.events(&row.id, 0).unwrap();
    assert_eq!(take(&mut past, 2).await.len(), 2, "what is read from the file ends where the past ends");
    gates.after.send(()).unwrap();
    started.await.unwrap().unwrap();
    assert_eq!(take(&mut past, 2).await[0].sequence, 3);
    assert_eq!(store.exec(&exec_id("exec-1")).await.unwrap().unwrap().1, 4);
    assert_eq!(store.execs(&row.id).await.unwrap().len(), 1);
}

#[tokio::test]
async fn whoever_stops_listening_leaves_nothing_behind() {
    let place = Place::new();
    let store = place.open();
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
async fn a_queue_that_is_full_makes_others_wait_and_loses_nothing() {
    let place = Place::new();
    let store = Store::open(&place.path(), Options { queue: 1, batch: 2, ..Options::default() }).unwrap();
    let asked: Vec<_> = (0..40)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(create(&format!("box-{number}"))).await })
        })
        .collect();
    for asked in asked {
        asked.await.unwrap().unwrap();
    }
    assert_eq!(store.sandboxes().len(), 40);
    assert!(store.statistics().batches >= 20, "no batch is larger than it may be");
}
