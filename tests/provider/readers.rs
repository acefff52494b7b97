//! Files of sandboxes that do not run, read without a start of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_agent_client::AgentClient;
use carrel_control::provider::{Place, Provider};
use carrel_control::spec::{Limits, Mount, Spec};
use carrel_sandbox::KeptDisk;
use carrel_tests::run;

use crate::world::{World, again, host};

/// A sandbox that wrote a file and was stopped.
async fn stopped(world: &World, spec: &Spec) -> Place {
    let place = world.started("demo", spec).await;
    world.shell(&place, "exec-1", "echo kept > file; chmod 600 file").await;
    world.local.stop(&place, Duration::ZERO).await.unwrap();
    world.local.forget(&place).await.unwrap();
    place
}

/// What there is of sandboxes in the home, by their names.
fn names(world: &World) -> Vec<String> {
    let found = carrel_shim_client::sandboxes(world.home.path()).unwrap();
    found.into_iter().map(|found| found.record.map(|record| record.name).unwrap_or_default()).collect()
}

/// Waits until nothing of any sandbox is in the home. Nobody is told when a reader that was dropped has ended.
async fn until_nothing_is_left(world: &World) {
    while !names(world).is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Every path below a directory.
fn tree(directory: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut ahead = vec![directory.to_owned()];
    while let Some(next) = ahead.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                ahead.push(entry.path());
            }
            all.insert(entry.path());
        }
    }
    all
}

#[test]
fn a_reader_reads_what_a_stopped_sandbox_wrote_and_leaves_nothing() {
    run(async {
        let limited = Spec { limits: Limits { disk: Some(64 << 20), ..Limits::default() }, ..host() };
        for spec in [host(), limited] {
            let world = World::new();
            let place = stopped(&world, &spec).await;
            let before = tree(&world.disk(&place));
            let reader = world.local.read_disk(&place, &spec).await.unwrap();
            assert_eq!(names(&world), ["demo..read"]);
            let incarnation = carrel_shim_client::find(world.home.path(), "demo..read").unwrap().unwrap();
            let incarnation = incarnation.record.unwrap().incarnation;
            let client = AgentClient::connect(reader.agent_socket()).await.unwrap();
            assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
            drop((client, reader));
            until_nothing_is_left(&world).await;
            assert_eq!(tree(&world.disk(&place)), before, "reading adds nothing to the disk");
            while KeptDisk::open(&world.disk(&place)).is_err() {
                tokio::task::yield_now().await;
            }
            world.local.remove(&place).await.unwrap();
            assert_eq!(world.traces(&place), Vec::<PathBuf>::new());
            assert_eq!(world.traces(&Place { incarnation, ..place }), Vec::<PathBuf>::new());
        }
    });
}

#[test]
fn a_resume_ends_a_reader_and_its_client_is_told() {
    run(async {
        let world = World::new();
        let first = stopped(&world, &host()).await;
        let reader = world.local.read_disk(&first, &host()).await.unwrap();
        let client = AgentClient::connect(reader.agent_socket()).await.unwrap();
        let second = again(&first);
        world.local.start(&second, &host()).await.unwrap();
        reader.ended().await;
        assert!(client.files().read_to_end("/workspace/file").await.is_err());
        assert_eq!(world.shell(&second, "exec-2", "cat file").await, "kept\n");
        assert_eq!(names(&world), ["demo"], "nothing is left of the reader");
        let refused = world.local.read_disk(&second, &host()).await.unwrap_err();
        assert_eq!(refused.message, "the sandbox is running");
        world.local.remove(&second).await.unwrap();
    });
}

#[test]
fn a_removal_ends_a_reader_and_takes_the_disk() {
    run(async {
        let world = World::new();
        let place = stopped(&world, &host()).await;
        let reader = world.local.read_disk(&place, &host()).await.unwrap();
        world.local.remove(&place).await.unwrap();
        reader.ended().await;
        assert!(names(&world).is_empty() && world.traces(&place).is_empty());
        let missing = world.local.read_disk(&place, &host()).await.unwrap_err();
        assert!(missing.message.contains("is missing") && missing.message.contains("carrel resume demo"), "{missing}");
        assert!(!world.disk(&place).exists(), "no disk is made to be read");
    });
}

#[test]
fn two_clients_share_a_reader_that_ends_with_the_last() {
    run(async {
        let world = World::new();
        let place = stopped(&world, &host()).await;
        let spec = host();
        let (one, other) = tokio::join!(world.local.read_disk(&place, &spec), world.local.read_disk(&place, &spec));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one.agent_socket(), other.agent_socket());
        drop(one);
        let client = AgentClient::connect(other.agent_socket()).await.unwrap();
        assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
        drop(other);
        // The next one waits for the end of the last.
        let next = world.local.read_disk(&place, &spec).await.unwrap();
        let client = AgentClient::connect(next.agent_socket()).await.unwrap();
        assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
        drop(next);
        until_nothing_is_left(&world).await;
    });
}

#[test]
fn a_reader_that_a_dead_daemon_left_keeps_nobody_from_a_resume() {
    run(async {
        let mut world = World::new();
        let first = stopped(&world, &host()).await;
        let reader = world.local.read_disk(&first, &host()).await.unwrap();
        world.next();
        let second = again(&first);
        world.local.start(&second, &host()).await.unwrap();
        reader.ended().await;
        assert_eq!(world.shell(&second, "exec-2", "cat file").await, "kept\n");
        world.local.remove(&second).await.unwrap();
    });
}

#[test]
fn a_reader_has_no_mounts_of_the_sandbox() {
    run(async {
        let world = World::new();
        let shared = world.home.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::write(shared.join("secret"), "of the host").unwrap();
        let mount = Mount { source: shared, target: "/shared".to_owned(), writable: false };
        let spec = Spec { mounts: vec![mount], ..host() };
        let place = stopped(&world, &spec).await;
        let reader = world.local.read_disk(&place, &spec).await.unwrap();
        let client = AgentClient::connect(reader.agent_socket()).await.unwrap();
        assert_eq!(client.files().read_to_end("/workspace/file").await.unwrap(), b"kept\n");
        assert!(client.files().read_to_end("/shared/secret").await.is_err());
    });
}
