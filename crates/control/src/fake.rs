//! A provider for tests, with sandboxes in memory. They outlive the control plane.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_store::{ExecId, SandboxId, Timestamp};
use tokio::sync::{mpsc, watch};

use crate::provider::{
    Answer, Condition, DiskReader, DiskSpace, EndCause, ExecStart, Fact, How, InUseSource, LogPaths, Manifest, Noted,
    Orphan, PauseCause, Place, Provider, ProviderError, Reach, Reaped, ServiceFact,
};
use crate::spec::{Service, Spec};

/// A call of a provider that can fail or be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FakeCall {
    /// `start` or `adopt`.
    Start,
    /// `command`, with an attempt number.
    Command,
    Exec,
    Cancel,
    Stop,
    Remove,
    SaveManifest,
}

/// A provider with sandboxes in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FakeProvider(Arc<FakeShared>);

#[derive(Debug, Default)]
struct FakeShared {
    state: Mutex<FakeState>,
    /// Counts changes, to wake those that wait for one.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FakeState {
    /// By incarnation.
    machines: HashMap<String, FakeMachine>,
    disks: HashSet<String>,
    /// By disk.
    manifests: HashMap<String, Manifest>,
    /// How many of the next calls fail.
    failing: HashMap<FakeCall, u32>,
    /// Calls that block until they are released.
    held: HashSet<FakeCall>,
    active: bool,
    paused: HashSet<String>,
    conditions: Vec<Condition>,
    disk_space: Option<DiskSpace>,
    disk_space_calls: u64,
    home_moved: bool,
    /// How many times `reap` was called.
    reaps: u64,
    /// The attempt numbers of `command`.
    restarts: Vec<u32>,
    /// Execs whose output was removed.
    removed_logs: Vec<String>,
}

/// A disk reader, until its sandbox runs or is removed.
#[derive(Debug)]
struct FakeDiskReader {
    fake: FakeProvider,
    place: Place,
    agent_socket: PathBuf,
}

#[derive(Debug, Default)]
struct FakeMachine {
    sandbox: String,
    runs: bool,
    /// Whether each exec is running, by id.
    execs: BTreeMap<String, bool>,
    journal: Vec<(Timestamp, Fact)>,
}

// === impl FakeProvider ===

impl FakeProvider {
    /// Makes the next calls fail.
    pub fn fail(&self, call: FakeCall, times: u32) {
        self.lock().failing.insert(call, times);
    }

    /// Makes calls block.
    pub fn hold(&self, call: FakeCall) {
        self.lock().held.insert(call);
    }

    /// Unblocks calls.
    pub fn release(&self, call: FakeCall) {
        self.lock().held.remove(&call);
        self.wake();
    }

    /// Waits until commands were started this many times. Returns the attempt numbers.
    pub async fn restarts(&self, count: usize) -> Vec<u32> {
        let mut changed = self.0.changed.subscribe();
        loop {
            let restarts = self.lock().restarts.clone();
            if restarts.len() >= count || changed.changed().await.is_err() {
                return restarts;
            }
        }
    }

    /// Sets the conditions of all sandboxes.
    pub fn set_conditions(&self, conditions: Vec<Condition>) {
        self.lock().conditions = conditions;
    }

    /// Sets whether sandboxes are in use.
    pub fn set_active(&self, active: bool) {
        self.lock().active = active;
    }

    /// Ends an exec as if by itself. Returns whether it was running.
    pub fn end_exec(&self, exec: &str, how: How) -> bool {
        let mut state = self.lock();
        let machine =
            state.machines.values_mut().find(|machine| machine.runs && machine.execs.get(exec) == Some(&true));
        let Some(machine) = machine else { return false };
        machine.end_exec(exec, how);
        drop(state);
        self.wake();
        true
    }

    /// Ends a sandbox as if by itself. Returns whether it was running.
    pub fn kill(&self, sandbox: &str, cause: EndCause) -> bool {
        let mut state = self.lock();
        let Some(machine) = state.machines.values_mut().find(|machine| machine.runs && machine.sandbox == sandbox)
        else {
            return false;
        };
        machine.end(Fact::Ended { cause, message: "killed".to_owned() });
        drop(state);
        self.wake();
        true
    }

    /// Removes all running sandboxes and their journals.
    pub fn drop_running_sandboxes(&self) {
        self.lock().machines.clear();
        self.wake();
    }

    /// Removes the disks of all sandboxes.
    pub fn lose_disks(&self) {
        self.lock().disks.clear();
    }

    /// Ends the command of a sandbox with exit code 1 at a given time.
    pub fn end_command(&self, sandbox: &str, at: Timestamp) {
        self.end_command_as(sandbox, at, &How::Exited(1));
    }

    /// Ends the command of a sandbox at a given time.
    pub fn end_command_as(&self, sandbox: &str, at: Timestamp, how: &How) {
        let mut state = self.lock();
        for machine in state.machines.values_mut().filter(|machine| machine.runs && machine.sandbox == sandbox) {
            machine.journal.push((at, Fact::CommandEnded { attempt: 0, how: how.clone() }));
        }
        drop(state);
        self.wake();
    }

    /// Pauses a sandbox because of a low disk, or unpauses it.
    pub fn pause_for_disk(&self, sandbox: &str, message: Option<&str>) {
        let of = |machine: &FakeMachine| machine.runs && machine.sandbox == sandbox;
        let incarnation = self.lock().machines.iter().find(|(_, machine)| of(machine)).map(|(name, _)| name.clone());
        let pause = message.map(|message| (PauseCause::HostDisk, message));
        self.record_pause(&incarnation.unwrap_or_default(), pause);
    }

    /// Sets the free space on the disk.
    pub fn set_disk_space(&self, space: Option<DiskSpace>) {
        self.lock().disk_space = space;
    }

    /// How many times `disk_space` was called.
    pub fn disk_space_calls(&self) -> u64 {
        self.lock().disk_space_calls
    }

    /// Sets whether the home was moved.
    pub fn set_home_moved(&self, moved: bool) {
        self.lock().home_moved = moved;
    }

    /// Waits until `reap` was called this many times.
    pub async fn wait_for_reaps(&self, times: u64) {
        let mut changed = self.0.changed.subscribe();
        while self.lock().reaps < times {
            // The sender is in `self`.
            let _changed = changed.changed().await;
        }
    }

    fn record_pause(&self, incarnation: &str, pause: Option<(PauseCause, &str)>) {
        let mut state = self.lock();
        let changed = match pause {
            Some(_) => state.paused.insert(incarnation.to_owned()),
            None => state.paused.remove(incarnation),
        };
        if let Some(machine) = state.machines.get_mut(incarnation).filter(|_| changed) {
            let fact = match pause {
                Some((cause, message)) => Fact::Paused { cause, message: message.to_owned() },
                None => Fact::Unpaused,
            };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            machine.journal.push((Timestamp(i64::try_from(now).unwrap_or(i64::MAX)), fact));
        }
        drop(state);
        self.wake();
    }

    /// The sandboxes that are running.
    pub fn running(&self) -> Vec<String> {
        let state = self.lock();
        let mut running: Vec<_> =
            state.machines.values().filter(|machine| machine.runs).map(|machine| machine.sandbox.clone()).collect();
        running.sort();
        running
    }

    pub fn running_execs(&self) -> Vec<String> {
        let state = self.lock();
        let machines = state.machines.values().filter(|machine| machine.runs);
        let mut execs: Vec<_> = machines
            .flat_map(|machine| machine.execs.iter().filter(|(_, runs)| **runs).map(|(exec, _)| exec.clone()))
            .collect();
        execs.sort();
        execs
    }

    /// The number of incarnations and disks that are not removed.
    pub fn remaining(&self) -> (usize, usize) {
        let state = self.lock();
        (state.machines.len(), state.disks.len())
    }

    /// The number of saved manifests.
    pub fn manifests(&self) -> usize {
        self.lock().manifests.len()
    }

    /// Execs whose output was removed, in that order.
    pub fn removed_logs(&self) -> Vec<String> {
        self.lock().removed_logs.clone()
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }

    /// Blocks while the call is held, then fails if it should.
    async fn admit(&self, call: FakeCall) -> Result<(), ProviderError> {
        let mut changed = self.0.changed.subscribe();
        while self.lock().held.contains(&call) {
            if changed.changed().await.is_err() {
                break;
            }
        }
        let mut state = self.lock();
        match state.failing.get_mut(&call).filter(|times| **times > 0) {
            Some(times) => {
                *times -= 1;
                Err(ProviderError::new(format!("{call:?} fails")))
            }
            None => Ok(()),
        }
    }

    fn stop_now(&self, place: &Place) {
        if let Some(machine) = self.lock().machines.get_mut(&place.incarnation).filter(|machine| machine.runs) {
            machine.end(Fact::Ended { cause: EndCause::Stopped, message: "stopped".to_owned() });
        }
        self.wake();
    }
}

impl Provider for FakeProvider {
    fn start<'a>(&'a self, place: &'a Place, _: &'a Spec) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(FakeCall::Start).await?;
            let mut state = self.lock();
            if !place.is_first_start() && !state.disks.contains(&place.disk) {
                return Err(ProviderError::new("its disk is missing"));
            }
            state.disks.insert(place.disk.clone());
            let fresh = FakeMachine { sandbox: place.sandbox.to_string(), runs: true, ..FakeMachine::default() };
            state.machines.entry(place.incarnation.clone()).or_insert(fresh);
            drop(state);
            self.wake();
            Ok(())
        })
    }

    fn adopt<'a>(&'a self, place: &'a Place, _: &'a Spec) -> Answer<'a, bool> {
        Box::pin(async move {
            self.admit(FakeCall::Start).await?;
            Ok(self.lock().machines.get(&place.incarnation).is_some_and(|machine| machine.runs))
        })
    }

    fn has_disk<'a>(&'a self, place: &'a Place) -> Answer<'a, bool> {
        Box::pin(async { Ok(self.lock().disks.contains(&place.disk)) })
    }

    fn read_disk<'a>(&'a self, place: &'a Place, _: &'a Spec) -> Answer<'a, Box<dyn DiskReader>> {
        Box::pin(async move {
            let agent_socket = PathBuf::from(format!("/run/{}/reader.sock", place.disk));
            let reader = FakeDiskReader { fake: self.clone(), place: place.clone(), agent_socket };
            if reader.is_closed() {
                return Err(ProviderError::new("its disk is missing"));
            }
            Ok(Box::new(reader) as Box<dyn DiskReader>)
        })
    }

    fn watch(&self, place: &Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
        let (sender, facts) = mpsc::channel(16);
        let (fake, incarnation) = (self.clone(), place.incarnation.clone());
        tokio::spawn(async move {
            let mut changed = fake.0.changed.subscribe();
            let mut next = usize::try_from(after).unwrap_or(usize::MAX);
            loop {
                let Some(noted) = fake
                    .lock()
                    .machines
                    .get(&incarnation)
                    .map(|machine| machine.journal.get(next..).map(<[_]>::to_vec))
                else {
                    return;
                };
                let noted = noted.unwrap_or_default().into_iter().map(|(at, fact)| {
                    next += 1;
                    Noted { sequence: next as u64, at, fact }
                });
                let noted: Vec<_> = noted.collect();
                if noted.is_empty() {
                    tokio::select! {
                        changed = changed.changed() => if changed.is_err() { return },
                        () = sender.closed() => return,
                    }
                    continue;
                }
                let is_last = noted.iter().any(|noted| matches!(noted.fact, Fact::Ended { .. }));
                if sender.send(noted).await.is_err() || is_last {
                    return;
                }
            }
        });
        facts
    }

    fn command<'a>(&'a self, _: &'a Place, _: &'a Spec, attempt: u32) -> Answer<'a, ()> {
        Box::pin(async move {
            self.lock().restarts.push(attempt);
            self.wake();
            self.admit(FakeCall::Command).await
        })
    }

    fn exec<'a>(&'a self, place: &'a Place, _: &'a Spec, exec: &'a ExecStart) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(FakeCall::Exec).await?;
            let mut state = self.lock();
            let machine = state.machines.get_mut(&place.incarnation).filter(|machine| machine.runs);
            let machine = machine.ok_or_else(|| ProviderError::new("it is not running"))?;
            machine.execs.entry(exec.id.to_string()).or_insert(true);
            Ok(())
        })
    }

    fn service(&self, _: &Place, _: &Spec, service: &Service) -> mpsc::Receiver<ServiceFact> {
        let (sender, facts) = mpsc::channel(1);
        let report = match service.name.as_str() {
            "broken" => ServiceFact::Failed(ProviderError::new("it is broken")),
            _ => ServiceFact::Ready,
        };
        let _room_for_one = sender.try_send(report);
        facts
    }

    fn cancel<'a>(&'a self, _: &'a Place, exec: &'a ExecId) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(FakeCall::Cancel).await?;
            self.end_exec(exec.as_str(), How::Cancelled);
            Ok(())
        })
    }

    fn stop<'a>(&'a self, place: &'a Place, _: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(FakeCall::Stop).await?;
            self.stop_now(place);
            Ok(())
        })
    }

    fn forget<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.lock();
            if state.machines.get(&place.incarnation).is_some_and(|machine| !machine.runs) {
                state.machines.remove(&place.incarnation);
            }
            Ok(())
        })
    }

    fn remove<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(FakeCall::Remove).await?;
            self.stop_now(place);
            let mut state = self.lock();
            state.machines.remove(&place.incarnation);
            state.disks.remove(&place.disk);
            state.manifests.remove(&place.disk);
            drop(state);
            self.wake();
            Ok(())
        })
    }

    fn remove_logs<'a>(&'a self, _: &'a SandboxId) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn remove_exec_logs<'a>(&'a self, _: &'a SandboxId, execs: &'a [ExecId]) -> Answer<'a, ()> {
        self.lock().removed_logs.extend(execs.iter().map(ToString::to_string));
        Box::pin(async { Ok(()) })
    }

    fn pause<'a>(&'a self, place: &'a Place, paused: bool) -> Answer<'a, ()> {
        Box::pin(async move {
            self.record_pause(&place.incarnation, paused.then_some((PauseCause::User, "")));
            Ok(())
        })
    }

    fn conditions(&self, _: &Place) -> Vec<Condition> {
        self.lock().conditions.clone()
    }

    fn is_active<'a>(&'a self, _: &'a Place) -> Answer<'a, bool> {
        Box::pin(async { Ok(self.lock().active) })
    }

    fn save_manifest<'a>(&'a self, place: &'a Place, manifest: &'a Manifest) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(FakeCall::SaveManifest).await?;
            self.lock().manifests.insert(place.disk.clone(), manifest.clone());
            Ok(())
        })
    }

    fn reap<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Reaped> {
        Box::pin(async move {
            let mut state = self.lock();
            state.reaps += 1;
            let in_use = in_use();
            let before = state.disks.len();
            state.disks.retain(|disk| !in_use.deleted.contains(disk));
            let quarantined = state.disks.iter().filter(|disk| !in_use.disks.contains(*disk)).cloned().collect();
            let removed = before - state.disks.len();
            drop(state);
            self.wake();
            Ok(Reaped { removed, quarantined, unknown_incarnations: Vec::new() })
        })
    }

    fn orphans<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Vec<Orphan>> {
        Box::pin(async move {
            let state = self.lock();
            let in_use = in_use();
            let unknown = state.disks.iter().filter(|disk| !in_use.disks.contains(*disk));
            let orphan = |disk: &String| Orphan {
                disk: disk.clone(),
                manifest: state.manifests.get(disk).cloned(),
                running: None,
                since: Timestamp(0),
                removed_at: None,
            };
            Ok(unknown.map(orphan).collect())
        })
    }

    fn remove_orphan<'a>(&'a self, disk: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.lock().disks.remove(disk);
            Ok(())
        })
    }

    fn check_home(&self) -> Result<(), ProviderError> {
        if self.lock().home_moved { Err(ProviderError::new("the home was moved")) } else { Ok(()) }
    }

    fn disk_space(&self) -> Option<DiskSpace> {
        let mut state = self.lock();
        state.disk_space_calls += 1;
        state.disk_space.clone()
    }

    fn logs(&self, sandbox: &SandboxId, exec: &ExecId) -> LogPaths {
        let path = |stream: &str| PathBuf::from(format!("/logs/{sandbox}/{exec}.{stream}.log"));
        LogPaths { stdout: path("stdout"), stderr: path("stderr") }
    }

    fn reach(&self, place: &Place) -> Reach {
        let path = |name: &str| PathBuf::from(format!("/run/{}/{name}", place.incarnation));
        Reach { agent_socket: path("agent.sock"), shim_socket: path("shim.sock") }
    }
}

// === impl FakeDiskReader ===

impl FakeDiskReader {
    fn is_closed(&self) -> bool {
        let (state, sandbox) = (self.fake.lock(), self.place.sandbox.to_string());
        let runs = state.machines.values().any(|machine| machine.runs && machine.sandbox == sandbox);
        runs || !state.disks.contains(&self.place.disk)
    }
}

impl DiskReader for FakeDiskReader {
    fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let mut changed = self.fake.0.changed.subscribe();
            while !self.is_closed() && changed.changed().await.is_ok() {}
        })
    }
}

// === impl FakeMachine ===

impl FakeMachine {
    fn record(&mut self, fact: Fact) {
        let at = i64::try_from(self.journal.len()).unwrap_or(i64::MAX);
        self.journal.push((Timestamp(at), fact));
    }

    fn end_exec(&mut self, exec: &str, how: How) {
        self.execs.insert(exec.to_owned(), false);
        if let Ok(exec) = ExecId::new(exec) {
            self.record(Fact::ExecEnded { exec, how });
        }
    }

    fn end(&mut self, fact: Fact) {
        let running: Vec<_> = self.execs.iter().filter(|(_, runs)| **runs).map(|(exec, _)| exec.clone()).collect();
        for exec in running {
            self.end_exec(&exec, How::SandboxEnded);
        }
        self.runs = false;
        self.record(fact);
    }
}
