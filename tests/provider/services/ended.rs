//! How services end: with their sandbox, whatever they are at.

use std::time::Duration;

use carrel_control::provider::{InUse, Provider, ServiceFact};
use carrel_control::spec::{Limits, Service};
use carrel_shim_client::Liveness;
use carrel_tests::run;

use super::{asked, beside, found, is_ready, server, service, tended, traces, with};
use crate::world::{World, all, host};

#[test]
fn a_service_that_is_only_being_made_goes_with_its_sandbox() {
    run(async {
        let world = World::new();
        let spec = with(&[server("one"), server("two"), server("three")]);
        // At another moment each time.
        for turns in 0..12 {
            let place = world.started("demo", &spec).await;
            let told = tended(&world, &place, &spec);
            for _ in 0..turns * turns * 8 {
                tokio::task::yield_now().await;
            }
            world.local.stop(&place, Duration::ZERO).await.unwrap();
            for mut told in told {
                assert!(matches!(told.recv().await, None | Some(ServiceFact::Ready)));
            }
            let runs = carrel_shim_client::sandboxes(world.home.path()).unwrap();
            assert!(runs.iter().all(|found| found.life != Liveness::Running), "{runs:?}");
            world.local.remove(&place).await.unwrap();
            assert_eq!(traces(&world, &place), Vec::<String>::new());
        }
    });
}

#[test]
fn services_that_do_not_want_to_end_are_ended_together() {
    run(async {
        let world = World::new();
        let stubborn = |name: &str| service(name, "trap '' TERM; touch /dev/shm/up; while :; do sleep 1000; done");
        let spec = with(&["one", "two", "three"].map(stubborn));
        let place = world.started("demo", &spec).await;
        for told in &mut tended(&world, &place, &spec) {
            is_ready(told).await;
        }
        world.local.stop(&place, Duration::from_millis(200)).await.unwrap();
        let left = carrel_shim_client::sandboxes(world.home.path()).unwrap();
        assert!(left.len() == 4 && left.iter().all(|found| found.life != Liveness::Running), "{left:?}");
        world.local.forget(&place).await.unwrap();
        assert!(carrel_shim_client::sandboxes(world.home.path()).unwrap().is_empty());
        assert!(world.home.path().join("services").join(&place.disk).join("one/disk").exists(), "their disks stay");
        world.local.remove(&place).await.unwrap();
        assert_eq!(traces(&world, &place), Vec::<String>::new());
    });
}

#[test]
fn a_service_does_not_outlive_a_sandbox_that_ended_by_itself() {
    run(async {
        let world = World::new();
        let limits = Limits { cpu_millis: Some(500), memory: Some(128 << 20), disk: Some(32 << 20) };
        let (place, _, mut told) = beside(&world, &Service { limits, ..server("db") }).await;
        is_ready(&mut told).await;
        let record = found(&world, "demo.db").unwrap().record.unwrap();
        let asked = (record.create.limits.memory, record.create.limits.cpu_millis, record.create.disk);
        assert_eq!(asked, (Some(128 << 20), Some(500), 32 << 20));
        let handle = found(&world, "demo").unwrap().record.unwrap().shim_handle().unwrap();
        let mut facts = world.watch(&place, 0);
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
        all(&mut facts).await;
        world.local.forget(&place).await.unwrap();
        assert!(carrel_shim_client::sandboxes(world.home.path()).unwrap().is_empty());
        world.local.remove(&place).await.unwrap();
        assert_eq!(traces(&world, &place), Vec::<String>::new());
    });
}

#[test]
fn services_of_a_deleted_sandbox_go_and_those_of_a_sandbox_in_use_stay() {
    run(async {
        let mut world = World::new();
        let spec = with(&[server("db")]);
        let (used, unused) = (world.started("used", &spec).await, world.started("unused", &spec).await);
        let mut told = [&used, &unused].map(|place| tended(&world, place, &spec).pop().unwrap());
        for told in &mut told {
            is_ready(told).await;
        }
        let in_use = InUse {
            incarnations: [used.incarnation.clone()].into(),
            disks: [used.disk.clone()].into(),
            deleted: [unused.disk.clone()].into(),
        };
        let in_use = move || in_use.clone();
        world.local.reap(&in_use).await.unwrap();
        assert_eq!(asked(&world, &unused, "exec-1", "db").await, "1", "it is in our own hands");
        world.next();
        drop(told);
        // The sandbox, its service, and the disks of both.
        assert!(world.local.reap(&in_use).await.unwrap().removed >= 4);
        assert!(found(&world, "unused.db").is_none() && found(&world, "unused").is_none());
        assert!(!world.home.path().join("services").join(&unused.disk).exists());
        assert!(world.local.adopt(&used, &spec).await.unwrap());
        assert_eq!(asked(&world, &used, "exec-2", "db").await, "1");
        world.local.remove(&used).await.unwrap();
        assert_eq!(traces(&world, &used), Vec::<String>::new());
    });
}

#[test]
fn a_service_of_an_earlier_start_does_not_stay_beside_a_later_one() {
    run(async {
        let mut world = World::new();
        let (first, spec, mut told) = beside(&world, &server("db")).await;
        is_ready(&mut told).await;
        world.next();
        drop(told);
        // A daemon died between two starts: nobody ended the first.
        let second = crate::world::again(&first);
        world.local.start(&second, &spec).await.unwrap();
        assert!(found(&world, "demo.db").is_none());
        let mut told = tended(&world, &second, &spec).pop().unwrap();
        is_ready(&mut told).await;
        assert_eq!(asked(&world, &second, "exec-1", "db").await, "2");
        let alone = world.started("alone", &host()).await;
        for place in [&second, &alone] {
            world.local.remove(place).await.unwrap();
        }
        assert_eq!(traces(&world, &second), Vec::<String>::new());
    });
}
