//! Services beside a sandbox: reached by name, seen to be well, kept with it and gone with it.

mod ended;
mod health;
mod hooks;

use std::time::Duration;

use carrel_control::provider::{How, Place, Provider, ProviderError, ServiceFact};
use carrel_control::spec::{Healthcheck, Service, Spec};
use carrel_shim_client::messages::{JobCommand, StreamName};
use carrel_shim_client::{DiscoveredSandbox, Liveness, ShimClient};
use carrel_tests::run;
use tokio::sync::mpsc::Receiver;

use crate::world::{World, again, host, script};

/// Tells whoever connects how often it was started, in all starts of its sandbox.
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

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn service(name: &str, script: &str) -> Service {
    let (name, image) = (name.to_owned(), "host".to_owned());
    Service { name, image, command: words(["sh", "-c", script]), ..Service::default() }
}

/// What is well when a script says so.
fn check(script: &str) -> Option<Healthcheck> {
    let interval = Some(Duration::from_millis(20));
    Some(Healthcheck { test: words(["CMD-SHELL", script]), interval, ..Healthcheck::default() })
}

/// A server that is well once it listens.
fn server(name: &str) -> Service {
    let healthcheck = check("test -e /dev/shm/up").map(|check| Healthcheck { retries: 1000, ..check });
    Service { command: words(["python3", "-c", SERVER]), healthcheck, ..service(name, "") }
}

fn with(services: &[Service]) -> Spec {
    Spec { services: services.to_vec(), ..host() }
}

/// Has all services of a sandbox run.
fn tended(world: &World, place: &Place, spec: &Spec) -> Vec<Receiver<ServiceFact>> {
    spec.services.iter().map(|service| world.local.service(place, spec, service)).collect()
}

/// A sandbox with one service.
async fn beside(world: &World, service: &Service) -> (Place, Spec, Receiver<ServiceFact>) {
    let spec = with(std::slice::from_ref(service));
    let place = world.started("demo", &spec).await;
    let told = tended(world, &place, &spec).pop().unwrap();
    (place, spec, told)
}

async fn is_ready(told: &mut Receiver<ServiceFact>) {
    assert_eq!(told.recv().await, Some(ServiceFact::Ready));
}

/// Waits until it is given up; nothing may follow.
async fn is_given_up(told: &mut Receiver<ServiceFact>) -> ProviderError {
    match told.recv().await {
        Some(ServiceFact::Failed(error)) => {
            assert_eq!(told.recv().await, None);
            error
        }
        other => panic!("{other:?}"),
    }
}

/// What a server says, asked from the sandbox by a name.
async fn asked(world: &World, place: &Place, id: &str, name: &str) -> String {
    let ask = format!("import socket; print(socket.create_connection(('{name}', 80)).recv(9).decode())");
    world.shell(place, id, &format!("python3 -c \"{ask}\"")).await.trim_end().to_owned()
}

/// The sandbox of a service.
fn found(world: &World, name: &str) -> Option<DiscoveredSandbox> {
    carrel_shim_client::find(world.home.path(), name).unwrap()
}

async fn supervisor(world: &World, name: &str) -> ShimClient {
    found(world, name).unwrap().connect().await.unwrap()
}

/// What a script says that runs in the sandbox of a service.
async fn inside(world: &World, name: &str, script: &str) -> String {
    let mut shim = supervisor(world, name).await;
    let job = format!("test-{}", shim.jobs().await.unwrap().len());
    let command = JobCommand { program: "sh".to_owned(), args: words(["-c", script]), ..JobCommand::default() };
    shim.start(&job, &command).await.unwrap();
    shim.wait(&job).await.unwrap();
    String::from_utf8(shim.read(&job, StreamName::Stdout, 0, 4096).await.unwrap().data).unwrap()
}

/// What there is on this host of a sandbox and all services beside it, but for logs.
fn traces(world: &World, place: &Place) -> Vec<String> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    let groups = hierarchies.map(|hierarchy| hierarchy.join("carrel"));
    let below = |name: &str| world.home.path().join(name);
    let places = groups.chain(["run/sandboxes", "services", "disks"].map(below));
    let entries = places.filter_map(|path| std::fs::read_dir(path).ok()).flatten().map(|entry| entry.unwrap().path());
    let shown = entries.map(|path| path.to_str().unwrap().to_owned());
    let home = world.home.path().to_str().unwrap();
    shown.filter(|path| path.contains(&place.incarnation) || path.starts_with(home)).collect()
}

#[test]
fn services_are_reached_by_their_names_and_reach_each_other() {
    run(async {
        let world = World::new();
        let ask = "python3 -c \"import socket; socket.create_connection(('first', 80))\"";
        let second = Service { healthcheck: check(ask), ..service("second", "exec sleep 1000") };
        let patient = second.healthcheck.map(|check| Healthcheck { retries: 1000, ..check });
        let spec = with(&[server("first"), Service { healthcheck: patient, ..second }]);
        let place = world.started("demo", &spec).await;
        for told in &mut tended(&world, &place, &spec) {
            is_ready(told).await;
        }
        assert_eq!(asked(&world, &place, "exec-1", "first").await, "1");
        let names = "grep -c -e '^127.0.0.1.first$' -e '^127.0.0.1.second$' -e localhost /etc/hosts";
        assert_eq!(world.shell(&place, "exec-2", names).await, "4\n");
        for name in ["demo.first", "demo.second"] {
            assert_eq!(inside(&world, name, names).await, "4\n");
        }
        assert_eq!(inside(&world, "demo.first", "hostname; id -u").await, "first\n0\n");
        // They share the network and nothing else.
        assert_eq!(world.shell(&place, "exec-3", "ls /dev/shm/up 2>&1 | grep -c 'No such'").await, "1\n");
        let other = world.started("other", &host()).await;
        let connect =
            |id: &str| script(id, "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 80))\"");
        assert_eq!(world.ran(&place, &connect("exec-4")).await, How::Exited(0), "the control");
        assert_eq!(world.ran(&other, &connect("exec-5")).await, How::Exited(1));
    });
}

#[test]
fn what_a_service_wrote_is_there_when_it_comes_back_and_it_is_told_again() {
    run(async {
        let world = World::new();
        let (mut place, spec, mut told) = beside(&world, &server("db")).await;
        for starts in ["1", "2", "3"] {
            is_ready(&mut told).await;
            assert_eq!(asked(&world, &place, &format!("exec-{starts}"), "db").await, starts);
            world.local.stop(&place, Duration::from_secs(2)).await.unwrap();
            assert_eq!(told.recv().await, None);
            assert!(!matches!(found(&world, "demo.db").unwrap().life, Liveness::Running));
            place = again(&place);
            world.local.start(&place, &spec).await.unwrap();
            told = tended(&world, &place, &spec).pop().unwrap();
        }
        is_ready(&mut told).await;
        world.local.remove(&place).await.unwrap();
        assert_eq!(traces(&world, &place), Vec::<String>::new());
    });
}

#[test]
fn a_service_goes_on_while_nobody_is_there_and_is_taken_over() {
    run(async {
        let mut world = World::new();
        let (place, spec, mut told) = beside(&world, &server("db")).await;
        is_ready(&mut told).await;
        let supervised = found(&world, "demo.db").unwrap().record.unwrap().shim_pid;
        world.next();
        drop(told);
        assert!(world.local.adopt(&place, &spec).await.unwrap());
        let mut told = tended(&world, &place, &spec).pop().unwrap();
        is_ready(&mut told).await;
        assert_eq!(asked(&world, &place, "exec-1", "db").await, "1");
        assert_eq!(found(&world, "demo.db").unwrap().record.unwrap().shim_pid, supervised);
        let checks = supervisor(&world, "demo.db").await.jobs().await.unwrap();
        assert_eq!(checks.iter().filter(|job| job.job.starts_with("primary.")).count(), 1);
        world.local.remove(&place).await.unwrap();
        assert_eq!(traces(&world, &place), Vec::<String>::new());
    });
}

#[test]
fn a_service_is_no_use_of_its_sandbox_and_pauses_with_it() {
    run(async {
        let world = World::new();
        let hooked = Service { post_start_on_primary: words(["true"]), ..server("db") };
        let (place, _, mut told) = beside(&world, &hooked).await;
        is_ready(&mut told).await;
        assert!(!world.local.is_active(&place).await.unwrap());
        for paused in [true, false] {
            world.local.pause(&place, paused).await.unwrap();
            assert_eq!(supervisor(&world, "demo.db").await.statistics().await.unwrap().paused, paused);
        }
        assert_eq!(asked(&world, &place, "exec-1", "db").await, "1");
    });
}
