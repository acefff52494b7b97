//! An idle daemon: with any number of waiting clients, it makes no system call.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrel_api::agbox::v1::{PingRequest, SandboxEvent};
use carrel_tests::{DaemonHome, TestSandbox, run_within};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec, next};

const SANDBOXES: usize = 20;
const SUBSCRIBERS: usize = 500;
/// How many subscriptions share a connection.
const PER_CONNECTION: usize = 50;
/// How many unrelated sandboxes run, one after the other, while the daemon is traced.
const UNRELATED_SANDBOXES: usize = 30;

/// Records every system call of a process, with `strace`.
struct SyscallTracer {
    child: Child,
    calls: Arc<Mutex<Vec<String>>>,
}

// === impl SyscallTracer ===

impl SyscallTracer {
    /// Returns when it is attached to every thread.
    async fn attach(pid: u32) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-s", "0", "-p", &pid.to_string()]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = strace.kill_on_drop(true).spawn().expect("strace is installed");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next_line().await.unwrap().unwrap();
        assert!(first.contains("attached"), "{first}");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&calls);
        drop(tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                recorded.lock().unwrap().push(line);
            }
        }));
        Self { child, calls }
    }

    /// The system calls since the last time.
    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    async fn detach(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::INT).unwrap();
        self.child.wait().await.unwrap();
    }
}

/// Runs a sandbox that has nothing to do with the daemon.
async fn run_unrelated_sandbox() {
    let sandbox = TestSandbox::start().await;
    sandbox.shell("true").await;
}

/// Subscriptions that wait for events of the sandboxes, on one connection.
async fn subscribe(home: &DaemonHome) -> Vec<(Client, Streaming<SandboxEvent>)> {
    let mut waiting = Vec::new();
    let client = Client::connect_to(&home.socket()).await;
    for number in 0..PER_CONNECTION {
        let mut client = client.clone();
        let mut events = client.subscribe(&format!("idle-{}", number % SANDBOXES), 0).await.unwrap();
        while next(&mut events).await.unwrap().sequence < 3 {}
        waiting.push((client, events));
    }
    waiting
}

//= control.subscription.mechanism-wait-nothing-polls
//= promises.control-plane.subscribers
#[test]
fn an_idle_daemon_with_hundreds_of_subscribers_makes_no_system_call() {
    run_within(Duration::from_secs(180), async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        let mut created = JoinSet::new();
        for number in 0..SANDBOXES {
            let mut client = client.clone();
            created.spawn(async move { client.create_and_wait(&format!("idle-{number}"), host_spec()).await });
        }
        created.join_all().await;
        let mut waiting = Vec::new();
        while waiting.len() < SUBSCRIBERS {
            waiting.extend(subscribe(&home).await);
        }

        let tracer = SyscallTracer::attach(daemon.pid()).await;
        // It is idle when the threads for blocking work have exited and an unrelated sandbox caused no system call.
        let idle_threads = 3 + std::thread::available_parallelism().unwrap().get();
        let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
        loop {
            run_unrelated_sandbox().await;
            if tracer.take_calls().is_empty() && threads() <= idle_threads {
                break;
            }
        }
        for _ in 0..UNRELATED_SANDBOXES {
            run_unrelated_sandbox().await;
        }
        assert_eq!(tracer.take_calls(), Vec::<String>::new());
        // The control: the tracer records a request, and the subscriptions still wait.
        client.api.ping(PingRequest {}).await.unwrap();
        while tracer.take_calls().is_empty() {
            tokio::task::yield_now().await;
        }
        tracer.detach().await;
        for number in 0..SANDBOXES {
            client.delete(&format!("idle-{number}")).await.unwrap();
        }
        for (_, events) in &mut waiting {
            while next(events).await.unwrap().sequence < 5 {}
        }
        drop(waiting);
        stop_and_check(&home, daemon, &[]).await;
    });
}
