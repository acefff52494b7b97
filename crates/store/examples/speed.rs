//! Measures the store: `cargo run --release -p carrel-store --example speed`.

#![allow(clippy::unwrap_used, reason = "a measurement that fails is none")]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/store/support.rs"]
mod support;

use std::time::{Duration, Instant};

use carrel_store::Store;

use self::support::{TestStore, ready, tick};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let loads = [(false, 1, 5000), (false, 64, 400), (true, 1, 300), (true, 64, 50)];
    let marked = [false, true].into_iter().flat_map(|marked| loads.map(|load| (marked, load)));
    for (marked, (synced, writers, each)) in marked {
        let test_store = TestStore::new();
        let store = if marked { test_store.open_at_home("boot-1") } else { test_store.open_on("boot-1") };
        let began = Instant::now();
        let mut work = Vec::new();
        for number in 0..writers {
            work.push(tokio::spawn(write(store.clone(), number, each, synced)));
        }
        for work in work {
            work.await.unwrap();
        }
        let (took, statistics) = (began.elapsed(), store.statistics());
        let rate = f64::from(writers * each) / took.as_secs_f64();
        println!("marked {marked}, synced {synced}, {writers} writers: {rate:.0} commits/s, {statistics:?}");
    }
    latency().await;
    start().await;
}

/// The time to open a store with 100,000 events.
async fn start() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for number in 0..100 {
        let mut row = ready(&store, &format!("box-{number}")).await;
        for _ in 0..10 {
            let mut change = tick(&row);
            change.events = vec![change.events[0].clone(); 100];
            row = store.commit(change).await.unwrap().sandbox;
        }
    }
    store.close().await;
    let began = Instant::now();
    let store = test_store.open();
    println!("start with 100,000 events: {:?}", began.elapsed());
    store.close().await;
    let began = Instant::now();
    let events = carrel_store::check(&test_store.path()).unwrap().events;
    println!("check of {events} events: {:?}", began.elapsed());
}

async fn write(store: Store, number: u32, count: u32, synced: bool) {
    let mut row = ready(&store, &format!("box-{number}")).await;
    for _ in 0..count {
        let mut change = tick(&row);
        change.synced = synced;
        row = store.commit(change).await.unwrap().sandbox;
    }
}

/// The time from the call of a commit until its event reaches a listener.
async fn latency() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let mut row = ready(&store, "box-1").await;
    let mut events = store.events(&row.id, 2).unwrap();
    let (send, mut receive) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok(Some(_)) = events.next().await {
            if send.send(Instant::now()).await.is_err() {
                return;
            }
        }
    });
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..2000 {
        let began = Instant::now();
        row = store.commit(tick(&row)).await.unwrap().sandbox;
        took.push(receive.recv().await.unwrap() - began);
    }
    took.sort();
    println!("commit to event: p50 {:?}, p99 {:?}, most {:?}", took[1000], took[1980], took[1999]);
}
