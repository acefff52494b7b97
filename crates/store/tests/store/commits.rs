//! Commits and refusals.

use carrel_store::{Change, EventType, ExecChange, ExecState, SandboxState, Store, StoreError};

use crate::support::{TestStore, create, exec, exec_id, id, ready, run, tick, ticks, transition};

#[tokio::test]
async fn a_committed_change_is_visible_at_once_and_after_a_reopen() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let created = store.commit(create("box-1")).await.unwrap();
    assert_eq!(created.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1]);
    let row =
        store.commit(transition(&created.sandbox, EventType::SandboxReady, SandboxState::Ready)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-b", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-a", ExecState::Running)).await.unwrap().sandbox;
    let row = store.commit(run(&row, "exec-b", ExecState::Failed)).await.unwrap().sandbox;
    assert_eq!(row.last_sequence, 5);
    look(&store).await;
    store.close().await;
    test_store.assert_good();
    let again = test_store.open();
    assert_eq!(again.sandboxes(), [row]);
    look(&again).await;
}

async fn look(store: &Store) {
    let sandbox = id("box-1");
    let row = store.sandbox(&sandbox).unwrap();
    assert_eq!((row.state, row.last_sequence), (SandboxState::Ready, 5));
    let running = exec(&sandbox, "exec-a", ExecState::Running);
    let ended = exec(&sandbox, "exec-b", ExecState::Failed);
    assert_eq!(store.running_execs(None), [(running.clone().into(), 5)]);
    assert_eq!(store.running_execs(Some(&sandbox)), [(running.clone().into(), 5)]);
    assert_eq!(store.running_execs(Some(&id("nobody"))), []);
    assert_eq!(store.exec(&exec_id("exec-a")).await.unwrap(), Some((running.clone().into(), 5)));
    assert_eq!(store.exec(&exec_id("exec-b")).await.unwrap(), Some((ended.clone().into(), 5)));
    assert_eq!(store.exec(&exec_id("exec-c")).await.unwrap(), None);
    assert_eq!(store.execs(&sandbox).await.unwrap(), [ended.into(), running.into()]);
    assert_eq!(store.execs(&id("nobody")).await.unwrap(), []);
}

/// Whether an error is the expected one.
type Is = fn(&StoreError) -> bool;

#[tokio::test]
async fn a_refused_change_leaves_no_trace() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let other = ready(&store, "box-2").await;
    store.commit(run(&other, "taken", ExecState::Running)).await.unwrap();
    let mut later = run(&row, "fresh", ExecState::Running);
    later.execs.push(ExecChange::New(exec(&row.id, "taken", ExecState::Running)));
    let mut unknown_exec = run(&row, "fresh", ExecState::Running);
    unknown_exec.execs.push(ExecChange::Known(exec(&row.id, "nobody", ExecState::Failed)));
    let mut elsewhere = run(&row, "fresh", ExecState::Running);
    elsewhere.execs.push(ExecChange::Known(exec(&other.id, "taken", ExecState::Failed)));
    let mut stale = tick(&row);
    stale.sandbox.last_sequence -= 1;
    let mut unknown = tick(&row);
    unknown.sandbox.id = id("nobody");
    let mut odd = create("box-3");
    odd.sandbox.idle_ms = Some(u64::MAX);
    let refused: [(Change, Is); 7] = [
        (create("box-2"), |error| matches!(error, StoreError::SandboxIdTaken)),
        (later, |error| matches!(error, StoreError::ExecIdTaken)),
        (unknown_exec, |error| matches!(error, StoreError::Unknown)),
        (elsewhere, |error| matches!(error, StoreError::Unknown)),
        (stale, |error| matches!(error, StoreError::Stale)),
        (unknown, |error| matches!(error, StoreError::Unknown)),
        (odd, |error| matches!(error, StoreError::Database(_))),
    ];
    let wanted: Vec<_> = refused.iter().map(|(_, is)| *is).collect();
    let requested: Vec<_> = refused
        .into_iter()
        .map(|(change, _)| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(change).await })
        })
        .collect();
    let last = {
        let (store, change) = (store.clone(), run(&row, "fresh", ExecState::Running));
        tokio::spawn(async move { store.commit(change).await })
    };
    assert_eq!(last.await.unwrap().unwrap().events[0].sequence, 3);
    for (answer, is) in requested.into_iter().zip(wanted) {
        let error = answer.await.unwrap().unwrap_err();
        assert!(is(&error), "{error:?}");
    }
    assert_eq!(store.sandboxes().len(), 2);
    assert_eq!(store.execs(&row.id).await.unwrap().len(), 1);
    // A refused change has not reserved its id.
    store.commit(create("box-3")).await.unwrap();
    store.close().await;
    test_store.assert_good();
}

#[tokio::test]
async fn a_change_without_events_changes_the_row_alone() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let mut change = tick(&row);
    change.events.clear();
    change.sandbox.journal = 9;
    let committed = store.commit(change).await.unwrap();
    assert_eq!((committed.sandbox.journal, committed.sandbox.last_sequence), (9, 2));
    assert_eq!(store.sandbox(&row.id).unwrap().journal, 9);
    drop(store);
}

#[tokio::test]
async fn a_purged_sandbox_is_removed_but_its_ids_stay_reserved() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    store.commit(run(&row, "exec-1", ExecState::Running)).await.unwrap();
    let other = ready(&store, "box-2").await;
    let mut all = store.all_events(Some(0));
    let mut events = store.events(&row.id, 3).unwrap();
    store.purge(&row.id).await.unwrap();
    assert!(matches!(store.purge(&row.id).await, Err(StoreError::Unknown)));
    assert!(events.next().await.unwrap().is_none(), "its cursors end");
    assert!(store.sandbox(&row.id).is_none());
    assert!(store.running_execs(None).is_empty());
    assert!(store.exec(&exec_id("exec-1")).await.unwrap().is_none());
    assert!(store.execs(&row.id).await.unwrap().is_empty());
    let observed = all.next().await.unwrap().unwrap();
    assert!(observed.iter().all(|event| event.sandbox == other.id));
    let taken = || async {
        assert!(matches!(store.commit(create("box-1")).await, Err(StoreError::SandboxIdTaken)));
        let again = run(&other, "exec-1", ExecState::Running);
        assert!(matches!(store.commit(again).await, Err(StoreError::ExecIdTaken)));
    };
    taken().await;
    store.close().await;
    test_store.assert_good();
    let store = test_store.open();
    assert!(matches!(store.commit(create("box-1")).await, Err(StoreError::SandboxIdTaken)));
    // A position is not reused either, though its event was removed.
    let newest = observed.last().unwrap().position;
    store.purge(&other.id).await.unwrap();
    store.close().await;
    let store = test_store.open();
    let event = store.commit(create("box-3")).await.unwrap().events[0].clone();
    assert!(event.position > newest);
}

#[tokio::test]
async fn only_changes_that_request_it_are_fsynced() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    assert_eq!(store.statistics().synced, 1, "the create, but not the ready event");
    let row = ticks(&store, &row, 63).await;
    assert_eq!((row.last_sequence, store.statistics().synced), (65, 1), "up to the ceiling");
    let row = ticks(&store, &row, 1).await;
    assert_eq!(store.statistics().synced, 2, "above the ceiling");
    let mut change = tick(&row);
    change.synced = true;
    store.commit(change).await.unwrap();
    let statistics = store.statistics();
    assert_eq!((statistics.synced, statistics.commits, statistics.batches), (3, 67, 67));
}

#[tokio::test]
async fn a_closed_store_has_committed_the_queue_and_refuses_further_changes() {
    let test_store = TestStore::new();
    let store = test_store.open();
    let row = ready(&store, "box-1").await;
    let mut events = store.events(&row.id, 2).unwrap();
    let mut all = store.all_events(None);
    let queued: Vec<_> = (0..50)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(create(&format!("more-{number}"))).await })
        })
        .collect();
    // One iteration for the changes that are queued already.
    tokio::task::yield_now().await;
    store.close().await;
    store.close().await;
    let mut done = 0;
    for queued in queued {
        match queued.await.unwrap() {
            Ok(_) => done += 1,
            Err(error) => assert!(matches!(error, StoreError::Closed), "{error}"),
        }
    }
    assert!(done > 0);
    assert!(events.next().await.unwrap().is_none());
    assert!(all.next().await.unwrap().is_none());
    assert!(matches!(store.commit(tick(&row)).await, Err(StoreError::Closed)));
    assert!(matches!(store.purge(&row.id).await, Err(StoreError::Closed)));
    let again = test_store.open();
    assert_eq!(again.sandboxes().len(), done + 1);
}
