//! The quota of output: it holds for all starts of a sandbox together.

use carrel_control::provider::Provider;
use carrel_local::{Local, Settings, TrimmedOutput};
use carrel_store::ExecId;
use carrel_tests::{programs, run};

use crate::world::{GRACE, World, again, host, settings};

#[test]
fn what_an_earlier_start_wrote_counts_and_is_told_to_be_trimmed() {
    run(async {
        let mut world = World::new();
        let settings = Settings { output_quota: Some(1 << 20), ..settings(world.home.path()) };
        world.local = Local::new(settings, programs()).unwrap();
        let place = world.started("demo", &host()).await;
        for id in ["first", "second"] {
            world.shell(&place, id, "head -c 300000 /dev/zero; head -c 5 /dev/zero >&2").await;
        }
        let trimmed = |id: &str| {
            let exec = ExecId::new(id).unwrap();
            world.local.log_trimmed(&place.sandbox, &exec).unwrap()
        };
        assert_eq!((trimmed("first"), trimmed("second"), trimmed("none")), (None, None, None));
        world.local.stop(&place, GRACE).await.unwrap();
        world.local.forget(&place).await.unwrap();
        let resumed = again(&place);
        world.local.start(&resumed, &host()).await.unwrap();
        world.shell(&resumed, "third", "head -c 600000 /dev/zero").await;
        assert_eq!(trimmed("first").map(|trimmed| trimmed.stdout), Some(300_000), "the oldest made room");
        let paths = world.local.logs(&place.sandbox, &ExecId::new("first").unwrap());
        assert!(!paths.stdout.exists());
        assert_eq!(trimmed("second"), None);
        // More than there may be at all: beginning and end of it stay.
        world.shell(&resumed, "fourth", "head -c 3000000 /dev/zero").await;
        let fourth = trimmed("fourth").unwrap();
        assert!(fourth.stdout > 1_500_000 && fourth.stdout < 3_000_000, "{fourth:?}");
        assert_eq!(trimmed("second"), Some(TrimmedOutput { stdout: 300_000, stderr: 5 }));
    });
}
