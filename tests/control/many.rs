//! Many sandboxes, one after the other and all at once.

use std::collections::BTreeMap;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, DeleteSandboxesRequest, SandboxState};
use carrel_tests::{DaemonHome, full, run_within};
use tokio::task::JoinSet;

use crate::client::{Client, host};
use crate::left::{check, nothing_left};

/// How many begin, before it is known what a daemon takes.
const WARM: usize = 10;
/// How many descriptors it may have more after all of them: one supervisor may be started ahead, or about to be.
const SOME: usize = 4;
/// How much memory it may have more, in bytes: what is known of those that are gone stays for a while.
const MORE: u64 = 4 << 20;

/// What a daemon takes of the host.
#[derive(Debug)]
struct Footprint {
    descriptors: usize,
    memory: u64,
}

fn footprint(pid: u32) -> Footprint {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let memory = line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
    Footprint { descriptors, memory }
}

#[test]
fn many_that_come_and_go_leave_nothing_and_take_nothing() {
    let cycles = if full() { 500 } else { 50 };
    run_within(Duration::from_secs(600), async {
        let home = DaemonHome::new();
        home.configure("cleanup_ttl = \"5s\"\n");
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        let (mut before, mut incarnations) = (None, Vec::new());
        for cycle in 0..WARM + cycles {
            if cycle == WARM {
                before = Some(footprint(daemon.pid()));
            }
            let id = format!("cycle-{cycle}");
            client.ready(&id, host()).await;
            incarnations.push(home.record(&id).unwrap().incarnation);
            client.gone(&id).await;
        }
        let before = before.unwrap();
        // The last one may be about to be let go of.
        while footprint(daemon.pid()).descriptors > before.descriptors + SOME {
            tokio::task::yield_now().await;
        }
        let after = footprint(daemon.pid());
        assert!(after.memory < before.memory + MORE, "{before:?} {after:?}");
        println!("{cycles} cycles: {before:?}, then {after:?}");
        check(&home, daemon, &[]).await;
        nothing_left(&home, &incarnations).await;
    });
}

#[test]
fn a_hundred_that_are_asked_for_at_once_all_come() {
    run_within(Duration::from_secs(300), async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let client = Client::of(&daemon).await;
        let labels = BTreeMap::from([("of".to_owned(), "burst".to_owned())]);
        let mut asked = JoinSet::new();
        for number in 0..100 {
            let (mut client, labels) = (client.clone(), labels.clone());
            asked.spawn(async move {
                let id = format!("burst-{number}");
                client.ready(&id, CreateSpec { labels, ..host() }).await;
                let ran = client.run(&id, &format!("exec-{number}"), "exit 0").await;
                assert_eq!(ran.exit_code, 0);
            });
        }
        asked.join_all().await;
        let mut client = client;
        let deleted = client.api.delete_sandboxes(DeleteSandboxesRequest { label_selector: labels }).await.unwrap();
        assert_eq!(deleted.into_inner().deleted_count, 100);
        for number in 0..100 {
            client.until(&format!("burst-{number}"), SandboxState::Deleted).await.unwrap();
        }
        check(&home, daemon, &[]).await;
    });
}
