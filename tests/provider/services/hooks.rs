//! Post-start hooks: commands that run in the sandbox when a service beside it is healthy.

use carrel_control::provider::Provider;
use carrel_control::spec::{Service, Spec};
use carrel_tests::run;

use super::{expect_failed, expect_ready, server, start_services, start_with_service, strings};
use crate::harness::{ProviderHarness, next_incarnation};

fn service_with_hooks<const N: usize>(hooks: [&str; N]) -> Service {
    let envs = [("WHOSE".to_owned(), "db".to_owned())].into();
    Service { post_start_on_primary: strings(hooks), envs, ..server("db") }
}

#[test]
fn hooks_run_in_order_once_per_incarnation_before_the_service_is_reported_ready() {
    run(async {
        let mut harness = ProviderHarness::new();
        let hook = "echo $WHOSE $(id -un) $0 >> hooked";
        let (instance, spec, mut reports) =
            start_with_service(&harness, &service_with_hooks([hook, "cp hooked copy"])).await;
        expect_ready(&mut reports).await;
        let line = "db agbox sh\n";
        assert_eq!(harness.shell(&instance, "exec-1", "cat copy").await, line);
        harness.restart_provider();
        assert!(harness.local.adopt(&instance, &spec).await.unwrap());
        expect_ready(&mut start_services(&harness, &instance, &spec)[0]).await;
        assert_eq!(harness.shell(&instance, "exec-2", "cat hooked").await, line);

        harness.local.stop(&instance, std::time::Duration::ZERO).await.unwrap();
        let instance = next_incarnation(&instance);
        harness.local.start(&instance, &spec).await.unwrap();
        expect_ready(&mut start_services(&harness, &instance, &spec)[0]).await;
        assert_eq!(harness.shell(&instance, "exec-3", "cat copy").await, line.repeat(2));
    });
}

#[test]
fn a_hook_that_fails_is_reported_and_the_next_does_not_run() {
    run(async {
        let harness = ProviderHarness::new();
        let hooks = ["echo first >> hooked", "echo too bad >&2; exit 7", "echo third >> hooked"];
        let (instance, spec, mut reports) = start_with_service(&harness, &service_with_hooks(hooks)).await;
        let error = expect_failed(&mut reports).await;
        let expected = "exit 7\" failed: exit code 7: too bad";
        assert!(error.code.is_none() && error.message.contains(expected), "{error}");
        assert_eq!(harness.shell(&instance, "exec-1", "cat hooked").await, "first\n");
        let mut reports = start_services(&harness, &instance, &spec).pop().unwrap();
        assert_eq!(expect_failed(&mut reports).await, error);
        assert_eq!(harness.shell(&instance, "exec-2", "cat hooked").await, "first\n");
    });
}

#[test]
fn the_environment_of_a_hook_is_that_of_the_sandbox_overridden_by_that_of_the_service() {
    run(async {
        let harness = ProviderHarness::new();
        let service = service_with_hooks(["echo $WHOSE $OWN > hooked"]);
        let envs = [("WHOSE", "box"), ("OWN", "own")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let spec = Spec { envs: envs.into(), ..super::spec_with(&[service]) };
        let instance = harness.start("demo", &spec).await;
        expect_ready(&mut start_services(&harness, &instance, &spec)[0]).await;
        assert_eq!(harness.shell(&instance, "exec-1", "cat hooked").await, "db own\n");
    });
}
