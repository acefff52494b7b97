//! Random changes, closes and kills, compared with a simple model.

use std::collections::{BTreeMap, BTreeSet};

use carrel_store::SandboxState::{Deleted, Deleting, Failed, Pending, Ready, Stopped};
use carrel_store::{Change, EventType, EventsError, ExecState, SandboxState, Store, StoreError};

use crate::support::{TestStore, create, exec_id, id, run, take, transition};

/// An action, its sandbox, and its parameter.
type Action = (u8, u8, u8);

/// The expected contents of the store.
#[derive(Default)]
struct StoreModel {
    sandboxes: BTreeMap<String, ModelSandbox>,
    taken: BTreeSet<String>,
    execs: BTreeMap<String, (String, ExecState)>,
    taken_execs: BTreeSet<String>,
}

struct ModelSandbox {
    state: SandboxState,
    /// How many of its first events were removed.
    trimmed: usize,
    events: Vec<(EventType, SandboxState)>,
}

const STEPS: [(SandboxState, EventType, SandboxState); 9] = [
    (Pending, EventType::SandboxReady, Ready),
    (Pending, EventType::SandboxFailed, Failed),
    (Ready, EventType::SandboxStopRequested, Ready),
    (Ready, EventType::SandboxStopped, Stopped),
    (Stopped, EventType::SandboxAccepted, Pending),
    (Failed, EventType::SandboxDeleteRequested, Deleting),
    (Stopped, EventType::SandboxDeleteRequested, Deleting),
    (Deleting, EventType::SandboxDeleted, Deleted),
    (Deleting, EventType::SandboxFailed, Failed),
];

#[test]
fn the_store_equals_a_simple_model_after_random_actions() {
    bolero::check!().with_iterations(64).with_type::<Vec<Action>>().for_each(|actions| run_actions(actions));
}

#[tokio::main(flavor = "current_thread")]
async fn run_actions(actions: &[Action]) {
    let mut test_store = TestStore::new();
    let mut store = test_store.open();
    let mut model = StoreModel::default();
    for &(action, which, how) in actions {
        let name = format!("box-{}", which % 4);
        match action % 8 {
            0 => model.create(&store, &name).await,
            1..=3 => model.step(&store, &name, how).await,
            4 => model.start(&store, &name, &format!("exec-{}", how % 8)).await,
            5 => model.end(&store, &format!("exec-{}", how % 8), how).await,
            6 if how % 4 == 0 => model.purge(&store, &name).await,
            6 if how % 4 == 1 => model.trim_events(&store, &name, how / 4).await,
            6 if how % 4 == 2 => model.trim_exec(&store, &format!("exec-{}", how / 4 % 8)).await,
            7 if how % 8 == 0 => {
                store.close().await;
                store = test_store.open();
            }
            7 if how % 8 == 1 => {
                // Simulates a kill: no write is in progress, so the files are consistent.
                let left = test_store.copy();
                drop(store);
                test_store = left;
                store = test_store.open();
            }
            _ => {}
        }
    }
    model.verify(&store).await;
    store.close().await;
    test_store.assert_good();
}

impl StoreModel {
    async fn create(&mut self, store: &Store, name: &str) {
        let made = store.commit(create(name)).await;
        if self.taken.insert(name.into()) {
            assert_eq!(made.unwrap().events[0].sequence, 1);
            let events = vec![(EventType::SandboxAccepted, Pending)];
            self.sandboxes.insert(name.into(), ModelSandbox { state: Pending, trimmed: 0, events });
        } else {
            assert!(matches!(made, Err(StoreError::SandboxIdTaken)));
        }
    }

    async fn step(&mut self, store: &Store, name: &str, how: u8) {
        let (Some(row), Some(known)) = (store.sandbox(&id(name)), self.sandboxes.get_mut(name)) else {
            assert!(store.sandbox(&id(name)).is_none() && !self.sandboxes.contains_key(name));
            return;
        };
        let running = self.execs.values().any(|(of, state)| of == name && *state == ExecState::Running);
        let steps: Vec<_> =
            STEPS.iter().filter(|step| step.0 == known.state && !(step.2 == Deleted && running)).collect();
        let Some((_, kind, state)) = steps.get(usize::from(how) % steps.len().max(1)) else { return };
        let mut change = transition(&row, *kind, *state);
        change.synced = how > 200;
        if how.is_multiple_of(5) {
            let mut stale: Change = change.clone();
            stale.sandbox.last_sequence += 1;
            assert!(matches!(store.commit(stale).await, Err(StoreError::Stale)));
        }
        let committed = store.commit(change).await.unwrap();
        known.state = *state;
        known.events.push((*kind, *state));
        assert_eq!(committed.sandbox.last_sequence, known.events.len() as u64);
    }

    async fn start(&mut self, store: &Store, name: &str, exec: &str) {
        let Some(row) = store.sandbox(&id(name)) else { return };
        let known = self.sandboxes.get_mut(name).unwrap();
        if known.state != Ready {
            return;
        }
        let started = store.commit(run(&row, exec, ExecState::Running)).await;
        if self.taken_execs.insert(exec.into()) {
            started.unwrap();
            self.execs.insert(exec.into(), (name.into(), ExecState::Running));
            known.events.push((EventType::ExecStarted, Ready));
        } else {
            assert!(matches!(started, Err(StoreError::ExecIdTaken)));
        }
    }

    async fn end(&mut self, store: &Store, exec: &str, how: u8) {
        let Some((name, state)) = self.execs.get_mut(exec) else { return };
        if *state != ExecState::Running {
            return;
        }
        let (kind, ended) = [
            (EventType::ExecFinished, ExecState::Finished),
            (EventType::ExecFailed, ExecState::Failed),
            (EventType::ExecCancelled, ExecState::Cancelled),
        ][usize::from(how) % 3];
        let row = store.sandbox(&id(name)).unwrap();
        store.commit(run(&row, exec, ended)).await.unwrap();
        *state = ended;
        let known = self.sandboxes.get_mut(name).unwrap();
        known.events.push((kind, known.state));
    }

    async fn purge(&mut self, store: &Store, name: &str) {
        let purged = store.purge(&id(name)).await;
        assert_eq!(purged.is_ok(), self.sandboxes.remove(name).is_some());
        self.execs.retain(|_, (of, _)| of != name);
    }

    async fn trim_events(&mut self, store: &Store, name: &str, through: u8) {
        let removed = store.trim_events(&id(name), through.into()).await.unwrap();
        let Some(known) = self.sandboxes.get_mut(name) else {
            assert_eq!(removed, 0);
            return;
        };
        // The newest event is never removed.
        let trimmed = usize::from(through).min(known.events.len() - 1).max(known.trimmed);
        assert_eq!(removed, trimmed - known.trimmed);
        known.trimmed = trimmed;
    }

    async fn trim_exec(&mut self, store: &Store, exec: &str) {
        let Some((name, state)) = self.execs.get(exec).cloned() else { return };
        let removed = store.trim_execs(&id(&name), vec![exec_id(exec)]).await.unwrap();
        assert_eq!(removed, usize::from(state != ExecState::Running));
        if removed == 1 {
            self.execs.remove(exec);
        }
    }

    /// Compares everything that can be read with the model.
    async fn verify(&self, store: &Store) {
        assert_eq!(store.sandboxes().len(), self.sandboxes.len());
        for (name, known) in &self.sandboxes {
            let row = store.sandbox(&id(name)).unwrap();
            let count = known.events.len();
            assert_eq!((row.state, row.last_sequence), (known.state, count as u64));
            for after in [0, count / 2, count] {
                let events = store.events(&row.id, after as u64);
                if (1..known.trimmed).contains(&after) {
                    let oldest = known.trimmed as u64 + 1;
                    assert_eq!(events.unwrap_err(), EventsError::Expired { oldest });
                    continue;
                }
                // A cursor from 0 returns everything that is kept.
                let after = after.max(known.trimmed);
                let observed = take(&mut events.unwrap(), count - after).await;
                assert!(observed.iter().map(|event| event.sequence).eq(after as u64 + 1..=count as u64));
                assert!(
                    observed.iter().map(|event| (event.kind, event.state)).eq(known.events[after..].iter().copied())
                );
            }
            let execs = store.execs(&row.id).await.unwrap();
            assert_eq!(execs.len(), self.execs.values().filter(|(of, _)| of == name).count());
        }
        for (exec, (name, state)) in &self.execs {
            let (found, sequence) = store.exec(&exec_id(exec)).await.unwrap().unwrap();
            assert_eq!((found.state, found.sandbox.as_str()), (*state, name.as_str()));
            assert_eq!(sequence, self.sandboxes[name].events.len() as u64);
        }
        let running = store.running_execs(None);
        assert!(running.is_sorted_by_key(|(exec, _)| exec.id.clone()));
        let expected = self.execs.iter().filter(|(_, (_, state))| *state == ExecState::Running).map(|(exec, _)| exec);
        assert!(running.iter().map(|(exec, _)| exec.id.as_str()).eq(expected));
        for exec in &self.taken_execs {
            assert_eq!(store.exec(&exec_id(exec)).await.unwrap().is_some(), self.execs.contains_key(exec));
        }
    }
}
