//! A client that retries requests, and its daemon: when the daemon dies, the client starts the next one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, EventType, ExecState, SandboxEvent, SandboxState};
use carrel_tests::{Daemon, DaemonHome};
use rustix::process::Signal;
use tonic::Status;

use crate::cleanup::stop_and_check;
use crate::client::{Client, ends_exec, exec_of, reason};

/// The maximum lifetime of a daemon that is killed at a random time, in microseconds.
const MAX_LIFETIME_US: u64 = 400_000;

/// A client with its daemon. When the daemon dies as planned, it starts the next one and retries the request.
pub(crate) struct FailoverClient {
    pub(crate) home: DaemonHome,
    daemon: Option<Daemon>,
    client: Client,
    plan: CrashPlan,
    /// How many daemons are to crash.
    planned_crashes: usize,
    /// How many have crashed.
    pub(crate) crashes: usize,
}

/// When daemons crash.
pub(crate) enum CrashPlan {
    /// At the failpoint of that name.
    AtFailpoint(String),
    /// At a random time after their start; this is the state of the random number generator.
    AtRandomTime(u64),
}

/// A script that appends its id to `runs`, and then counts, one number per line, until there is a file `end`.
pub(crate) fn counter(id: &str) -> String {
    format!("echo {id} >> runs; n=0; while ! [ -e end ]; do n=$((n+1)); echo $n; sleep 0.01; done; exit 42")
}

/// A script that waits until an id is in `runs`.
pub(crate) fn wait_for_run(id: &str) -> String {
    format!("while ! grep -q {id} runs; do sleep 0.01; done")
}

/// Checks that no number is missing or repeated.
pub(crate) fn check_counted(text: &str) {
    let counted: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(counted, (1..=counted.len()).collect::<Vec<_>>());
    assert!(!counted.is_empty());
}

/// Checks that the sequences have no gap, and that every exec has one start and one end.
pub(crate) fn check_history(history: &[SandboxEvent]) {
    let sequences: Vec<u64> = history.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=history.len() as u64).collect::<Vec<_>>());
    let mut execs: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for event in history {
        let Some(exec) = exec_of(event) else { continue };
        let (starts, ends) = execs.entry(exec).or_default();
        *(if ends_exec(event) { ends } else { starts }) += 1;
    }
    for (exec, counts) in execs {
        assert_eq!(counts, (1, 1), "starts and ends of {exec}");
    }
}

// === impl FailoverClient ===

impl FailoverClient {
    /// Starts the first daemon. So many daemons crash, one after the other.
    pub(crate) async fn start(mut plan: CrashPlan, planned_crashes: usize) -> Self {
        let home = DaemonHome::new();
        let mut crashes = 0;
        let (daemon, client) = next_daemon(&home, &mut plan, planned_crashes, &mut crashes).await;
        Self { home, daemon: Some(daemon), client, plan, planned_crashes, crashes }
    }

    pub(crate) async fn create(&mut self, id: &str, spec: CreateSpec) {
        self.retry(async |client| client.create(id, spec.clone()).await, "SANDBOX_ID_ALREADY_EXISTS").await;
    }

    pub(crate) async fn exec(&mut self, sandbox: &str, id: &str, script: &str) {
        self.retry(async |client| client.exec(sandbox, id, script).await, "EXEC_ID_ALREADY_EXISTS").await;
    }

    pub(crate) async fn cancel(&mut self, id: &str) {
        self.retry(async |client| client.cancel(id).await, "EXEC_ALREADY_TERMINAL").await;
    }

    pub(crate) async fn stop(&mut self, id: &str) {
        self.retry(async |client| client.stop(id).await, "SANDBOX_INVALID_STATE").await;
    }

    pub(crate) async fn resume(&mut self, id: &str) {
        self.retry(async |client| client.resume(id).await, "SANDBOX_INVALID_STATE").await;
    }

    pub(crate) async fn delete(&mut self, id: &str) {
        self.retry(async |client| client.delete(id).await, "").await;
    }

    pub(crate) async fn wait_for_state(&mut self, id: &str, state: SandboxState) {
        self.retry(async |client| client.wait_for_state(id, state).await, "").await;
    }

    pub(crate) async fn wait_for_exec(&mut self, id: &str) -> (ExecState, i32) {
        let exec = self.retry(async |client| client.wait_for_exec(id).await, "").await.unwrap();
        (exec.state(), exec.exit_code)
    }

    /// Waits until so many results of services were reported.
    pub(crate) async fn wait_for_services(&mut self, id: &str, count: usize) {
        let types = [EventType::CompanionContainerReady, EventType::CompanionContainerFailed];
        self.retry(async |client| client.wait_for_events(id, &types, count).await, "").await;
    }

    /// The events of a sandbox without those of its execs. Checks its whole history.
    pub(crate) async fn phases(&mut self, id: &str) -> Vec<EventType> {
        let history = self.retry(async |client| client.history(id).await, "").await.unwrap();
        check_history(&history);
        let types = history.iter().map(SandboxEvent::event_type);
        types.filter(|event_type| *event_type as i32 <= EventType::SandboxDeleted as i32).collect()
    }

    /// Stops the last daemon. Checks that every accepted request was completed, and that nothing is left.
    pub(crate) async fn finish(mut self, ports: &[u16]) {
        if matches!(self.plan, CrashPlan::AtRandomTime(_)) && self.planned_crashes > self.crashes {
            // This daemon still crashes, and the next one does not.
            self.planned_crashes = self.crashes + 1;
            self.fail_over().await;
        }
        stop_and_check(&self.home, self.daemon.take().unwrap(), ports).await;
    }

    /// Sends a request, and retries it at the next daemon if this one dies. A retry may be refused with the reason
    /// `already`, because the request was accepted before.
    async fn retry<T>(&mut self, request: impl AsyncFn(&mut Client) -> Result<T, Status>, already: &str) -> Option<T> {
        let mut is_retry = false;
        loop {
            let status = match request(&mut self.client).await {
                Ok(response) => return Some(response),
                Err(status) => status,
            };
            if let Some(reason) = reason(&status) {
                assert!(is_retry && reason == already, "{status}");
                return None;
            }
            is_retry = true;
            self.fail_over().await;
        }
    }

    /// Whether a daemon crashed as planned. With a random time, the scenario may have finished first.
    pub(crate) fn has_crashed(&self) -> bool {
        self.crashes > 0 || matches!(self.plan, CrashPlan::AtRandomTime(_))
    }

    /// Waits until the daemon has crashed, and starts the next one.
    async fn fail_over(&mut self) {
        assert!(self.planned_crashes > self.crashes, "a daemon died that was not to crash");
        self.daemon.take().unwrap().wait_until_killed().await;
        self.crashes += 1;
        let (daemon, client) = next_daemon(&self.home, &mut self.plan, self.planned_crashes, &mut self.crashes).await;
        (self.daemon, self.client) = (Some(daemon), client);
    }
}

/// Starts daemons until a client can connect to one. Those that crash before that are counted too.
async fn next_daemon(
    home: &DaemonHome,
    plan: &mut CrashPlan,
    planned_crashes: usize,
    crashes: &mut usize,
) -> (Daemon, Client) {
    loop {
        let is_last = planned_crashes == *crashes;
        let mut command = home.command();
        if let CrashPlan::AtFailpoint(point) = &plan
            && !is_last
        {
            command.env("CARREL_FAILPOINT", point);
        }
        let daemon = home.spawn(&mut command);
        if let CrashPlan::AtRandomTime(seed) = plan
            && !is_last
        {
            kill_at_random_time(daemon.handle(), seed);
        }
        match daemon.wait_until_serving().await {
            Ok(daemon) => match Client::try_connect_to(daemon.socket()).await {
                Some(client) => return (daemon, client),
                None => daemon.wait_until_killed().await,
            },
            Err(status) => assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}"),
        }
        *crashes += 1;
        assert!(!is_last, "the last daemon was not to crash");
    }
}

/// Kills a daemon within `MAX_LIFETIME_US`.
fn kill_at_random_time(daemon: OwnedFd, seed: &mut u64) {
    // The linear congruential generator of Knuth's MMIX.
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let after = Duration::from_micros((*seed >> 33) % MAX_LIFETIME_US);
    drop(tokio::spawn(async move {
        tokio::time::sleep(after).await;
        let _may_have_exited = rustix::process::pidfd_send_signal(&daemon, Signal::KILL);
    }));
}
