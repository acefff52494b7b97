//! Many sandboxes, one after the other and concurrently.

use std::collections::BTreeMap;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, DeleteSandboxesRequest, SandboxState};
use carrel_tests::{DaemonHome, full, run_within};
use tokio::task::JoinSet;

use crate::cleanup::{check_no_leftovers, stop_and_check};
use crate::client::{Client, host_spec};

/// How many sandboxes run before the resources of the daemon are measured.
const WARMUP_CYCLES: usize = 10;
/// How many more descriptors it may have at the end: a shim may be prestarted, or about to be.
const MORE_DESCRIPTORS: usize = 4;
/// How much more memory it may have, in bytes: records of deleted sandboxes are kept for a while.
const MORE_MEMORY: u64 = 4 << 20;

/// The resources of the host that a daemon holds.
#[derive(Debug)]
struct DaemonFootprint {
    descriptors: usize,
    memory: u64,
}

fn footprint(pid: u32) -> DaemonFootprint {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let memory = line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
    DaemonFootprint { descriptors, memory }
}

#[test]
fn many_sandboxes_one_after_the_other_leave_nothing_and_do_not_grow_the_daemon() {
    let cycles = if full() { 500 } else { 50 };
    run_within(Duration::from_secs(600), async {
        let home = DaemonHome::new();
        home.configure("cleanup_ttl = \"5s\"\n");
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        let (mut before, mut incarnations) = (None, Vec::new());
        for cycle in 0..WARMUP_CYCLES + cycles {
            if cycle == WARMUP_CYCLES {
                before = Some(footprint(daemon.pid()));
            }
            let id = format!("cycle-{cycle}");
            client.create_and_wait(&id, host_spec()).await;
            incarnations.push(home.record(&id).unwrap().incarnation);
            client.delete_and_wait(&id).await;
        }
        let before = before.unwrap();
        // The descriptors of the last sandbox may not be closed yet.
        while footprint(daemon.pid()).descriptors > before.descriptors + MORE_DESCRIPTORS {
            tokio::task::yield_now().await;
        }
        let after = footprint(daemon.pid());
        assert!(after.memory < before.memory + MORE_MEMORY, "{before:?} {after:?}");
        println!("{cycles} cycles: {before:?}, then {after:?}");
        stop_and_check(&home, daemon, &[]).await;
        check_no_leftovers(&home, &incarnations).await;
    });
}

#[test]
fn a_hundred_concurrent_creates_all_succeed() {
    run_within(Duration::from_secs(300), async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let client = Client::connect(&daemon).await;
        let labels = BTreeMap::from([("of".to_owned(), "burst".to_owned())]);
        let mut created = JoinSet::new();
        for number in 0..100 {
            let (mut client, labels) = (client.clone(), labels.clone());
            created.spawn(async move {
                let id = format!("burst-{number}");
                client.create_and_wait(&id, CreateSpec { labels, ..host_spec() }).await;
                let exec = client.run(&id, &format!("exec-{number}"), "exit 0").await;
                assert_eq!(exec.exit_code, 0);
            });
        }
        created.join_all().await;
        let mut client = client;
        let deleted = client.api.delete_sandboxes(DeleteSandboxesRequest { label_selector: labels }).await.unwrap();
        assert_eq!(deleted.into_inner().deleted_count, 100);
        for number in 0..100 {
            client.wait_for_state(&format!("burst-{number}"), SandboxState::Deleted).await.unwrap();
        }
        stop_and_check(&home, daemon, &[]).await;
    });
}
