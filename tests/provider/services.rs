//! Services beside a sandbox: name resolution, readiness, and a lifetime that is bound to the sandbox.

mod health;
mod hooks;
mod shutdown;

use std::time::Duration;

use carrel_control::provider::{How, Place, Provider, ProviderError, ServiceFact};
use carrel_control::spec::{Healthcheck, Service, Spec};
use carrel_shim_client::messages::{JobCommand, StreamName};
use carrel_shim_client::{DiscoveredSandbox, Liveness, ShimClient};
use carrel_tests::run;
use tokio::sync::mpsc::Receiver;

use crate::harness::{ProviderHarness, host_spec, next_incarnation, script};

/// Sends each client the number of its starts, over all incarnations of its sandbox.
const SERVER: &str = "
import socket
with open('/root/starts', 'a') as file: file.write('x')
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 80))
server.listen()
open('/dev/shm/up', 'w')
while True:
    client = server.accept()[0]
    client.sendall(b'%d' % len(open('/root/starts').read()))
    client.close()
";

fn strings<const N: usize>(strings: [&str; N]) -> Vec<String> {
    strings.map(str::to_owned).to_vec()
}

fn service(name: &str, script: &str) -> Service {
    let (name, image) = (name.to_owned(), "host".to_owned());
    Service { name, image, command: strings(["sh", "-c", script]), ..Service::default() }
}

/// A health check that runs a script.
fn check(script: &str) -> Option<Healthcheck> {
    let interval = Some(Duration::from_millis(20));
    Some(Healthcheck { test: strings(["CMD-SHELL", script]), interval, ..Healthcheck::default() })
}

/// A server that is healthy once it listens.
fn server(name: &str) -> Service {
    let healthcheck = check("test -e /dev/shm/up").map(|check| Healthcheck { retries: 1000, ..check });
    Service { command: strings(["python3", "-c", SERVER]), healthcheck, ..service(name, "") }
}

fn spec_with(services: &[Service]) -> Spec {
    Spec { services: services.to_vec(), ..host_spec() }
}

/// Starts all services of a sandbox. Each receiver reports the state of one.
fn start_services(harness: &ProviderHarness, instance: &Place, spec: &Spec) -> Vec<Receiver<ServiceFact>> {
    spec.services.iter().map(|service| harness.local.service(instance, spec, service)).collect()
}

/// Starts a sandbox with one service.
async fn start_with_service(harness: &ProviderHarness, service: &Service) -> (Place, Spec, Receiver<ServiceFact>) {
    let spec = spec_with(std::slice::from_ref(service));
    let instance = harness.start("demo", &spec).await;
    let reports = start_services(harness, &instance, &spec).pop().unwrap();
    (instance, spec, reports)
}

async fn expect_ready(reports: &mut Receiver<ServiceFact>) {
    assert_eq!(reports.recv().await, Some(ServiceFact::Ready));
}

/// Waits for the failure of a service, which must be the last report. Returns its error.
async fn expect_failed(reports: &mut Receiver<ServiceFact>) -> ProviderError {
    match reports.recv().await {
        Some(ServiceFact::Failed(error)) => {
            assert_eq!(reports.recv().await, None);
            error
        }
        other => panic!("{other:?}"),
    }
}

/// Connects to a server by name from inside the sandbox. Returns its response.
async fn query(harness: &ProviderHarness, instance: &Place, id: &str, name: &str) -> String {
    let ask = format!("import socket; print(socket.create_connection(('{name}', 80)).recv(9).decode())");
    harness.shell(instance, id, &format!("python3 -c \"{ask}\"")).await.trim_end().to_owned()
}

/// The sandbox of a service, if discovery finds it.
fn discover(harness: &ProviderHarness, name: &str) -> Option<DiscoveredSandbox> {
    carrel_shim_client::find(harness.home.path(), name).unwrap()
}

async fn connect_shim(harness: &ProviderHarness, name: &str) -> ShimClient {
    discover(harness, name).unwrap().connect().await.unwrap()
}

/// Runs a script in the sandbox of a service. Returns its output.
async fn run_inside(harness: &ProviderHarness, name: &str, script: &str) -> String {
    let mut shim = connect_shim(harness, name).await;
    let job = format!("test-{}", shim.jobs().await.unwrap().len());
    let command = JobCommand { program: "sh".to_owned(), args: strings(["-c", script]), ..JobCommand::default() };
    shim.start(&job, &command).await.unwrap();
    shim.wait(&job).await.unwrap();
    String::from_utf8(shim.read(&job, StreamName::Stdout, 0, 4096).await.unwrap().data).unwrap()
}

/// What exists on this host of a sandbox and its services, except logs.
fn traces(harness: &ProviderHarness, instance: &Place) -> Vec<String> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    let groups = hierarchies.map(|hierarchy| hierarchy.join("carrel"));
    let below = |name: &str| harness.home.path().join(name);
    let directories = groups.chain(["run/sandboxes", "services", "disks"].map(below));
    let entries =
        directories.filter_map(|path| std::fs::read_dir(path).ok()).flatten().map(|entry| entry.unwrap().path());
    let paths = entries.map(|path| path.to_str().unwrap().to_owned());
    let home = harness.home.path().to_str().unwrap();
    paths.filter(|path| path.contains(&instance.incarnation) || path.starts_with(home)).collect()
}

#[test]
fn services_are_reachable_by_name_from_the_sandbox_and_from_each_other() {
    run(async {
        let harness = ProviderHarness::new();
        let connect = "python3 -c \"import socket; socket.create_connection(('first', 80))\"";
        let second = Service { healthcheck: check(connect), ..service("second", "exec sleep 1000") };
        let healthcheck = second.healthcheck.map(|check| Healthcheck { retries: 1000, ..check });
        let spec = spec_with(&[server("first"), Service { healthcheck, ..second }]);
        let instance = harness.start("demo", &spec).await;
        for reports in &mut start_services(&harness, &instance, &spec) {
            expect_ready(reports).await;
        }
        assert_eq!(query(&harness, &instance, "exec-1", "first").await, "1");
        let names = "grep -c -e '^127.0.0.1.first$' -e '^127.0.0.1.second$' -e localhost /etc/hosts";
        assert_eq!(harness.shell(&instance, "exec-2", names).await, "4\n");
        for name in ["demo.first", "demo.second"] {
            assert_eq!(run_inside(&harness, name, names).await, "4\n");
        }
        assert_eq!(run_inside(&harness, "demo.first", "hostname; id -u").await, "first\n0\n");
        // They share the network namespace, but not /dev/shm.
        assert_eq!(harness.shell(&instance, "exec-3", "ls /dev/shm/up 2>&1 | grep -c 'No such'").await, "1\n");
        let other = harness.start("other", &host_spec()).await;
        let connect =
            |id: &str| script(id, "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 80))\"");
        assert_eq!(harness.run_exec(&instance, &connect("exec-4")).await, How::Exited(0), "the control");
        assert_eq!(harness.run_exec(&other, &connect("exec-5")).await, How::Exited(1));
    });
}

#[test]
fn a_service_keeps_its_files_and_reports_its_readiness_in_each_start_of_the_sandbox() {
    run(async {
        let harness = ProviderHarness::new();
        let (mut instance, spec, mut reports) = start_with_service(&harness, &server("db")).await;
        for starts in ["1", "2", "3"] {
            expect_ready(&mut reports).await;
            assert_eq!(query(&harness, &instance, &format!("exec-{starts}"), "db").await, starts);
            harness.local.stop(&instance, Duration::from_secs(2)).await.unwrap();
            assert_eq!(reports.recv().await, None);
            assert!(!matches!(discover(&harness, "demo.db").unwrap().life, Liveness::Running));
            instance = next_incarnation(&instance);
            harness.local.start(&instance, &spec).await.unwrap();
            reports = start_services(&harness, &instance, &spec).pop().unwrap();
        }
        expect_ready(&mut reports).await;
        harness.local.remove(&instance).await.unwrap();
        assert_eq!(traces(&harness, &instance), Vec::<String>::new());
    });
}

#[test]
fn a_service_keeps_running_without_a_daemon_and_is_adopted() {
    run(async {
        let mut harness = ProviderHarness::new();
        let (instance, spec, mut reports) = start_with_service(&harness, &server("db")).await;
        expect_ready(&mut reports).await;
        let shim_pid = discover(&harness, "demo.db").unwrap().record.unwrap().shim_pid;
        harness.restart_provider();
        drop(reports);
        assert!(harness.local.adopt(&instance, &spec).await.unwrap());
        let mut reports = start_services(&harness, &instance, &spec).pop().unwrap();
        expect_ready(&mut reports).await;
        assert_eq!(query(&harness, &instance, "exec-1", "db").await, "1");
        assert_eq!(discover(&harness, "demo.db").unwrap().record.unwrap().shim_pid, shim_pid);
        let jobs = connect_shim(&harness, "demo.db").await.jobs().await.unwrap();
        assert_eq!(jobs.iter().filter(|job| job.job.starts_with("primary.")).count(), 1);
        harness.local.remove(&instance).await.unwrap();
        assert_eq!(traces(&harness, &instance), Vec::<String>::new());
    });
}

#[test]
fn a_running_service_does_not_make_its_sandbox_active_and_pauses_with_it() {
    run(async {
        let harness = ProviderHarness::new();
        let with_hook = Service { post_start_on_primary: strings(["true"]), ..server("db") };
        let (instance, _, mut reports) = start_with_service(&harness, &with_hook).await;
        expect_ready(&mut reports).await;
        assert!(!harness.local.is_active(&instance).await.unwrap());
        for paused in [true, false] {
            harness.local.pause(&instance, paused).await.unwrap();
            assert_eq!(connect_shim(&harness, "demo.db").await.statistics().await.unwrap().paused, paused);
        }
        assert_eq!(query(&harness, &instance, "exec-1", "db").await, "1");
    });
}
