//! Sandboxes that outlive whoever made them: taken over, with nothing missed and nothing done twice.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use carrel_control::provider::{EndCause, Fact, How, Place, Provider};
use carrel_tests::{agentd_path, run};

use crate::world::{World, all, ended, host, script};

/// Counts, a number a line, until it is told to end.
const COUNTER: &str = "n=0; while ! [ -e /workspace/end ]; do n=$((n+1)); echo $n; done; exit 42";

/// What was counted has no hole.
fn check(text: &str) {
    let counted: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(counted, (1..=counted.len()).collect::<Vec<_>>());
}

/// Waits until something was counted.
async fn counting(world: &World, place: &Place) {
    while world.wrote(place, "counter").lines().count() < 100 {
        tokio::task::yield_now().await;
    }
}

//= promises.control-plane.command-daemons-come-go
#[test]
fn a_command_goes_on_while_nobody_is_there_and_its_end_is_told_truly() {
    run(async {
        let mut world = World::new();
        let place = world.started("demo", &host()).await;
        let mut facts = world.watch(&place, 0);
        let exec = script("counter", COUNTER);
        world.local.exec(&place, &host(), &exec).await.unwrap();
        let mut last = 0;
        while let Ok(noted) = facts.try_recv() {
            last = noted.sequence;
        }
        drop(facts);
        world.next();
        counting(&world, &place).await;
        assert!(world.local.adopt(&place, &host()).await.unwrap());
        let mut facts = world.watch(&place, last);
        // It was given already; given again, it runs once.
        world.local.exec(&place, &host(), &exec).await.unwrap();
        world.shell(&place, "end-it", "touch /workspace/end").await;
        assert_eq!(ended(&mut facts, "counter").await, How::Exited(42));
        check(&world.wrote(&place, "counter"));
    });
}

/// A process that made a sandbox and counts in it.
struct Daemonless(Child);

impl Daemonless {
    fn start(world: &World, place: &Place) -> Self {
        let program = agentd_path().with_file_name("carrel-daemonless");
        let mut command = Command::new(program);
        command.arg(world.home.path()).args([place.sandbox.as_str(), &place.incarnation, &place.disk, COUNTER]);
        command.env("CARREL_AGENTD", agentd_path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "running\n");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_daemon_that_is_killed_loses_nothing_and_leaves_no_supervisor_that_waits() {
    run(async {
        let world = World::new();
        let place = crate::world::place("demo");
        let daemon = Daemonless::start(&world, &place);
        // The one that supervises, and one that is started ahead as soon as that one is taken.
        let parked = loop {
            match children(daemon.0.id()) {
                both if both.len() == 2 => break both,
                _ => tokio::task::yield_now().await,
            }
        };
        counting(&world, &place).await;
        daemon.kill();
        assert!(world.local.adopt(&place, &host()).await.unwrap());
        let mut facts = world.watch(&place, 0);
        world.shell(&place, "end-it", "touch /workspace/end").await;
        assert_eq!(ended(&mut facts, "counter").await, How::Exited(42));
        check(&world.wrote(&place, "counter"));
        // Of those that the dead one started, the supervisor of the sandbox is there, and nobody else.
        let mut shim = carrel_shim_client::ShimClient::connect(&world.local.reach(&place).shim_socket).await.unwrap();
        shim.status().await.unwrap();
        let supervisor = shim.hello().shim_pid;
        assert!(parked.contains(&supervisor), "{parked:?} {supervisor}");
        for waited in parked.into_iter().filter(|pid| *pid != supervisor) {
            while std::path::Path::new(&format!("/proc/{waited}/exe")).exists() {
                tokio::task::yield_now().await;
            }
        }
        world.local.remove(&place).await.unwrap();
    });
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.map(|task| of(task.unwrap())).collect();
    all.iter().flat_map(|pids| pids.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn the_death_of_a_supervisor_is_told_with_the_end_of_what_ran() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let mut facts = world.watch(&place, 0);
        world.local.exec(&place, &host(), &script("counter", COUNTER)).await.unwrap();
        let found = carrel_shim_client::find(world.home.path(), "demo").unwrap().unwrap();
        let handle = found.record.unwrap().shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
        let told = all(&mut facts).await;
        let exec = carrel_store::ExecId::new("counter").unwrap();
        assert!(told.iter().any(|noted| noted.fact == Fact::ExecEnded { exec: exec.clone(), how: How::SandboxEnded }));
        assert!(matches!(&told.last().unwrap().fact, Fact::Ended { cause: EndCause::SupervisorLost, .. }), "{told:?}");
        let sequences: Vec<_> = told.iter().map(|noted| noted.sequence).collect();
        assert_eq!(sequences, (1..=told.len() as u64).collect::<Vec<_>>());
        assert!(!world.local.adopt(&place, &host()).await.unwrap());
        assert!(world.local.exec(&place, &host(), &script("late", "true")).await.is_err());
        world.local.remove(&place).await.unwrap();
        assert!(world.traces(&place).is_empty());
    });
}

#[test]
fn a_supervisor_that_does_not_answer_is_ended_all_the_same() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let found = carrel_shim_client::find(world.home.path(), "demo").unwrap().unwrap();
        let handle = found.record.unwrap().shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::STOP).unwrap();
        let mut facts = world.watch(&place, 0);
        world.local.stop(&place, std::time::Duration::ZERO).await.unwrap();
        let told = all(&mut facts).await;
        assert!(matches!(told.last().unwrap().fact, Fact::Ended { cause: EndCause::SupervisorLost, .. }), "{told:?}");
        world.local.remove(&place).await.unwrap();
        assert!(world.traces(&place).is_empty());
    });
}

#[test]
fn nobody_is_left_of_supervisors_that_ended() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let found = carrel_shim_client::find(world.home.path(), "demo").unwrap().unwrap();
        let pid = found.record.unwrap().shim_pid;
        world.local.stop(&place, std::time::Duration::ZERO).await.unwrap();
        // Its number is free once it was waited for.
        while std::path::Path::new(&format!("/proc/{pid}")).exists() {
            tokio::task::yield_now().await;
        }
    });
}
