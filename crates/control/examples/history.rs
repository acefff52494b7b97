//! Measures what deleted sandboxes cost a daemon: `cargo run --release -p carrel-control --example history -- 50000`.

#![allow(clippy::unwrap_used, reason = "a measurement that fails is none")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use carrel_control::fake::FakeProvider;
use carrel_control::spec::{Host, SpecDraft};
use carrel_control::{Caller, Control, ControlSettings, CreateRequest, Retention};
use carrel_store::{
    Change, DesiredState, EventDetails, EventType, NewEvent, Sandbox, SandboxId, SandboxState, Store, StoreOptions,
    Timestamp,
};

const ME: Caller = Caller { user: 1000, group: 1000, trusted: true };

const LIFE: [(EventType, SandboxState); 5] = [
    (EventType::SandboxAccepted, SandboxState::Pending),
    (EventType::SandboxPreparing, SandboxState::Pending),
    (EventType::SandboxReady, SandboxState::Ready),
    (EventType::SandboxDeleteRequested, SandboxState::Deleting),
    (EventType::SandboxDeleted, SandboxState::Deleted),
];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, path, count] = arguments.as_slice() {
        return fill(path.as_ref(), count.parse().unwrap()).await;
    }
    let count: usize = arguments.get(1).map_or(50_000, |count| count.parse().unwrap());
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("carrel.db");
    // Another process fills the store, so that its memory is not counted.
    let filled = std::process::Command::new(&arguments[0]).arg(&path).arg(count.to_string()).status().unwrap();
    assert!(filled.success());
    let before = resident();
    let began = Instant::now();
    let store = Store::open(&path, StoreOptions::default()).unwrap();
    let opened = began.elapsed();
    let retention = Retention { deleted_count: 0, ..Retention::default() };
    let settings = ControlSettings { cleanup_ttl: Duration::ZERO, retention, ..ControlSettings::default() };
    let control = Control::start(store.clone(), Arc::new(FakeProvider::default()), settings).await.unwrap();
    let started = began.elapsed();
    let after = resident();
    println!(
        "{count} deleted sandboxes: store open after {opened:?}, control started after {started:?}, {} bytes each, {} MiB in all",
        after.saturating_sub(before) / count,
        after / 1024 / 1024
    );
    control.shutdown().await;
    store.close().await;
}

/// Fills a store with deleted sandboxes, as a daemon would leave them.
async fn fill(path: &std::path::Path, count: usize) {
    let seed = tempfile::tempdir().unwrap();
    let store = Store::open(&seed.path().join("carrel.db"), StoreOptions::default()).unwrap();
    let settings = ControlSettings { host: Host::default(), ..ControlSettings::default() };
    let control = Control::start(store.clone(), Arc::new(FakeProvider::default()), settings).await.unwrap();
    let draft = SpecDraft { image: "host".to_owned(), ..SpecDraft::default() };
    let request = CreateRequest { id: Some("seed".to_owned()), spec: Some(draft), ..CreateRequest::default() };
    let model = control.create(&ME, request).await.unwrap();
    control.shutdown().await;
    store.close().await;
    let store = Store::open(path, StoreOptions::default()).unwrap();
    let mut waiting = Vec::new();
    for number in 0..count {
        let event = |(kind, state)| NewEvent { kind, at: model.created_at, state, details: EventDetails::None };
        let sandbox = Sandbox {
            id: SandboxId::new(format!("b6a1f0c2-0000-4000-8000-{number:012}")).unwrap(),
            state: SandboxState::Deleted,
            desired: DesiredState::Deleted,
            incarnation: format!("{number:016x}"),
            disk: format!("{number:016x}"),
            last_sequence: 0,
            active_at: Timestamp(0),
            ..(*model).clone()
        };
        let events = LIFE.into_iter().map(event).collect();
        let change = Change { sandbox, new: true, reuses_id: false, execs: Vec::new(), events, synced: false };
        let store = store.clone();
        waiting.push(tokio::spawn(async move { store.commit(change).await.map(drop) }));
        if waiting.len() == 256 {
            for one in waiting.drain(..) {
                one.await.unwrap().unwrap();
            }
        }
    }
    for one in waiting {
        one.await.unwrap().unwrap();
    }
    store.close().await;
}

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
