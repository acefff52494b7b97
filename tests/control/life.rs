//! A client who repeats what was not answered, and its daemon: when that dies, there is a next one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, EventType, ExecState, SandboxEvent, SandboxState};
use carrel_tests::{Daemon, DaemonHome};
use rustix::process::Signal;
use tonic::Status;

use crate::client::{Client, ends_exec, exec_of, reason};
use crate::left::check;

/// How long a daemon lives at most that is killed at any time, in microseconds.
const MOST_HUNTED: u64 = 400_000;

/// A client, its daemon, and those that come after it.
pub(crate) struct Liveness {
    pub(crate) home: DaemonHome,
    daemon: Option<Daemon>,
    client: Client,
    death: Death,
    /// How many are to die there.
    deaths: usize,
    /// How many did.
    pub(crate) fallen: usize,
}

/// How daemons die.
pub(crate) enum Death {
    /// At a place of that name.
    At(String),
    /// Some time after they were started, which is decided by this.
    Anytime(u64),
}

/// Counts, a number a line, until it is told to end. Whoever runs is written down.
pub(crate) fn counter(id: &str) -> String {
    format!("echo {id} >> runs; n=0; while ! [ -e end ]; do n=$((n+1)); echo $n; sleep 0.01; done; exit 42")
}

/// Waits until somebody is written down.
pub(crate) fn seen(id: &str) -> String {
    format!("while ! grep -q {id} runs; do sleep 0.01; done")
}

/// What was counted has no hole, and nothing is there twice.
pub(crate) fn check_counted(text: &str) {
    let counted: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(counted, (1..=counted.len()).collect::<Vec<_>>());
    assert!(!counted.is_empty());
}

/// Sequences have no hole, and every exec that began has one end.
pub(crate) fn check_history(told: &[SandboxEvent]) {
    let sequences: Vec<u64> = told.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=told.len() as u64).collect::<Vec<_>>());
    let mut execs: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for event in told {
        let Some(exec) = exec_of(event) else { continue };
        let (begun, ended) = execs.entry(exec).or_default();
        *(if ends_exec(event) { ended } else { begun }) += 1;
    }
    for (exec, counts) in execs {
        assert_eq!(counts, (1, 1), "{exec} began and ended so often");
    }
}

// === impl Liveness ===

impl Liveness {
    /// One in which so many daemons die, one after the other.
    pub(crate) async fn begin(mut death: Death, deaths: usize) -> Self {
        let home = DaemonHome::new();
        let mut fallen = 0;
        let (daemon, client) = next_daemon(&home, &mut death, deaths, &mut fallen).await;
        Self { home, daemon: Some(daemon), client, death, deaths, fallen }
    }

    pub(crate) async fn create(&mut self, id: &str, spec: CreateSpec) {
        self.asked(async |client| client.create(id, spec.clone()).await, "SANDBOX_ID_ALREADY_EXISTS").await;
    }

    pub(crate) async fn exec(&mut self, sandbox: &str, id: &str, script: &str) {
        self.asked(async |client| client.exec(sandbox, id, script).await, "EXEC_ID_ALREADY_EXISTS").await;
    }

    pub(crate) async fn cancel(&mut self, id: &str) {
        self.asked(async |client| client.cancel(id).await, "EXEC_ALREADY_TERMINAL").await;
    }

    pub(crate) async fn stop(&mut self, id: &str) {
        self.asked(async |client| client.stop(id).await, "SANDBOX_INVALID_STATE").await;
    }

    pub(crate) async fn resume(&mut self, id: &str) {
        self.asked(async |client| client.resume(id).await, "SANDBOX_INVALID_STATE").await;
    }

    pub(crate) async fn delete(&mut self, id: &str) {
        self.asked(async |client| client.delete(id).await, "").await;
    }

    pub(crate) async fn until(&mut self, id: &str, state: SandboxState) {
        self.asked(async |client| client.until(id, state).await, "").await;
    }

    pub(crate) async fn until_ended(&mut self, id: &str) -> (ExecState, i32) {
        let exec = self.asked(async |client| client.until_ended(id).await, "").await.unwrap();
        (exec.state(), exec.exit_code)
    }

    /// Waits until a service was told of so often.
    pub(crate) async fn told_of_services(&mut self, id: &str, count: usize) {
        let kinds = [EventType::CompanionContainerReady, EventType::CompanionContainerFailed];
        self.asked(async |client| client.until_told(id, &kinds, count).await, "").await;
    }

    /// What was told of a sandbox itself. All that was told of it fits together.
    pub(crate) async fn phases(&mut self, id: &str) -> Vec<EventType> {
        let told = self.asked(async |client| client.history(id).await, "").await.unwrap();
        check_history(&told);
        let kinds = told.iter().map(SandboxEvent::event_type);
        kinds.filter(|kind| *kind as i32 <= EventType::SandboxDeleted as i32).collect()
    }

    /// The last daemon ends. Everything that was accepted has its end, and nothing is left.
    pub(crate) async fn end(mut self, ports: &[u16]) {
        if matches!(self.death, Death::Anytime(_)) && self.deaths > self.fallen {
            // This one dies yet, and the next does not.
            self.deaths = self.fallen + 1;
            self.fall().await;
        }
        check(&self.home, self.daemon.take().unwrap(), ports).await;
    }

    /// Asks, and asks the next daemon if this one dies: then what was asked may be done already, which the refusal tells.
    async fn asked<T>(&mut self, ask: impl AsyncFn(&mut Client) -> Result<T, Status>, already: &str) -> Option<T> {
        let mut again = false;
        loop {
            let status = match ask(&mut self.client).await {
                Ok(answer) => return Some(answer),
                Err(status) => status,
            };
            if let Some(reason) = reason(&status) {
                assert!(again && reason == already, "{status}");
                return None;
            }
            again = true;
            self.fall().await;
        }
    }

    /// Whether a daemon died where it was to. One that is killed at any time may have ended its life before.
    pub(crate) fn has_fallen(&self) -> bool {
        self.fallen > 0 || matches!(self.death, Death::Anytime(_))
    }

    /// Sees the death of a daemon, and starts the next.
    async fn fall(&mut self) {
        assert!(self.deaths > self.fallen, "a daemon is gone that was not to die");
        self.daemon.take().unwrap().fallen().await;
        self.fallen += 1;
        let (daemon, client) = next_daemon(&self.home, &mut self.death, self.deaths, &mut self.fallen).await;
        (self.daemon, self.client) = (Some(daemon), client);
    }
}

/// The next daemon. Those that die before anybody can talk to them have fallen as well.
async fn next_daemon(home: &DaemonHome, death: &mut Death, deaths: usize, fallen: &mut usize) -> (Daemon, Client) {
    loop {
        let is_last = deaths == *fallen;
        let mut command = home.command();
        if let Death::At(point) = &death
            && !is_last
        {
            command.env("CARREL_FAILPOINT", point);
        }
        let daemon = home.spawn(&mut command);
        if let Death::Anytime(seed) = death
            && !is_last
        {
            hunt(daemon.handle(), seed);
        }
        match daemon.serving().await {
            Ok(daemon) => match Client::try_at(daemon.socket()).await {
                Some(client) => return (daemon, client),
                None => daemon.fallen().await,
            },
            Err(ended) => assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "{ended}"),
        }
        *fallen += 1;
        assert!(!is_last, "the last one was not to die");
    }
}

/// Kills a daemon, some time soon.
fn hunt(daemon: OwnedFd, seed: &mut u64) {
    // Knuth's numbers for it.
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let after = Duration::from_micros((*seed >> 33) % MOST_HUNTED);
    drop(tokio::spawn(async move {
        tokio::time::sleep(after).await;
        let _gone_already = rustix::process::pidfd_send_signal(&daemon, Signal::KILL);
    }));
}
