//! Disk readers: agents that read the disk of a stopped sandbox without starting the sandbox.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_agent_client::AgentClient;
use carrel_control::provider::{Place, Provider};
use carrel_control::spec::{Limits, Mount, Spec};
use carrel_sandbox::PersistentDisk;
use carrel_tests::run;

use crate::harness::{ProviderHarness, host_spec, next_incarnation};

/// Starts a sandbox that writes a file, and stops it.
async fn stopped_sandbox(harness: &ProviderHarness, spec: &Spec) -> Place {
    let instance = harness.start("demo", spec).await;
    harness.shell(&instance, "exec-1", "echo kept > file; chmod 600 file").await;
    harness.local.stop(&instance, Duration::ZERO).await.unwrap();
    harness.local.forget(&instance).await.unwrap();
    instance
}

/// The names of the sandboxes that discovery finds in the home.
fn sandbox_names(harness: &ProviderHarness) -> Vec<String> {
    let found = carrel_shim_client::sandboxes(harness.home.path()).unwrap();
    found.into_iter().map(|found| found.record.map(|record| record.name).unwrap_or_default()).collect()
}

/// Waits until no sandbox is left in the home. The exit of a dropped reader is not reported.
async fn wait_until_empty(harness: &ProviderHarness) {
    while !sandbox_names(harness).is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Every path below a directory.
fn tree(directory: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            }
            all.insert(entry.path());
        }
    }
    all
}

#[test]
fn a_reader_reads_the_disk_of_a_stopped_sandbox_and_leaves_nothing() {
    run(async {
        let limited = Spec { limits: Limits { disk: Some(64 << 20), ..Limits::default() }, ..host_spec() };
        for spec in [host_spec(), limited] {
            let harness = ProviderHarness::new();
            let instance = stopped_sandbox(&harness, &spec).await;
            let before = tree(&harness.disk(&instance));
            let reader = harness.local.read_disk(&instance, &spec).await.unwrap();
            assert_eq!(sandbox_names(&harness), ["demo..read"]);
            let incarnation = carrel_shim_client::find(harness.home.path(), "demo..read").unwrap().unwrap();
            let incarnation = incarnation.record.unwrap().incarnation;
            let client = AgentClient::connect(reader.agent_socket()).await.unwrap();
            assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
            drop((client, reader));
            wait_until_empty(&harness).await;
            assert_eq!(tree(&harness.disk(&instance)), before, "reading adds nothing to the disk");
            while PersistentDisk::open(&harness.disk(&instance)).is_err() {
                tokio::task::yield_now().await;
            }
            harness.local.remove(&instance).await.unwrap();
            assert_eq!(harness.traces(&instance), Vec::<PathBuf>::new());
            assert_eq!(harness.traces(&Place { incarnation, ..instance }), Vec::<PathBuf>::new());
        }
    });
}

#[test]
fn a_resume_ends_a_reader_and_fails_the_requests_of_its_client() {
    run(async {
        let harness = ProviderHarness::new();
        let first = stopped_sandbox(&harness, &host_spec()).await;
        let reader = harness.local.read_disk(&first, &host_spec()).await.unwrap();
        let client = AgentClient::connect(reader.agent_socket()).await.unwrap();
        let second = next_incarnation(&first);
        harness.local.start(&second, &host_spec()).await.unwrap();
        reader.ended().await;
        assert!(client.files().read_to_end("/workspace/file").await.is_err());
        assert_eq!(harness.shell(&second, "exec-2", "cat file").await, "kept\n");
        assert_eq!(sandbox_names(&harness), ["demo"], "nothing is left of the reader");
        let refused = harness.local.read_disk(&second, &host_spec()).await.unwrap_err();
        assert_eq!(refused.message, "the sandbox is running");
        harness.local.remove(&second).await.unwrap();
    });
}

#[test]
fn a_removal_ends_a_reader_and_removes_the_disk() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = stopped_sandbox(&harness, &host_spec()).await;
        let reader = harness.local.read_disk(&instance, &host_spec()).await.unwrap();
        harness.local.remove(&instance).await.unwrap();
        reader.ended().await;
        assert!(sandbox_names(&harness).is_empty() && harness.traces(&instance).is_empty());
        let missing = harness.local.read_disk(&instance, &host_spec()).await.unwrap_err();
        assert!(missing.message.contains("is missing") && missing.message.contains("carrel resume demo"), "{missing}");
        assert!(!harness.disk(&instance).exists(), "a read creates no disk");
    });
}

#[test]
fn two_clients_share_a_reader_that_ends_with_the_last_client() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = stopped_sandbox(&harness, &host_spec()).await;
        let spec = host_spec();
        let (one, other) =
            tokio::join!(harness.local.read_disk(&instance, &spec), harness.local.read_disk(&instance, &spec));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one.agent_socket(), other.agent_socket());
        drop(one);
        let client = AgentClient::connect(other.agent_socket()).await.unwrap();
        assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
        drop(other);
        // A new reader waits until the former one has ended.
        let next = harness.local.read_disk(&instance, &spec).await.unwrap();
        let client = AgentClient::connect(next.agent_socket()).await.unwrap();
        assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
        drop(next);
        wait_until_empty(&harness).await;
    });
}

#[test]
fn a_reader_of_a_dead_daemon_does_not_prevent_a_resume() {
    run(async {
        let mut harness = ProviderHarness::new();
        let first = stopped_sandbox(&harness, &host_spec()).await;
        let reader = harness.local.read_disk(&first, &host_spec()).await.unwrap();
        harness.restart_provider();
        let second = next_incarnation(&first);
        harness.local.start(&second, &host_spec()).await.unwrap();
        reader.ended().await;
        assert_eq!(harness.shell(&second, "exec-2", "cat file").await, "kept\n");
        harness.local.remove(&second).await.unwrap();
    });
}

#[test]
fn a_reader_has_none_of_the_mounts_of_the_sandbox() {
    run(async {
        let harness = ProviderHarness::new();
        let shared = harness.home.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::write(shared.join("secret"), "of the host").unwrap();
        let mount = Mount { source: shared, target: "/shared".to_owned(), writable: false };
        let spec = Spec { mounts: vec![mount], ..host_spec() };
        let instance = stopped_sandbox(&harness, &spec).await;
        let reader = harness.local.read_disk(&instance, &spec).await.unwrap();
        let client = AgentClient::connect(reader.agent_socket()).await.unwrap();
        assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
        assert!(client.files().read_to_end("/shared/secret").await.is_err());
    });
}
