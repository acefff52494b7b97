//! Cursors: each returns all events once and in order.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use carrel_store::{EventsError, Store, StoreOptions};

use crate::support::{TestStore, create, id, ready, take, tick, ticks};

#[tokio::test]
async fn a_cursor_reads_stored_events_in_pages_and_then_new_ones() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let row = ticks(&store, &row, 698).await;
    let mut events = store.events(&row.id, 0).unwrap();
    assert_eq!(events.newest(), 700);
    let past = take(&mut events, 700).await;
    assert!(past.iter().map(|event| event.sequence).eq(1..=700));
    let committed = store.commit(tick(&row)).await.unwrap();
    let live = take(&mut events, 1).await;
    assert!(Arc::ptr_eq(&live[0], &committed.events[0]), "a new event comes from the cache");
    assert_eq!(events.newest(), 700, "which was not there when the cursor was created");
    // Stored events equal the cached ones.
    let mut again = store.events(&row.id, 0).unwrap();
    assert_eq!(take(&mut again, 701).await[..700], past);
}

#[tokio::test]
async fn a_cursor_of_an_unknown_sandbox_or_after_a_future_sequence_is_refused() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    assert_eq!(store.events(&row.id, 3).unwrap_err(), EventsError::Future { newest: 2, oldest: 1 });
    assert_eq!(store.events(&id("nobody"), 0).unwrap_err(), EventsError::Unknown);
    let mut events = store.events(&row.id, 2).unwrap();
    let committed = store.commit(tick(&row)).await.unwrap();
    assert_eq!(take(&mut events, 1).await, committed.events);
}

#[tokio::test]
async fn a_cancelled_read_loses_no_event() {
    let test_store = TestStore::new();
    let store = Store::open(&test_store.path(), StoreOptions { recent: 1, ..StoreOptions::default() }).unwrap();
    let row = ready(&store, "box-1").await;
    let mut events = store.events(&row.id, 0).unwrap();
    let mut cancelled = 0;
    while cancelled < 3 {
        // While it reads the database, unless the read is already complete.
        let is_cancelled = poll_once(pin!(events.next())).is_none();
        match is_cancelled {
            true => cancelled += 1,
            false => events = store.events(&row.id, 0).unwrap(),
        }
    }
    assert_eq!(take(&mut events, 2).await.len(), 2);
    assert!(poll_once(pin!(events.next())).is_none());
    ticks(&store, &row, 1).await;
    assert_eq!(take(&mut events, 1).await[0].sequence, 3);
}

fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

//= control.snapshot-stream.snapshot-carries-sequence-stream
//= promises.control-plane.events-sandbox
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_cursors_see_every_event_of_concurrent_writers_once() {
    const SANDBOXES: usize = 4;
    const EVENTS: u64 = 400;
    let test_store = TestStore::new();
    // The cache is so small that late cursors read the database.
    let store = Store::open(&test_store.path(), StoreOptions { recent: 8, ..StoreOptions::default() }).unwrap();
    let mut work = Vec::new();
    let mut all = store.all_events(None);
    for number in 0..SANDBOXES {
        let row = store.commit(create(&format!("box-{number}"))).await.unwrap().sandbox;
        let writer = store.clone();
        let row_of_writer = row.clone();
        work.push(tokio::spawn(async move {
            ticks(&writer, &row_of_writer, EVENTS - 1).await;
        }));
        for late in 0..4 {
            let (store, row) = (store.clone(), row.clone());
            work.push(tokio::spawn(async move { listen(&store, &row.id, late * EVENTS / 4, EVENTS).await }));
        }
    }
    let mut last = 0;
    let mut observed = [0; SANDBOXES];
    while observed.iter().sum::<u64>() < EVENTS * SANDBOXES as u64 {
        for event in all.next().await.unwrap().unwrap() {
            assert!(event.position > last);
            last = event.position;
            let number: usize = event.sandbox.as_str().trim_start_matches("box-").parse().unwrap();
            observed[number] += 1;
            assert_eq!(event.sequence, observed[number]);
        }
    }
    for work in work {
        work.await.unwrap();
    }
    let mut past = store.all_events(Some(0));
    let mut count = 0;
    while count < EVENTS * SANDBOXES as u64 {
        count += past.next().await.unwrap().unwrap().len() as u64;
    }
    assert!(poll_once(pin!(past.next())).is_none());
    let statistics = store.statistics();
    assert_eq!(statistics.commits, EVENTS * SANDBOXES as u64);
    store.close().await;
    test_store.assert_good();
}

/// Starts after an event as soon as it exists, and reads the rest; the state that an event announces is visible with
/// it.
async fn listen(store: &Store, sandbox: &carrel_store::SandboxId, after: u64, until: u64) {
    let mut first = store.events(sandbox, 0).unwrap();
    let mut known = 0;
    while known < after {
        known = first.next().await.unwrap().unwrap().last().unwrap().sequence;
    }
    let mut events = store.events(sandbox, after).unwrap();
    let mut expected = after + 1;
    while expected <= until {
        for event in events.next().await.unwrap().unwrap() {
            assert_eq!(event.sequence, expected);
            expected += 1;
            let row = store.sandbox(sandbox).unwrap();
            assert!(row.last_sequence >= event.sequence);
        }
    }
}

/// Counts how often a future is polled.
struct PollCounter<F>(Pin<Box<F>>, Arc<AtomicUsize>);

impl<F: Future> Future for PollCounter<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.as_mut().poll(context)
    }
}

#[tokio::test]
async fn two_thousand_listeners_are_not_woken_by_events_of_other_sandboxes() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let mut rows = Vec::new();
    for number in 0..20 {
        rows.push(ready(&store, &format!("box-{number}")).await);
    }
    let looks = Arc::new(AtomicUsize::new(0));
    let mut waiting = Vec::new();
    for number in 0..2000 {
        let mut events = store.events(&rows[number % 20].id, 2).unwrap();
        let next = async move { events.next().await.unwrap().unwrap().len() };
        waiting.push(tokio::spawn(PollCounter(Box::pin(next), looks.clone())));
    }
    while looks.load(Ordering::SeqCst) < 2000 {
        tokio::task::yield_now().await;
    }
    ticks(&store, &rows[0], 1).await;
    for number in (0..2000).step_by(20) {
        assert_eq!((&mut waiting[number]).await.unwrap(), 1);
    }
    // All other woken tasks have run.
    ticks(&store, &rows[1], 0).await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(looks.load(Ordering::SeqCst), 2100);
    for one in &waiting {
        one.abort();
    }
}
