//! A daemon that is killed loses nothing that it told anybody.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use carrel_store::{ExecState, Options, SandboxState, Store, check};

use crate::support::{Place, id, ready, run, tick, ticks};

const PLACE: &str = "CARREL_STORE_TO_FILL";

/// Commits for ever, and tells what was committed.
#[tokio::main(flavor = "current_thread")]
async fn fill(path: &std::ffi::OsStr) {
    let store = Store::open(path.as_ref(), Options::default()).unwrap();
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
fn what_was_told_before_a_kill_is_there_after_it() {
    if let Some(path) = std::env::var_os(PLACE) {
        return fill(&path);
    }
    for lines in [0, 1, 40, 700, 2500] {
        let place = Place::new();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::what_was_told_before_a_kill_is_there_after_it", "--exact", "--nocapture"])
            .env(PLACE, place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let is_told = |line: &String| line.starts_with("box-");
        let mut seen: Vec<_> = told.by_ref().filter(is_told).take(lines).collect();
        child.kill().unwrap();
        seen.extend(told.filter(is_told));
        child.wait().unwrap();
        if lines == 0 && !place.path().exists() {
            continue;
        }
        // As it was left, and once more when it is in use again.
        assert_eq!(check(&place.path()).unwrap().violations, Vec::<String>::new());
        let store = place.open();
        for line in &seen {
            let Some((name, sequence)) = line.split_once(' ') else { continue };
            // The last line may be cut.
            let Ok(sequence) = sequence.parse::<u64>() else { continue };
            assert!(store.sandbox(&id(name)).unwrap().last_sequence >= sequence, "{line}");
        }
        go_on(&store);
        place.assert_good();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn go_on(store: &Store) {
    for row in store.sandboxes() {
        let before = row.last_sequence;
        assert_eq!(ticks(store, &row, 1).await.last_sequence, before + 1, "there is no gap");
        assert!(matches!(row.state, SandboxState::Pending | SandboxState::Ready));
    }
}
