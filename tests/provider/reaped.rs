//! What nobody uses is found and removed; what somebody uses is not.

use std::path::PathBuf;

use carrel_control::provider::{How, InUse, Manifest, Place, Provider};
use carrel_local::{Local, Settings};
use carrel_shim_client::OwnedSandbox;
use carrel_tests::{create, programs, run};

use crate::world::{World, host, script, settings};

#[test]
fn what_is_known_to_be_deleted_goes_and_the_rest_goes_on() {
    run(async {
        let mut world = World::new();
        let (used, deleted) = (world.started("used", &host()).await, world.started("deleted", &host()).await);
        let stopped = world.started("stopped", &host()).await;
        world.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        world.local.forget(&stopped).await.unwrap();
        // One that a person made is not ours to take away.
        let owned = OwnedSandbox::start(&programs(), &create(world.home.path(), "person")).await.unwrap();
        let in_use = InUse {
            incarnations: [used.incarnation.clone()].into(),
            disks: [used.disk.clone(), stopped.disk.clone()].into(),
            deleted: [deleted.disk.clone()].into(),
        };
        let in_use = move || in_use.clone();
        // What is in our own hands stays too: it may have been made since they looked.
        world.local.reap(&in_use).await.unwrap();
        assert_eq!(world.shell(&deleted, "exec-0", "echo here").await, "here\n");

        world.next();
        let reaped = world.local.reap(&in_use).await.unwrap();
        assert!(reaped.removed >= 2 && reaped.quarantined.is_empty(), "{reaped:?}");
        assert_eq!(world.traces(&deleted), Vec::<PathBuf>::new());
        assert_eq!(world.traces(&stopped), [world.disk(&stopped)]);
        assert!(world.local.adopt(&used, &host()).await.unwrap());
        assert_eq!(world.ran(&used, &script("exec-1", "true")).await, How::Exited(0));
        assert!(owned.agent_socket().exists());
        world.local.reap(&in_use).await.unwrap();
        assert_eq!(world.traces(&stopped), [world.disk(&stopped)]);
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn what_is_not_known_is_kept_and_listed_until_a_person_removes_it() {
    run(async {
        let mut world = World::new();
        let (runs, stopped) = (world.started("runs", &host()).await, world.started("stopped", &host()).await);
        world.shell(&stopped, "exec-0", "echo kept > file").await;
        world.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        world.local.forget(&stopped).await.unwrap();
        world.local.save_manifest(&stopped, &manifest("stopped")).await.unwrap();
        std::fs::create_dir(world.home.path().join("disks/lost+found")).unwrap();
        world.next();
        let nothing = InUse::default;
        let reaped = world.local.reap(&nothing).await.unwrap();
        assert_eq!(reaped.removed, 0);
        let mut both = [runs.disk.clone(), stopped.disk.clone()];
        both.sort();
        assert_eq!(reaped.quarantined, both, "and what is no disk is not ours");
        assert!(world.local.reap(&nothing).await.unwrap().quarantined.is_empty(), "it is told once");

        let orphans = world.local.orphans(&nothing).await.unwrap();
        let orphan = |place: &Place| orphans.iter().find(|orphan| orphan.disk == place.disk).unwrap();
        assert_eq!(orphan(&runs).running.as_ref(), Some(&runs.incarnation));
        assert_eq!(orphan(&stopped).running, None);
        assert_eq!(orphan(&stopped).manifest, Some(manifest("stopped")));
        assert_eq!(world.shell(&runs, "exec-1", "echo still").await, "still\n");

        world.local.remove_orphan(&runs.disk).await.unwrap();
        assert_eq!(world.traces(&runs), Vec::<PathBuf>::new());
        let left = world.local.orphans(&nothing).await.unwrap();
        assert_eq!(left.iter().map(|orphan| &orphan.disk).collect::<Vec<_>>(), [&stopped.disk]);
        // Once it is known again, it is as it was.
        world.local.release_orphan(&stopped.disk).await.unwrap();
        let second = crate::world::again(&stopped);
        world.local.start(&second, &host()).await.unwrap();
        assert_eq!(world.shell(&second, "exec-2", "cat file").await, "kept\n");
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn an_orphan_goes_when_its_time_is_up_unless_it_runs() {
    run(async {
        let mut world = World::new();
        let (runs, stopped) = (world.started("runs", &host()).await, world.started("stopped", &host()).await);
        world.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        let kept = std::time::Duration::from_nanos(1);
        world.local = Local::new(Settings { orphans_kept: kept, ..settings(world.home.path()) }, programs()).unwrap();
        let nothing = InUse::default;
        // Found first, removed by the next look.
        assert_eq!(world.local.reap(&nothing).await.unwrap().quarantined.len(), 2);
        world.local.reap(&nothing).await.unwrap();
        assert!(!world.disk(&stopped).exists() && world.disk(&runs).exists());
        assert_eq!(world.shell(&runs, "exec-1", "echo still").await, "still\n");
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn the_time_of_an_orphan_begins_anew_after_it_was_known_again() {
    run(async {
        let mut world = World::new();
        let stopped = world.started("stopped", &host()).await;
        world.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        let kept = std::time::Duration::from_nanos(1);
        world.local = Local::new(Settings { orphans_kept: kept, ..settings(world.home.path()) }, programs()).unwrap();
        let nothing = InUse::default;
        assert_eq!(world.local.reap(&nothing).await.unwrap().quarantined, std::slice::from_ref(&stopped.disk));
        let disk = stopped.disk.clone();
        let known = move || InUse { disks: [disk.clone()].into(), ..InUse::default() };
        world.local.reap(&known).await.unwrap();
        // Unknown once more: found, and not taken for one whose time is up.
        assert_eq!(world.local.reap(&nothing).await.unwrap().quarantined, std::slice::from_ref(&stopped.disk));
        assert!(world.disk(&stopped).exists());
    });
}

#[test]
fn a_start_that_an_older_store_does_not_know_is_left_alone_until_the_sandbox_is_resumed() {
    run(async {
        let mut world = World::new();
        let former = world.started("demo", &host()).await;
        world.local.stop(&former, std::time::Duration::ZERO).await.unwrap();
        world.local.forget(&former).await.unwrap();
        let later = crate::world::again(&former);
        world.local.start(&later, &host()).await.unwrap();
        world.shell(&later, "exec-1", "echo kept > file").await;
        // The store of before knows the disk, and the former start.
        world.next();
        let (incarnation, disk) = (former.incarnation.clone(), former.disk.clone());
        let in_use = move || InUse {
            incarnations: [incarnation.clone()].into(),
            disks: [disk.clone()].into(),
            ..InUse::default()
        };
        world.local.reap(&in_use).await.unwrap();
        assert!(world.local.orphans(&in_use).await.unwrap().is_empty());
        assert_eq!(world.shell(&later, "exec-2", "cat file").await, "kept\n");
        world.next();
        let last = crate::world::again(&former);
        world.local.start(&last, &host()).await.unwrap();
        assert_eq!(world.shell(&last, "exec-3", "cat file").await, "kept\n");
    });
}

fn manifest(sandbox: &str) -> Manifest {
    let (image, spec) = ("host".to_owned(), "{}".to_owned());
    Manifest { sandbox: sandbox.to_owned(), owner: 0, image, spec, created_at: 1, idle_ms: None }
}

#[test]
fn what_an_earlier_start_left_does_not_keep_the_next_from_starting() {
    run(async {
        let mut world = World::new();
        let first = world.started("demo", &host()).await;
        world.shell(&first, "exec-1", "echo kept > file").await;
        // The daemon died between two starts: the first still runs.
        world.next();
        let second = crate::world::again(&first);
        world.local.start(&second, &host()).await.unwrap();
        assert_eq!(world.shell(&second, "exec-2", "cat file").await, "kept\n");
        assert!(!world.local.adopt(&first, &host()).await.unwrap());
        // Nor does removing the one leave the other.
        world.next();
        let third = crate::world::again(&first);
        world.local.remove(&third).await.unwrap();
        for place in [&first, &second, &third] {
            assert!(world.traces(place).is_empty(), "{:?}", world.traces(place));
        }
    });
}
