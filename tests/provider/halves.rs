//! What is left of something that was not done to its end: a start that nobody waits for, a supervisor that died.

use std::os::unix::fs::PermissionsExt;

use carrel_control::provider::Provider;
use carrel_local::Local;
use carrel_shim_client::Programs;
use carrel_tests::{programs, run};

use crate::world::{World, host, place, settings};

#[test]
fn a_start_that_nobody_waits_for_is_removed_like_any_other() {
    run(async {
        let world = World::new();
        let (place, spec) = (place("demo"), host());
        tokio::select! {
            biased;
            _ = world.local.start(&place, &spec) => panic!("it is not as fast as that"),
            () = tokio::task::yield_now() => {}
        }
        world.local.remove(&place).await.unwrap();
        assert!(world.traces(&place).is_empty(), "{:?}", world.traces(&place));
    });
}

#[test]
fn what_a_daemon_left_that_died_while_it_made_something_can_be_removed() {
    run(async {
        let world = World::new();
        let place = place("demo");
        world.local.remove(&place).await.unwrap();
        // A disk with nothing in it, and a directory that was only claimed.
        std::fs::create_dir(world.disk(&place)).unwrap();
        let directory = world.directory(&place);
        std::fs::create_dir_all(&directory).unwrap();
        for path in [directory.parent().unwrap(), &directory] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        std::fs::write(directory.join("lock"), "").unwrap();
        std::fs::write(directory.join("incarnation"), &place.incarnation).unwrap();
        assert!(!world.local.adopt(&place, &host()).await.unwrap());
        world.local.stop(&place, std::time::Duration::ZERO).await.unwrap();
        world.local.remove(&place).await.unwrap();
        assert!(world.traces(&place).is_empty(), "{:?}", world.traces(&place));
        // Nor do they keep it from being started.
        std::fs::create_dir(world.disk(&place)).unwrap();
        world.local.start(&place, &host()).await.unwrap();
    });
}

#[test]
fn a_supervisor_that_died_while_it_waited_is_not_missed() {
    run(async {
        let mut world = World::new();
        // The first that is started ends at once.
        let shim = world.home.path().join("shim");
        let script = "#!/bin/sh\nmkdir \"$0.first\" 2>/dev/null && exit 1\nexec REAL\n";
        std::fs::write(&shim, script.replace("REAL", programs().shim.to_str().unwrap())).unwrap();
        std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).unwrap();
        let programs = Programs { shim, ..programs() };
        world.local = Local::new(settings(world.home.path()), programs).unwrap();
        while !world.home.path().join("shim.first").exists() {
            tokio::task::yield_now().await;
        }
        let place = world.started("demo", &host()).await;
        assert_eq!(world.shell(&place, "exec-1", "echo here").await, "here\n");
    });
}

#[test]
fn a_person_who_has_the_name_is_left_alone() {
    run(async {
        let world = World::new();
        let create = carrel_tests::create(world.home.path(), "demo");
        let owned = carrel_shim_client::OwnedSandbox::start(&programs(), &create).await.unwrap();
        let place = place("demo");
        let failed = world.local.start(&place, &host()).await.unwrap_err();
        assert!(failed.message.contains("a sandbox with this name is running"), "{failed}");
        assert!(!world.disk(&place).exists());
        world.local.stop(&place, std::time::Duration::ZERO).await.unwrap();
        world.local.remove(&place).await.unwrap();
        assert!(owned.agent_socket().exists());
        drop(owned);
        world.local.start(&place, &host()).await.unwrap();
    });
}
