//! Courses that lives of sandboxes take. Whatever happens to their daemons, this is what happens to them.

use std::net::TcpListener;

use carrel_api::agbox::v1::{CompanionContainerSpec, CreateSpec, EventType, ExecState, PortMapping, SandboxState};
use carrel_tests::port;

use crate::client::host;
use crate::life::{Liveness, check_counted, counter, seen};

const ACCEPTED: EventType = EventType::SandboxAccepted;
const PREPARING: EventType = EventType::SandboxPreparing;
const READY: EventType = EventType::SandboxReady;
const FAILED: EventType = EventType::SandboxFailed;
const STOPPING: EventType = EventType::SandboxStopRequested;
const STOPPED: EventType = EventType::SandboxStopped;
const DELETING: EventType = EventType::SandboxDeleteRequested;
const DELETED: EventType = EventType::SandboxDeleted;

/// The sandbox of each course.
const BOX: &str = "life-box";
/// One that cannot be made.
const BROKEN: &str = "broken-box";

fn open(host_port: u16) -> PortMapping {
    PortMapping { container_port: 80, host_port: host_port.into(), protocol: 0 }
}

/// One that works, stops, works again and goes, and one that cannot be made: somebody else has its port. Everything that
/// a daemon does is done in it.
pub(crate) async fn long(mut life: Liveness) {
    let port = port();
    let side = CompanionContainerSpec {
        name: "side".to_owned(),
        image: "host".to_owned(),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        ..CompanionContainerSpec::default()
    };
    life.create(BOX, CreateSpec { ports: vec![open(port)], companion_containers: vec![side], ..host() }).await;
    life.until(BOX, SandboxState::Ready).await;
    life.told_of_services(BOX, 1).await;
    work(&mut life).await;

    life.exec(BOX, "count-2", &counter("count-2")).await;
    life.exec(BOX, "seen-2", &seen("count-2")).await;
    life.until_ended("seen-2").await;
    life.stop(BOX).await;
    life.until(BOX, SandboxState::Stopped).await;
    assert_eq!(life.until_ended("count-2").await.0, ExecState::Failed);
    life.resume(BOX).await;
    life.until(BOX, SandboxState::Ready).await;
    life.told_of_services(BOX, 2).await;
    life.exec(BOX, "look-3", "cat runs").await;
    assert_eq!(life.until_ended("look-3").await, (ExecState::Finished, 0));
    // It runs when the sandbox goes.
    life.exec(BOX, "count-3", &counter("count-3")).await;
    life.exec(BOX, "seen-3", &seen("count-3")).await;
    life.until_ended("seen-3").await;
    life.delete(BOX).await;
    life.until(BOX, SandboxState::Deleted).await;

    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    life.create(BROKEN, CreateSpec { ports: vec![open(taken.local_addr().unwrap().port())], ..host() }).await;
    life.until(BROKEN, SandboxState::Failed).await;
    life.delete(BROKEN).await;
    life.until(BROKEN, SandboxState::Deleted).await;

    let twice = [ACCEPTED, PREPARING, READY, STOPPING, STOPPED, ACCEPTED, READY, DELETING, DELETED];
    assert_eq!(life.phases(BOX).await, twice);
    assert_eq!(life.phases(BROKEN).await, [ACCEPTED, PREPARING, FAILED, DELETING, DELETED]);
    for exec in ["count-1", "count-2", "count-3"] {
        check_counted(&life.home.wrote(BOX, exec));
    }
    let mut ran: Vec<String> = life.home.wrote(BOX, "look-3").lines().map(str::to_owned).collect();
    ran.sort();
    // This one may have been cancelled before it began.
    if ran.last().is_some_and(|last| last == "long-1") {
        ran.pop();
    }
    assert_eq!(ran, ["count-1", "count-2", "end-1"], "something ran twice, or not at all");
    assert!(life.has_fallen(), "that place was never reached");
    life.end(&[port]).await;
}

/// Commands that end by themselves, and one that is cancelled.
async fn work(life: &mut Liveness) {
    life.exec(BOX, "count-1", &counter("count-1")).await;
    life.exec(BOX, "long-1", "echo long-1 >> runs; exec sleep 1000").await;
    life.cancel("long-1").await;
    assert_eq!(life.until_ended("long-1").await, (ExecState::Cancelled, 137));
    life.exec(BOX, "end-1", &format!("echo end-1 >> runs; {}; touch end", seen("count-1"))).await;
    assert_eq!(life.until_ended("end-1").await, (ExecState::Finished, 0));
    assert_eq!(life.until_ended("count-1").await, (ExecState::Failed, 42));
    life.exec(BOX, "clear-1", "rm end").await;
    assert_eq!(life.until_ended("clear-1").await, (ExecState::Finished, 0));
}

/// One that is deleted before it is there.
pub(crate) async fn short(mut life: Liveness) {
    let port = port();
    let command = ["sleep", "1000"].map(str::to_owned).to_vec();
    life.create(BOX, CreateSpec { command, ports: vec![open(port)], ..host() }).await;
    life.delete(BOX).await;
    life.until(BOX, SandboxState::Deleted).await;
    let phases = life.phases(BOX).await;
    assert_eq!((phases.first(), phases.last()), (Some(&ACCEPTED), Some(&DELETED)));
    assert_eq!(phases.iter().filter(|phase| **phase == DELETING).count(), 1, "{phases:?}");
    life.end(&[port]).await;
}

/// One that is stopped while a command of it is being cancelled, and cannot be resumed until its port is free.
pub(crate) async fn unlucky(mut life: Liveness) {
    let port = port();
    let command = ["sleep", "1000"].map(str::to_owned).to_vec();
    life.create(BOX, CreateSpec { command, ports: vec![open(port)], ..host() }).await;
    life.until(BOX, SandboxState::Ready).await;
    life.exec(BOX, "count-1", &counter("count-1")).await;
    life.exec(BOX, "stubborn-1", &format!("trap '' TERM; {}", counter("stubborn-1"))).await;
    life.exec(BOX, "seen-1", &format!("{}; {}", seen("count-1"), seen("stubborn-1"))).await;
    assert_eq!(life.until_ended("seen-1").await, (ExecState::Finished, 0));
    life.cancel("stubborn-1").await;
    life.stop(BOX).await;
    life.until(BOX, SandboxState::Stopped).await;
    assert_eq!(life.until_ended("stubborn-1").await.0, ExecState::Cancelled);
    assert_eq!(life.until_ended("count-1").await.0, ExecState::Failed);
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    life.resume(BOX).await;
    life.until(BOX, SandboxState::Failed).await;
    drop(taken);
    life.resume(BOX).await;
    life.until(BOX, SandboxState::Ready).await;
    life.delete(BOX).await;
    life.until(BOX, SandboxState::Deleted).await;
    let mut phases = life.phases(BOX).await;
    // Whoever repeats a resume whose answer was lost resumes one that failed meanwhile.
    while phases.windows(4).any(|four| four == [ACCEPTED, FAILED, ACCEPTED, FAILED]) {
        let first = phases.iter().position(|phase| *phase == FAILED).unwrap();
        phases.drain(first - 1..=first);
    }
    let stopped = [ACCEPTED, PREPARING, READY, STOPPING, STOPPED];
    assert_eq!(phases, [&stopped[..], &[ACCEPTED, FAILED, ACCEPTED, READY, DELETING, DELETED]].concat());
    for exec in ["count-1", "stubborn-1"] {
        check_counted(&life.home.wrote(BOX, exec));
    }
    life.end(&[port]).await;
}
