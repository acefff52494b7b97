//! Adoption of sandboxes that outlive their daemon: no fact is lost, and no command runs twice.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use carrel_control::provider::{EndCause, Fact, How, Place, Provider};
use carrel_tests::{agentd_path, run};

use crate::harness::{ProviderHarness, collect_facts, host_spec, new_instance, script, wait_for_exec};

/// Counts, one number per line, until there is a file `end`.
const COUNTER: &str = "n=0; while ! [ -e /workspace/end ]; do n=$((n+1)); echo $n; done; exit 42";

/// Checks that no number is missing or repeated.
fn check_counted(text: &str) {
    let counted: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(counted, (1..=counted.len()).collect::<Vec<_>>());
}

/// Waits until the counter has written 100 numbers.
async fn wait_until_counting(harness: &ProviderHarness, instance: &Place) {
    while harness.exec_output(instance, "counter").lines().count() < 100 {
        tokio::task::yield_now().await;
    }
}

//= promises.control-plane.command-daemons-come-go
#[test]
fn a_command_keeps_running_without_a_daemon_and_its_exit_is_reported_to_the_next() {
    run(async {
        let mut harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let mut facts = harness.watch(&instance, 0);
        let exec = script("counter", COUNTER);
        harness.local.exec(&instance, &host_spec(), &exec).await.unwrap();
        let mut last = 0;
        while let Ok(noted) = facts.try_recv() {
            last = noted.sequence;
        }
        drop(facts);
        harness.restart_provider();
        wait_until_counting(&harness, &instance).await;
        assert!(harness.local.adopt(&instance, &host_spec()).await.unwrap());
        let mut facts = harness.watch(&instance, last);
        // A repeated exec does not run it again.
        harness.local.exec(&instance, &host_spec(), &exec).await.unwrap();
        harness.shell(&instance, "end-it", "touch /workspace/end").await;
        assert_eq!(wait_for_exec(&mut facts, "counter").await, How::Exited(42));
        check_counted(&harness.exec_output(&instance, "counter"));
    });
}

/// A process without a daemon that has started a sandbox with a counter.
struct DaemonlessProcess(Child);

impl DaemonlessProcess {
    fn start(harness: &ProviderHarness, instance: &Place) -> Self {
        let program = agentd_path().with_file_name("carrel-daemonless");
        let mut command = Command::new(program);
        command.arg(harness.home.path()).args([
            instance.sandbox.as_str(),
            &instance.incarnation,
            &instance.disk,
            COUNTER,
        ]);
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
fn after_a_daemon_is_killed_the_sandbox_is_adopted_and_no_prestarted_shim_is_left() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = new_instance("demo");
        let daemon = DaemonlessProcess::start(&harness, &instance);
        // The shim of the sandbox, and the shim that is prestarted as soon as the first one is in use.
        let shims = loop {
            match children(daemon.0.id()) {
                both if both.len() == 2 => break both,
                _ => tokio::task::yield_now().await,
            }
        };
        wait_until_counting(&harness, &instance).await;
        daemon.kill();
        assert!(harness.local.adopt(&instance, &host_spec()).await.unwrap());
        let mut facts = harness.watch(&instance, 0);
        harness.shell(&instance, "end-it", "touch /workspace/end").await;
        assert_eq!(wait_for_exec(&mut facts, "counter").await, How::Exited(42));
        check_counted(&harness.exec_output(&instance, "counter"));
        // Of the two shims of the dead process, only that of the sandbox is left.
        let mut shim =
            carrel_shim_client::ShimClient::connect(&harness.local.reach(&instance).shim_socket).await.unwrap();
        shim.status().await.unwrap();
        let shim_pid = shim.hello().shim_pid;
        assert!(shims.contains(&shim_pid), "{shims:?} {shim_pid}");
        for prestarted in shims.into_iter().filter(|pid| *pid != shim_pid) {
            while std::path::Path::new(&format!("/proc/{prestarted}/exe")).exists() {
                tokio::task::yield_now().await;
            }
        }
        harness.local.remove(&instance).await.unwrap();
    });
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.map(|task| of(task.unwrap())).collect();
    all.iter().flat_map(|pids| pids.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn the_death_of_a_shim_is_reported_with_the_end_of_its_execs() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let mut facts = harness.watch(&instance, 0);
        harness.local.exec(&instance, &host_spec(), &script("counter", COUNTER)).await.unwrap();
        let found = carrel_shim_client::find(harness.home.path(), "demo").unwrap().unwrap();
        let handle = found.record.unwrap().shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
        let facts = collect_facts(&mut facts).await;
        let exec = carrel_store::ExecId::new("counter").unwrap();
        assert!(facts.iter().any(|noted| noted.fact == Fact::ExecEnded { exec: exec.clone(), how: How::SandboxEnded }));
        assert!(
            matches!(&facts.last().unwrap().fact, Fact::Ended { cause: EndCause::SupervisorLost, .. }),
            "{facts:?}"
        );
        let sequences: Vec<_> = facts.iter().map(|noted| noted.sequence).collect();
        assert_eq!(sequences, (1..=facts.len() as u64).collect::<Vec<_>>());
        assert!(!harness.local.adopt(&instance, &host_spec()).await.unwrap());
        assert!(harness.local.exec(&instance, &host_spec(), &script("late", "true")).await.is_err());
        harness.local.remove(&instance).await.unwrap();
        assert!(harness.traces(&instance).is_empty());
    });
}

#[test]
fn a_shim_that_does_not_respond_is_killed() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let found = carrel_shim_client::find(harness.home.path(), "demo").unwrap().unwrap();
        let handle = found.record.unwrap().shim_handle().unwrap();
        rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::STOP).unwrap();
        let mut facts = harness.watch(&instance, 0);
        harness.local.stop(&instance, std::time::Duration::ZERO).await.unwrap();
        let facts = collect_facts(&mut facts).await;
        assert!(matches!(facts.last().unwrap().fact, Fact::Ended { cause: EndCause::SupervisorLost, .. }), "{facts:?}");
        harness.local.remove(&instance).await.unwrap();
        assert!(harness.traces(&instance).is_empty());
    });
}

#[test]
fn a_shim_that_exits_is_reaped() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let found = carrel_shim_client::find(harness.home.path(), "demo").unwrap().unwrap();
        let pid = found.record.unwrap().shim_pid;
        harness.local.stop(&instance, std::time::Duration::ZERO).await.unwrap();
        // Its pid disappears when the provider has waited for it.
        while std::path::Path::new(&format!("/proc/{pid}")).exists() {
            tokio::task::yield_now().await;
        }
    });
}
