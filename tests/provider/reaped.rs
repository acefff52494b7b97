//! What nobody uses is found and removed; what somebody uses is not.

use std::path::PathBuf;

use carrel_control::provider::{How, InUse, Provider};
use carrel_shim_client::OwnedSandbox;
use carrel_tests::{create, programs, run};

use crate::world::{World, host, script};

#[test]
fn what_nobody_uses_goes_and_the_rest_goes_on() {
    run(async {
        let mut world = World::new();
        let (used, unused) = (world.started("used", &host()).await, world.started("unused", &host()).await);
        let stopped = world.started("stopped", &host()).await;
        world.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        world.local.forget(&stopped).await.unwrap();
        // One that a person made is not ours to take away.
        let owned = OwnedSandbox::start(&programs(), &create(world.home.path(), "person")).await.unwrap();
        let in_use = InUse {
            incarnations: [used.incarnation.clone()].into(),
            disks: [used.disk.clone(), stopped.disk.clone()].into(),
        };
        // What is in our own hands stays too: it may have been made since they looked.
        world.local.reap(&in_use).await.unwrap();
        assert_eq!(world.shell(&unused, "exec-0", "echo here").await, "here\n");

        world.next();
        assert!(world.local.reap(&in_use).await.unwrap() >= 2);
        assert_eq!(world.traces(&unused), Vec::<PathBuf>::new());
        assert_eq!(world.traces(&stopped), [world.disk(&stopped)]);
        assert!(world.local.adopt(&used, &host()).await.unwrap());
        assert_eq!(world.ran(&used, &script("exec-1", "true")).await, How::Exited(0));
        assert!(owned.agent_socket().exists());
        world.local.reap(&in_use).await.unwrap();
        assert_eq!(world.traces(&stopped), [world.disk(&stopped)]);
    });
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
