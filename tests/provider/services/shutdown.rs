//! Shutdown of services: they stop with their sandbox, in whatever state they are.

use std::time::Duration;

use carrel_control::provider::{InUse, Provider, ServiceFact};
use carrel_control::spec::{Limits, Service};
use carrel_shim_client::Liveness;
use carrel_tests::run;

use super::{discover, expect_ready, query, server, service, spec_with, start_services, start_with_service, traces};
use crate::harness::{ProviderHarness, collect_facts, host_spec, next_incarnation};

#[test]
fn a_service_that_is_still_starting_is_removed_with_its_sandbox() {
    run(async {
        let harness = ProviderHarness::new();
        let spec = spec_with(&[server("one"), server("two"), server("three")]);
        // Each round stops at another point of the start.
        for round in 0..12 {
            let instance = harness.start("demo", &spec).await;
            let receivers = start_services(&harness, &instance, &spec);
            for _ in 0..round * round * 8 {
                tokio::task::yield_now().await;
            }
            harness.local.stop(&instance, Duration::ZERO).await.unwrap();
            for mut reports in receivers {
                assert!(matches!(reports.recv().await, None | Some(ServiceFact::Ready)));
            }
            let sandboxes = carrel_shim_client::sandboxes(harness.home.path()).unwrap();
            assert!(sandboxes.iter().all(|sandbox| sandbox.life != Liveness::Running), "{sandboxes:?}");
            harness.local.remove(&instance).await.unwrap();
            assert_eq!(traces(&harness, &instance), Vec::<String>::new());
        }
    });
}

#[test]
fn services_that_ignore_sigterm_are_killed_together() {
    run(async {
        let harness = ProviderHarness::new();
        let stubborn = |name: &str| service(name, "trap '' TERM; touch /dev/shm/up; while :; do sleep 1000; done");
        let spec = spec_with(&["one", "two", "three"].map(stubborn));
        let instance = harness.start("demo", &spec).await;
        for reports in &mut start_services(&harness, &instance, &spec) {
            expect_ready(reports).await;
        }
        harness.local.stop(&instance, Duration::from_millis(200)).await.unwrap();
        let stopped = carrel_shim_client::sandboxes(harness.home.path()).unwrap();
        assert!(stopped.len() == 4 && stopped.iter().all(|sandbox| sandbox.life != Liveness::Running), "{stopped:?}");
        harness.local.forget(&instance).await.unwrap();
        assert!(carrel_shim_client::sandboxes(harness.home.path()).unwrap().is_empty());
        assert!(
            harness.home.path().join("services").join(&instance.disk).join("one/disk").exists(),
            "their disks are kept"
        );
        harness.local.remove(&instance).await.unwrap();
        assert_eq!(traces(&harness, &instance), Vec::<String>::new());
    });
}

#[test]
fn a_service_does_not_outlive_a_sandbox_whose_shim_dies() {
    run(async {
        let harness = ProviderHarness::new();
        let limits = Limits { cpu_millis: Some(500), memory: Some(128 << 20), disk: Some(32 << 20) };
        let (instance, _, mut reports) = start_with_service(&harness, &Service { limits, ..server("db") }).await;
        expect_ready(&mut reports).await;
        let record = discover(&harness, "demo.db").unwrap().record.unwrap();
        let limits = (record.create.limits.memory, record.create.limits.cpu_millis, record.create.disk);
        assert_eq!(limits, (Some(128 << 20), Some(500), 32 << 20));
        let handle = discover(&harness, "demo").unwrap().record.unwrap().shim_handle().unwrap();
        let mut facts = harness.watch(&instance, 0);
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
        collect_facts(&mut facts).await;
        harness.local.forget(&instance).await.unwrap();
        assert!(carrel_shim_client::sandboxes(harness.home.path()).unwrap().is_empty());
        harness.local.remove(&instance).await.unwrap();
        assert_eq!(traces(&harness, &instance), Vec::<String>::new());
    });
}

#[test]
fn services_of_a_deleted_sandbox_are_removed_and_those_of_a_known_sandbox_are_kept() {
    run(async {
        let mut harness = ProviderHarness::new();
        let spec = spec_with(&[server("db")]);
        let (used, unused) = (harness.start("used", &spec).await, harness.start("unused", &spec).await);
        let mut receivers = [&used, &unused].map(|instance| start_services(&harness, instance, &spec).pop().unwrap());
        for reports in &mut receivers {
            expect_ready(reports).await;
        }
        let in_use = InUse {
            incarnations: [used.incarnation.clone()].into(),
            disks: [used.disk.clone()].into(),
            deleted: [unused.disk.clone()].into(),
        };
        let in_use = move || in_use.clone();
        harness.local.reap(&in_use).await.unwrap();
        assert_eq!(
            query(&harness, &unused, "exec-1", "db").await,
            "1",
            "this provider started it, so its reaper leaves it alone"
        );
        harness.restart_provider();
        drop(receivers);
        // The sandbox, its service, and the disks of both.
        assert!(harness.local.reap(&in_use).await.unwrap().removed >= 4);
        assert!(discover(&harness, "unused.db").is_none() && discover(&harness, "unused").is_none());
        assert!(!harness.home.path().join("services").join(&unused.disk).exists());
        assert!(harness.local.adopt(&used, &spec).await.unwrap());
        assert_eq!(query(&harness, &used, "exec-2", "db").await, "1");
        harness.local.remove(&used).await.unwrap();
        assert_eq!(traces(&harness, &used), Vec::<String>::new());
    });
}

#[test]
fn a_service_of_an_earlier_incarnation_is_replaced_when_the_next_one_starts() {
    run(async {
        let mut harness = ProviderHarness::new();
        let (first, spec, mut reports) = start_with_service(&harness, &server("db")).await;
        expect_ready(&mut reports).await;
        harness.restart_provider();
        drop(reports);
        // The daemon died between two starts, without stopping the first.
        let second = next_incarnation(&first);
        harness.local.start(&second, &spec).await.unwrap();
        assert!(discover(&harness, "demo.db").is_none());
        let mut reports = start_services(&harness, &second, &spec).pop().unwrap();
        expect_ready(&mut reports).await;
        assert_eq!(query(&harness, &second, "exec-1", "db").await, "2");
        let alone = harness.start("alone", &host_spec()).await;
        for instance in [&second, &alone] {
            harness.local.remove(instance).await.unwrap();
        }
        assert_eq!(traces(&harness, &second), Vec::<String>::new());
    });
}
