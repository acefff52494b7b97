//! What runs in a sandbox when a service beside it is well.

use carrel_control::provider::Provider;
use carrel_control::spec::{Service, Spec};
use carrel_tests::run;

use super::{beside, is_given_up, is_ready, server, tended, words};
use crate::world::{World, again};

fn hooked<const N: usize>(hooks: [&str; N]) -> Service {
    let envs = [("WHOSE".to_owned(), "db".to_owned())].into();
    Service { post_start_on_primary: words(hooks), envs, ..server("db") }
}

#[test]
fn hooks_run_in_order_before_it_is_told_once_in_each_start() {
    run(async {
        let mut world = World::new();
        let hook = "echo $WHOSE $(id -un) $0 >> hooked";
        let (place, spec, mut told) = beside(&world, &hooked([hook, "cp hooked copy"])).await;
        is_ready(&mut told).await;
        let ran = "db agbox sh\n";
        assert_eq!(world.shell(&place, "exec-1", "cat copy").await, ran);
        world.next();
        assert!(world.local.adopt(&place, &spec).await.unwrap());
        is_ready(&mut tended(&world, &place, &spec)[0]).await;
        assert_eq!(world.shell(&place, "exec-2", "cat hooked").await, ran);

        world.local.stop(&place, std::time::Duration::ZERO).await.unwrap();
        let place = again(&place);
        world.local.start(&place, &spec).await.unwrap();
        is_ready(&mut tended(&world, &place, &spec)[0]).await;
        assert_eq!(world.shell(&place, "exec-3", "cat copy").await, ran.repeat(2));
    });
}

#[test]
fn a_hook_that_fails_is_told_and_the_next_does_not_run() {
    run(async {
        let world = World::new();
        let hooks = ["echo first >> hooked", "echo too bad >&2; exit 7", "echo third >> hooked"];
        let (place, spec, mut told) = beside(&world, &hooked(hooks)).await;
        let error = is_given_up(&mut told).await;
        let words = "exit 7\" failed: exit code 7: too bad";
        assert!(error.code.is_none() && error.message.contains(words), "{error}");
        assert_eq!(world.shell(&place, "exec-1", "cat hooked").await, "first\n");
        let mut told = tended(&world, &place, &spec).pop().unwrap();
        assert_eq!(is_given_up(&mut told).await, error);
        assert_eq!(world.shell(&place, "exec-2", "cat hooked").await, "first\n");
    });
}

#[test]
fn a_hook_sees_the_environment_of_the_sandbox_below_that_of_the_service() {
    run(async {
        let world = World::new();
        let service = hooked(["echo $WHOSE $OWN > hooked"]);
        let envs = [("WHOSE", "box"), ("OWN", "own")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let spec = Spec { envs: envs.into(), ..super::with(&[service]) };
        let place = world.started("demo", &spec).await;
        is_ready(&mut tended(&world, &place, &spec)[0]).await;
        assert_eq!(world.shell(&place, "exec-1", "cat hooked").await, "db own\n");
    });
}
