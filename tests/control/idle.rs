//! A daemon to which nothing happens: however many wait for something, it makes no system call.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrel_api::agbox::v1::{PingRequest, SandboxEvent};
use carrel_tests::{DaemonHome, Sandbox, run_within};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::client::{Client, host, next};
use crate::left::check;

const SANDBOXES: usize = 20;
const SUBSCRIBERS: usize = 500;
/// How many subscribers share a connection.
const TOGETHER: usize = 50;
/// How many sandboxes of others come and go while the daemon is watched.
const OTHERS: usize = 30;

/// Somebody who sees every system call of a process.
struct Tracer {
    child: Child,
    calls: Arc<Mutex<Vec<String>>>,
}

// === impl Tracer ===

impl Tracer {
    /// Returns when it is attached to every thread.
    async fn attach(pid: u32) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-s", "0", "-p", &pid.to_string()]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = strace.kill_on_drop(true).spawn().expect("strace is installed");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next_line().await.unwrap().unwrap();
        assert!(first.contains("attached"), "{first}");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        drop(tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                seen.lock().unwrap().push(line);
            }
        }));
        Self { child, calls }
    }

    /// What was called since the last time.
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    async fn detach(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::INT).unwrap();
        self.child.wait().await.unwrap();
    }
}

/// Something else that happens on this host, and takes its time: a sandbox that is nobody's business here.
async fn something_else() {
    let sandbox = Sandbox::start().await;
    sandbox.shell("true").await;
}

/// Those who wait for what happens to a sandbox, on one connection.
async fn subscribers(home: &DaemonHome) -> Vec<(Client, Streaming<SandboxEvent>)> {
    let mut waiting = Vec::new();
    let client = Client::at(&home.socket()).await;
    for number in 0..TOGETHER {
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
fn a_daemon_with_hundreds_of_subscribers_makes_no_system_call_while_nothing_happens() {
    run_within(Duration::from_secs(180), async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        let mut made = JoinSet::new();
        for number in 0..SANDBOXES {
            let mut client = client.clone();
            made.spawn(async move { client.ready(&format!("idle-{number}"), host()).await });
        }
        made.join_all().await;
        let mut waiting = Vec::new();
        while waiting.len() < SUBSCRIBERS {
            waiting.extend(subscribers(&home).await);
        }

        let tracer = Tracer::attach(daemon.pid()).await;
        // It is at rest when those who did what blocks have gone, and when something else came and went without a call.
        let rest = 3 + std::thread::available_parallelism().unwrap().get();
        let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
        loop {
            something_else().await;
            if tracer.taken().is_empty() && threads() <= rest {
                break;
            }
        }
        for _ in 0..OTHERS {
            something_else().await;
        }
        assert_eq!(tracer.taken(), Vec::<String>::new());
        // It is seen if it makes any, and those who wait do wait.
        client.api.ping(PingRequest {}).await.unwrap();
        while tracer.taken().is_empty() {
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
        check(&home, daemon, &[]).await;
    });
}
