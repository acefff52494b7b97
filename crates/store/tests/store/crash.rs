//! A killed daemon loses no acknowledged commit.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use carrel_store::{ExecState, SandboxState, Store, StoreOptions, check};

use crate::support::{TestStore, id, ready, run, tick, ticks};

const STORE_PATH: &str = "CARREL_STORE_TO_FILL";

/// Commits until it is killed, and prints every acknowledged commit.
#[tokio::main(flavor = "current_thread")]
async fn fill(path: &std::ffi::OsStr) {
    let store = Store::open(path.as_ref(), StoreOptions::default()).unwrap();
    let mut work = Vec::new();
    for number in 0..8 {
        let store = store.clone();
        work.push(tokio::spawn(async move {
            let mut row = ready(&store, &format!("box-{number}")).await;
            for round in 0.. {
                let exec = format!("exec-{number}-{round}");
                for change in [run(&row, &exec, ExecState::Running), tick(&row), run(&row, &exec, ExecState::Finished)]
                {
                    let mut change = change;
                    change.sandbox = (*row).clone();
                    change.synced = round % 3 == 0;
                    row = store.commit(change).await.unwrap().sandbox;
                    let line = format!("{} {}\n", row.id, row.last_sequence);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            }
        }));
    }
    for work in work {
        work.await.unwrap();
    }
}

#[test]
fn acknowledged_commits_survive_a_kill() {
    if let Some(path) = std::env::var_os(STORE_PATH) {
        return fill(&path);
    }
    for lines in [0, 1, 40, 700, 2500] {
        let test_store = TestStore::new();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::acknowledged_commits_survive_a_kill", "--exact", "--nocapture"])
            .env(STORE_PATH, test_store.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines_printed = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let is_acknowledgement = |line: &String| line.starts_with("box-");
        let mut acknowledged: Vec<_> = lines_printed.by_ref().filter(is_acknowledgement).take(lines).collect();
        child.kill().unwrap();
        acknowledged.extend(lines_printed.filter(is_acknowledgement));
        child.wait().unwrap();
        if lines == 0 && !test_store.path().exists() {
            continue;
        }
        // As it was left, and once more after it was reopened.
        assert_eq!(check(&test_store.path()).unwrap().violations, Vec::<String>::new());
        let store = test_store.open();
        for line in &acknowledged {
            let Some((name, sequence)) = line.split_once(' ') else { continue };
            // The last line may be incomplete.
            let Ok(sequence) = sequence.parse::<u64>() else { continue };
            assert!(store.sandbox(&id(name)).unwrap().last_sequence >= sequence, "{line}");
        }
        go_on(&store);
        test_store.assert_good();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn go_on(store: &Store) {
    for row in store.sandboxes() {
        let before = row.last_sequence;
        assert_eq!(ticks(store, &row, 1).await.last_sequence, before + 1, "the sequence has no gap");
        assert!(matches!(row.state, SandboxState::Pending | SandboxState::Ready));
    }
}
