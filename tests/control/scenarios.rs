//! Scenarios in the life of a sandbox. Their outcome must not depend on when the daemon crashes.

use std::net::TcpListener;

use carrel_api::agbox::v1::{CompanionContainerSpec, CreateSpec, EventType, ExecState, PortMapping, SandboxState};
use carrel_tests::port;

use crate::client::host_spec;
use crate::failover::{FailoverClient, check_counted, counter, wait_for_run};

const ACCEPTED: EventType = EventType::SandboxAccepted;
const PREPARING: EventType = EventType::SandboxPreparing;
const READY: EventType = EventType::SandboxReady;
const FAILED: EventType = EventType::SandboxFailed;
const STOPPING: EventType = EventType::SandboxStopRequested;
const STOPPED: EventType = EventType::SandboxStopped;
const DELETING: EventType = EventType::SandboxDeleteRequested;
const DELETED: EventType = EventType::SandboxDeleted;

/// The sandbox of each scenario.
const BOX: &str = "lifecycle-box";
/// A sandbox that cannot be created.
const BROKEN: &str = "broken-box";

fn publish(host_port: u16) -> PortMapping {
    PortMapping { container_port: 80, host_port: host_port.into(), protocol: 0 }
}

/// A sandbox that runs execs, is stopped, resumed and deleted, and another one that cannot be created because its port is
/// in use. It reaches every failpoint of a daemon.
pub(crate) async fn full_lifecycle(mut client: FailoverClient) {
    let port = port();
    let side = CompanionContainerSpec {
        name: "side".to_owned(),
        image: "host".to_owned(),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        ..CompanionContainerSpec::default()
    };
    client
        .create(BOX, CreateSpec { ports: vec![publish(port)], companion_containers: vec![side], ..host_spec() })
        .await;
    client.wait_for_state(BOX, SandboxState::Ready).await;
    client.wait_for_services(BOX, 1).await;
    run_execs(&mut client).await;

    client.exec(BOX, "count-2", &counter("count-2")).await;
    client.exec(BOX, "wait-2", &wait_for_run("count-2")).await;
    client.wait_for_exec("wait-2").await;
    client.stop(BOX).await;
    client.wait_for_state(BOX, SandboxState::Stopped).await;
    assert_eq!(client.wait_for_exec("count-2").await.0, ExecState::Failed);
    client.resume(BOX).await;
    client.wait_for_state(BOX, SandboxState::Ready).await;
    client.wait_for_services(BOX, 2).await;
    client.exec(BOX, "look-3", "cat runs").await;
    assert_eq!(client.wait_for_exec("look-3").await, (ExecState::Finished, 0));
    // It still runs when the sandbox is deleted.
    client.exec(BOX, "count-3", &counter("count-3")).await;
    client.exec(BOX, "wait-3", &wait_for_run("count-3")).await;
    client.wait_for_exec("wait-3").await;
    client.delete(BOX).await;
    client.wait_for_state(BOX, SandboxState::Deleted).await;

    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    client.create(BROKEN, CreateSpec { ports: vec![publish(taken.local_addr().unwrap().port())], ..host_spec() }).await;
    client.wait_for_state(BROKEN, SandboxState::Failed).await;
    client.delete(BROKEN).await;
    client.wait_for_state(BROKEN, SandboxState::Deleted).await;

    let twice = [ACCEPTED, PREPARING, READY, STOPPING, STOPPED, ACCEPTED, READY, DELETING, DELETED];
    assert_eq!(client.phases(BOX).await, twice);
    assert_eq!(client.phases(BROKEN).await, [ACCEPTED, PREPARING, FAILED, DELETING, DELETED]);
    for exec in ["count-1", "count-2", "count-3"] {
        check_counted(&client.home.exec_stdout(BOX, exec));
    }
    let mut ran: Vec<String> = client.home.exec_stdout(BOX, "look-3").lines().map(str::to_owned).collect();
    ran.sort();
    // This exec may have been cancelled before it ran.
    if ran.last().is_some_and(|last| last == "long-1") {
        ran.pop();
    }
    assert_eq!(ran, ["count-1", "count-2", "end-1"], "an exec ran twice, or not at all");
    assert!(client.has_crashed(), "the failpoint was not reached");
    client.finish(&[port]).await;
}

/// Execs that exit by themselves, and one that is cancelled.
async fn run_execs(client: &mut FailoverClient) {
    client.exec(BOX, "count-1", &counter("count-1")).await;
    client.exec(BOX, "long-1", "echo long-1 >> runs; exec sleep 1000").await;
    client.cancel("long-1").await;
    assert_eq!(client.wait_for_exec("long-1").await, (ExecState::Cancelled, 137));
    client.exec(BOX, "end-1", &format!("echo end-1 >> runs; {}; touch end", wait_for_run("count-1"))).await;
    assert_eq!(client.wait_for_exec("end-1").await, (ExecState::Finished, 0));
    assert_eq!(client.wait_for_exec("count-1").await, (ExecState::Failed, 42));
    client.exec(BOX, "clear-1", "rm end").await;
    assert_eq!(client.wait_for_exec("clear-1").await, (ExecState::Finished, 0));
}

/// A sandbox that is deleted while it is being created.
pub(crate) async fn early_delete(mut client: FailoverClient) {
    let port = port();
    let command = ["sleep", "1000"].map(str::to_owned).to_vec();
    client.create(BOX, CreateSpec { command, ports: vec![publish(port)], ..host_spec() }).await;
    client.delete(BOX).await;
    client.wait_for_state(BOX, SandboxState::Deleted).await;
    let phases = client.phases(BOX).await;
    assert_eq!((phases.first(), phases.last()), (Some(&ACCEPTED), Some(&DELETED)));
    assert_eq!(phases.iter().filter(|phase| **phase == DELETING).count(), 1, "{phases:?}");
    client.finish(&[port]).await;
}

/// A sandbox that is stopped while an exec is being cancelled, and that cannot be resumed until its port is free.
pub(crate) async fn failed_resume(mut client: FailoverClient) {
    let port = port();
    let command = ["sleep", "1000"].map(str::to_owned).to_vec();
    client.create(BOX, CreateSpec { command, ports: vec![publish(port)], ..host_spec() }).await;
    client.wait_for_state(BOX, SandboxState::Ready).await;
    client.exec(BOX, "count-1", &counter("count-1")).await;
    client.exec(BOX, "stubborn-1", &format!("trap '' TERM; {}", counter("stubborn-1"))).await;
    client.exec(BOX, "wait-1", &format!("{}; {}", wait_for_run("count-1"), wait_for_run("stubborn-1"))).await;
    assert_eq!(client.wait_for_exec("wait-1").await, (ExecState::Finished, 0));
    client.cancel("stubborn-1").await;
    client.stop(BOX).await;
    client.wait_for_state(BOX, SandboxState::Stopped).await;
    assert_eq!(client.wait_for_exec("stubborn-1").await.0, ExecState::Cancelled);
    assert_eq!(client.wait_for_exec("count-1").await.0, ExecState::Failed);
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    client.resume(BOX).await;
    client.wait_for_state(BOX, SandboxState::Failed).await;
    drop(taken);
    client.resume(BOX).await;
    client.wait_for_state(BOX, SandboxState::Ready).await;
    client.delete(BOX).await;
    client.wait_for_state(BOX, SandboxState::Deleted).await;
    let mut phases = client.phases(BOX).await;
    // A retry of a resume whose response was lost may resume a sandbox that has failed in between.
    while phases.windows(4).any(|four| four == [ACCEPTED, FAILED, ACCEPTED, FAILED]) {
        let first = phases.iter().position(|phase| *phase == FAILED).unwrap();
        phases.drain(first - 1..=first);
    }
    let stopped = [ACCEPTED, PREPARING, READY, STOPPING, STOPPED];
    assert_eq!(phases, [&stopped[..], &[ACCEPTED, FAILED, ACCEPTED, READY, DELETING, DELETED]].concat());
    for exec in ["count-1", "stubborn-1"] {
        check_counted(&client.home.exec_stdout(BOX, exec));
    }
    client.finish(&[port]).await;
}
