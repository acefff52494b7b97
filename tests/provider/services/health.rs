//! Health checks of services: when a service is reported ready, and how its failure is reported.

use std::time::Duration;

use carrel_control::provider::Provider;
use carrel_control::spec::{Healthcheck, Service};
use carrel_shim_client::Liveness;
use carrel_shim_client::messages::FactKind;
use carrel_tests::run;

use super::{
    check, connect_shim, discover, expect_failed, expect_ready, query, run_inside, server, service, spec_with,
    start_services, start_with_service, strings,
};
use crate::harness::{ProviderHarness, host_spec};

/// A server that becomes healthy when a client has connected.
const LATE: &str = "
import socket
server = socket.create_server(('127.0.0.1', 80))
server.accept()[0].sendall(b'now')
open('/dev/shm/up', 'w')
server.accept()
";

/// The number of failed health checks of the service.
async fn failures(harness: &ProviderHarness) -> usize {
    if !discover(harness, "demo.db").is_some_and(|found| found.life == Liveness::Running) {
        return 0;
    }
    let facts = connect_shim(harness, "demo.db").await.journal(1).await.unwrap();
    let ended = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded);
    ended.filter(|fact| fact.job.as_ref().is_some_and(|job| job.starts_with("check."))).count()
}

#[test]
fn a_service_that_starts_slowly_is_reported_ready_when_it_is_healthy_and_not_before() {
    run(async {
        let harness = ProviderHarness::new();
        let starting = Healthcheck {
            start_period: Some(Duration::from_secs(3600)),
            start_interval: Some(Duration::from_millis(10)),
            ..check("test -e /dev/shm/up").unwrap()
        };
        let late = Service { healthcheck: Some(starting), command: strings(["python3", "-c", LATE]), ..server("db") };
        let (instance, _, mut reports) = start_with_service(&harness, &late).await;
        // More failures than `retries` allows after the start period.
        while failures(&harness).await < 10 {
            tokio::task::yield_now().await;
        }
        assert!(reports.try_recv().is_err());
        let wait = "until python3 -c \"import socket; socket.create_connection(('db', 80)).recv(9)\"; do :; done";
        harness.shell(&instance, "exec-1", wait).await;
        expect_ready(&mut reports).await;
        let before = failures(&harness).await;
        assert!(reports.try_recv().is_err());
        run_inside(&harness, "demo.db", "true").await;
        assert_eq!(failures(&harness).await, before, "a healthy service is checked no further");
    });
}

#[test]
fn an_unhealthy_service_is_reported_once_with_the_output_of_its_check() {
    run(async {
        let mut harness = ProviderHarness::new();
        let failing = Healthcheck { retries: 2, ..check("echo no pulse >&2; exit 4").unwrap() };
        let unhealthy = Service { healthcheck: Some(failing), ..service("db", "exec sleep 1000") };
        let (instance, spec, mut reports) = start_with_service(&harness, &unhealthy).await;
        let error = expect_failed(&mut reports).await;
        assert_eq!(error.code, None);
        let expected = "service db: unhealthy: 2 checks in a row failed: exit code 4: no pulse";
        assert_eq!(error.message, expected);
        assert_eq!(harness.shell(&instance, "exec-1", "echo here").await, "here\n", "the sandbox keeps running");
        // The next provider knows it without another check.
        harness.restart_provider();
        assert!(harness.local.adopt(&instance, &spec).await.unwrap());
        let mut reports = start_services(&harness, &instance, &spec).pop().unwrap();
        assert_eq!(expect_failed(&mut reports).await.message, expected);
        assert_eq!(failures(&harness).await, 2);
    });
}

#[test]
fn a_check_that_times_out_fails() {
    run(async {
        let harness = ProviderHarness::new();
        let slow = Healthcheck {
            test: strings(["CMD", "sleep", "1000"]),
            timeout: Some(Duration::from_millis(50)),
            retries: 1,
            ..check("").unwrap()
        };
        let slow = Service { healthcheck: Some(slow), ..service("db", "exec sleep 1000") };
        let error = expect_failed(&mut start_with_service(&harness, &slow).await.2).await;
        assert!(error.message.ends_with("timed out"), "{error}");
    });
}

#[test]
fn a_command_that_crashes_repeatedly_fails_the_service_and_not_the_sandbox() {
    run(async {
        let mut harness = ProviderHarness::new();
        let broken = service("db", "echo because >&2; exit 3");
        let (instance, spec, mut reports) = start_with_service(&harness, &broken).await;
        // Without a health check it is ready once it runs.
        expect_ready(&mut reports).await;
        let error = expect_failed(&mut reports).await;
        assert_eq!(error.code, Some("CONTAINER_CRASHLOOP"));
        assert!(error.message.ends_with("exit code 3: because"), "{error}");
        assert_eq!(harness.shell(&instance, "exec-1", "echo here").await, "here\n");
        harness.restart_provider();
        let mut reports = start_services(&harness, &instance, &spec).pop().unwrap();
        assert_eq!(expect_failed(&mut reports).await, error, "the next provider does not report it ready");
    });
}

#[test]
fn a_command_that_exits_is_restarted() {
    run(async {
        let harness = ProviderHarness::new();
        let (instance, _, mut reports) = start_with_service(&harness, &server("db")).await;
        expect_ready(&mut reports).await;
        let mut shim = connect_shim(&harness, "demo.db").await;
        shim.signal("primary.0", 9).await.unwrap();
        shim.wait("primary.0").await.unwrap();
        while shim.job("primary.1").await.is_err() {
            tokio::task::yield_now().await;
        }
        let wait = "until python3 -c \"import socket; socket.create_connection(('db', 80))\" 2>&-; do :; done";
        harness.shell(&instance, "exec-1", wait).await;
        assert_eq!(query(&harness, &instance, "exec-2", "db").await, "2");
        assert!(reports.try_recv().is_err(), "a restart of the command is not reported");
    });
}

#[test]
fn a_service_whose_sandbox_dies_is_recreated_with_its_disk() {
    run(async {
        let harness = ProviderHarness::new();
        let (instance, _, mut reports) = start_with_service(&harness, &server("db")).await;
        expect_ready(&mut reports).await;
        let handle = discover(&harness, "demo.db").unwrap().record.unwrap().shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
        let wait = "until python3 -c \"import socket; assert \
                    socket.create_connection(('db', 80)).recv(9) == b'2'\" 2>&-; do :; done";
        harness.shell(&instance, "exec-1", wait).await;
        assert!(reports.try_recv().is_err());
        harness.local.remove(&instance).await.unwrap();
    });
}

#[test]
fn services_that_cannot_start_are_reported_and_do_not_delay_the_others() {
    run(async {
        let harness = ProviderHarness::new();
        let spec = spec_with(&[
            Service { command: Vec::new(), ..service("silent", "") },
            Service { command: strings(["/no/such/program"]), ..service("absent", "") },
            Service { image: "/no/such/image".to_owned(), ..service("nowhere", "true") },
            server("a name.with everything/in it"),
        ]);
        let instance = harness.start("demo", &spec).await;
        let mut reports = start_services(&harness, &instance, &spec);
        let (mut healthy, mut failing) = (reports.pop().unwrap(), reports);
        expect_ready(&mut healthy).await;
        assert_eq!(query(&harness, &instance, "exec-1", "a-name.with-everything-in-it").await, "1");
        for (reports, expected) in failing.iter_mut().zip(["no command", "/no/such/program", "/no/such/image"]) {
            let error = expect_failed(reports).await;
            assert!(error.message.contains(expected), "{error}");
        }
        let none = harness.start("none", &host_spec()).await;
        assert!(!harness.home.path().join("services").join(&none.disk).exists());
    });
}
