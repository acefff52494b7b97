//! From start to removal.

use std::time::Duration;

use carrel_control::provider::{EndCause, Fact, Provider};
use carrel_tests::run;

use crate::world::{GRACE, World, again, all, host, place};

#[test]
fn a_sandbox_runs_stops_comes_back_and_is_gone() {
    run(async {
        let world = World::new();
        let first = world.started("demo", &host()).await;
        assert_eq!(
            world.shell(&first, "exec-1", "echo kept > /workspace/file; id -un; pwd; echo $HOME").await,
            "agbox\n/workspace\n/home/agbox\n"
        );
        let mut facts = world.watch(&first, 0);
        world.local.stop(&first, GRACE).await.unwrap();
        let told = all(&mut facts).await;
        let sequences: Vec<_> = told.iter().map(|noted| noted.sequence).collect();
        assert_eq!(sequences, (1..=told.len() as u64).collect::<Vec<_>>());
        assert!(matches!(told.last().unwrap().fact, Fact::Ended { cause: EndCause::Stopped, .. }));
        // What happened can still be told.
        assert_eq!(all(&mut world.watch(&first, 3)).await, told[3..]);
        assert_eq!(all(&mut world.watch(&first, told.len() as u64)).await, []);
        world.local.forget(&first).await.unwrap();
        assert_eq!(all(&mut world.watch(&first, 0)).await, []);
        assert_eq!(world.traces(&first), [world.disk(&first)]);

        let second = again(&first);
        world.local.start(&second, &host()).await.unwrap();
        assert_eq!(world.shell(&second, "exec-2", "cat /workspace/file").await, "kept\n");
        world.local.remove(&second).await.unwrap();
        assert_eq!(world.traces(&second), Vec::<std::path::PathBuf>::new());
        assert_eq!(world.wrote(&second, "exec-1"), "agbox\n/workspace\n/home/agbox\n", "the logs stay");
        world.local.remove_logs(&second.sandbox).await.unwrap();
        world.local.remove_logs(&second.sandbox).await.unwrap();
        assert_eq!(std::fs::read_dir(world.home.path().join("logs")).unwrap().count(), 0);
    });
}

#[test]
fn everything_can_be_asked_twice() {
    run(async {
        let world = World::new();
        let place = place("demo");
        for _ in 0..2 {
            world.local.start(&place, &host()).await.unwrap();
            assert!(world.local.adopt(&place, &host()).await.unwrap());
        }
        for _ in 0..2 {
            world.local.stop(&place, Duration::ZERO).await.unwrap();
        }
        assert!(!world.local.adopt(&place, &host()).await.unwrap());
        for _ in 0..2 {
            world.local.forget(&place).await.unwrap();
        }
        for _ in 0..2 {
            world.local.remove(&place).await.unwrap();
        }
        assert!(world.traces(&place).is_empty());
    });
}
