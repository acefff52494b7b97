//! Whether a service is well, and what is told when it is not.

use std::time::Duration;

use carrel_control::provider::Provider;
use carrel_control::spec::{Healthcheck, Service};
use carrel_shim_client::Liveness;
use carrel_shim_client::messages::FactKind;
use carrel_tests::run;

use super::{
    asked, beside, check, found, inside, is_given_up, is_ready, server, service, supervisor, tended, with, words,
};
use crate::world::{World, host};

/// Is well once somebody has connected.
const LATE: &str = "
import socket
server = socket.create_server(('127.0.0.1', 80))
server.accept()[0].sendall(b'now')
open('/dev/shm/up', 'w')
server.accept()
";

/// How often a service was found unwell.
async fn failures(world: &World) -> usize {
    if !found(world, "demo.db").is_some_and(|found| found.life == Liveness::Running) {
        return 0;
    }
    let facts = supervisor(world, "demo.db").await.journal(1).await.unwrap();
    let ended = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded);
    ended.filter(|fact| fact.job.as_ref().is_some_and(|job| job.starts_with("check."))).count()
}

#[test]
fn a_service_that_takes_its_time_is_told_when_it_is_well_and_not_before() {
    run(async {
        let world = World::new();
        let starting = Healthcheck {
            start_period: Some(Duration::from_secs(3600)),
            start_interval: Some(Duration::from_millis(10)),
            ..check("test -e /dev/shm/up").unwrap()
        };
        let late = Service { healthcheck: Some(starting), command: words(["python3", "-c", LATE]), ..server("db") };
        let (place, _, mut told) = beside(&world, &late).await;
        // More often than it may fail once it has started.
        while failures(&world).await < 10 {
            tokio::task::yield_now().await;
        }
        assert!(told.try_recv().is_err());
        let wait = "until python3 -c \"import socket; socket.create_connection(('db', 80)).recv(9)\"; do :; done";
        world.shell(&place, "exec-1", wait).await;
        is_ready(&mut told).await;
        let looked = failures(&world).await;
        assert!(told.try_recv().is_err());
        inside(&world, "demo.db", "true").await;
        assert_eq!(failures(&world).await, looked, "one that is well is not looked at any more");
    });
}

#[test]
fn a_service_that_is_not_well_is_told_once_with_what_its_check_said() {
    run(async {
        let mut world = World::new();
        let sick = Healthcheck { retries: 2, ..check("echo no pulse >&2; exit 4").unwrap() };
        let sick = Service { healthcheck: Some(sick), ..service("db", "exec sleep 1000") };
        let (place, spec, mut told) = beside(&world, &sick).await;
        let error = is_given_up(&mut told).await;
        assert_eq!(error.code, None);
        let expected = "service db: unhealthy: 2 checks in a row failed: exit code 4: no pulse";
        assert_eq!(error.message, expected);
        assert_eq!(world.shell(&place, "exec-1", "echo here").await, "here\n", "the sandbox goes on");
        // Whoever comes next knows it without looking.
        world.next();
        assert!(world.local.adopt(&place, &spec).await.unwrap());
        let mut told = tended(&world, &place, &spec).pop().unwrap();
        assert_eq!(is_given_up(&mut told).await.message, expected);
        assert_eq!(failures(&world).await, 2);
    });
}

#[test]
fn a_check_that_takes_too_long_has_failed() {
    run(async {
        let world = World::new();
        let slow = Healthcheck {
            test: words(["CMD", "sleep", "1000"]),
            timeout: Some(Duration::from_millis(50)),
            retries: 1,
            ..check("").unwrap()
        };
        let slow = Service { healthcheck: Some(slow), ..service("db", "exec sleep 1000") };
        let error = is_given_up(&mut beside(&world, &slow).await.2).await;
        assert!(error.message.ends_with("timed out"), "{error}");
    });
}

#[test]
fn a_command_that_ends_again_and_again_fails_the_service_and_not_the_sandbox() {
    run(async {
        let mut world = World::new();
        let broken = service("db", "echo because >&2; exit 3");
        let (place, spec, mut told) = beside(&world, &broken).await;
        // Nobody asked how it is, so it is well once it runs.
        is_ready(&mut told).await;
        let error = is_given_up(&mut told).await;
        assert_eq!(error.code, Some("CONTAINER_CRASHLOOP"));
        assert!(error.message.ends_with("exit code 3: because"), "{error}");
        assert_eq!(world.shell(&place, "exec-1", "echo here").await, "here\n");
        world.next();
        let mut told = tended(&world, &place, &spec).pop().unwrap();
        assert_eq!(is_given_up(&mut told).await, error, "it is not well again for the next who comes");
    });
}

#[test]
fn a_command_that_ends_is_run_again() {
    run(async {
        let world = World::new();
        let (place, _, mut told) = beside(&world, &server("db")).await;
        is_ready(&mut told).await;
        let mut shim = supervisor(&world, "demo.db").await;
        shim.signal("primary.0", 9).await.unwrap();
        shim.wait("primary.0").await.unwrap();
        while shim.job("primary.1").await.is_err() {
            tokio::task::yield_now().await;
        }
        let wait = "until python3 -c \"import socket; socket.create_connection(('db', 80))\" 2>&-; do :; done";
        world.shell(&place, "exec-1", wait).await;
        assert_eq!(asked(&world, &place, "exec-2", "db").await, "2");
        assert!(told.try_recv().is_err(), "that is nobody's concern");
    });
}

#[test]
fn a_service_whose_sandbox_ends_is_made_again_with_its_disk() {
    run(async {
        let world = World::new();
        let (place, _, mut told) = beside(&world, &server("db")).await;
        is_ready(&mut told).await;
        let handle = found(&world, "demo.db").unwrap().record.unwrap().shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
        let wait = "until python3 -c \"import socket; assert \
                    socket.create_connection(('db', 80)).recv(9) == b'2'\" 2>&-; do :; done";
        world.shell(&place, "exec-1", wait).await;
        assert!(told.try_recv().is_err());
        world.local.remove(&place).await.unwrap();
    });
}

#[test]
fn what_cannot_be_run_is_told_and_delays_nobody() {
    run(async {
        let world = World::new();
        let spec = with(&[
            Service { command: Vec::new(), ..service("silent", "") },
            Service { command: words(["/no/such/program"]), ..service("absent", "") },
            Service { image: "/no/such/image".to_owned(), ..service("nowhere", "true") },
            server("a name.with everything/in it"),
        ]);
        let place = world.started("demo", &spec).await;
        let mut told = tended(&world, &place, &spec);
        let (mut good, mut bad) = (told.pop().unwrap(), told);
        is_ready(&mut good).await;
        assert_eq!(asked(&world, &place, "exec-1", "a-name.with-everything-in-it").await, "1");
        for (told, expected) in bad.iter_mut().zip(["no command", "/no/such/program", "/no/such/image"]) {
            let error = is_given_up(told).await;
            assert!(error.message.contains(expected), "{error}");
        }
        let none = world.started("none", &host()).await;
        assert!(!world.home.path().join("services").join(&none.disk).exists());
    });
}
