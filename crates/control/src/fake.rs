//! A provider that does what a script says: machines in memory, which outlive whoever asked for them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_store::{ExecId, SandboxId, Timestamp};
use tokio::sync::{mpsc, watch};

use crate::provider::{
    Answer, DiskReader, DiskSpace, EndCause, ExecStart, Fact, How, InUseSource, LogPaths, Manifest, Noted, Orphan,
    PauseCause, Place, Provider, ProviderError, Reach, Reaped, ServiceFact,
};
use crate::spec::{Service, Spec};

/// What a provider is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// To start or to adopt.
    Start,
    /// To restart the command of a sandbox.
    Command,
    /// To run a command.
    Exec,
    /// To end a command.
    Cancel,
    /// To end an incarnation.
    Stop,
    /// To remove a sandbox.
    Remove,
}

/// Machines in memory.
#[derive(Clone, Debug, Default)]
pub struct FakeProvider(Arc<Fake>);

#[derive(Debug, Default)]
struct Fake {
    world: Mutex<World>,
    /// Counts changes, so that whoever waits for one is woken.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct World {
    /// By incarnation.
    machines: HashMap<String, Machine>,
    disks: HashSet<String>,
    /// By disk.
    manifests: HashMap<String, Manifest>,
    /// How often each call fails from now on.
    failing: HashMap<Call, u32>,
    /// Calls that wait until they are let go.
    held: HashSet<Call>,
    active: bool,
    paused: HashSet<String>,
    disk_space: Option<DiskSpace>,
    disk_space_asked: u64,
    home_moved: bool,
    /// How often it was looked for what no sandbox has.
    reaps: u64,
    /// The restarts of commands that were requested, by their numbers.
    restarts: Vec<u32>,
    /// Execs whose output was removed.
    removed_logs: Vec<String>,
}

/// A reader of a disk, until its sandbox runs or is removed.
#[derive(Debug)]
struct FakeDiskReader {
    fake: FakeProvider,
    place: Place,
    agent_socket: PathBuf,
}

#[derive(Debug, Default)]
struct Machine {
    sandbox: String,
    runs: bool,
    /// Commands by their ids, and whether they run.
    execs: BTreeMap<String, bool>,
    journal: Vec<(Timestamp, Fact)>,
}

// === impl FakeProvider ===

impl FakeProvider {
    /// Lets the next calls of a kind fail.
    pub fn fail(&self, call: Call, times: u32) {
        self.lock().failing.insert(call, times);
    }

    /// Lets calls of a kind wait.
    pub fn hold(&self, call: Call) {
        self.lock().held.insert(call);
    }

    /// Lets them go on.
    pub fn release(&self, call: Call) {
        self.lock().held.remove(&call);
        self.wake();
    }

    /// Waits until the commands of sandboxes were restarted so many times; returns the numbers of the restarts.
    pub async fn restarts(&self, count: usize) -> Vec<u32> {
        let mut changed = self.0.changed.subscribe();
        loop {
            let restarts = self.lock().restarts.clone();
            if restarts.len() >= count || changed.changed().await.is_err() {
                return restarts;
            }
        }
    }

    /// Says whether sandboxes are used.
    pub fn set_active(&self, active: bool) {
        self.lock().active = active;
    }

    /// Ends a command as if by itself; says whether it ran.
    pub fn end_exec(&self, exec: &str, how: How) -> bool {
        let mut world = self.lock();
        let machine =
            world.machines.values_mut().find(|machine| machine.runs && machine.execs.get(exec) == Some(&true));
        let Some(machine) = machine else { return false };
        machine.end_exec(exec, how);
        drop(world);
        self.wake();
        true
    }

    /// Ends a sandbox as if by itself; says whether it ran.
    pub fn kill(&self, sandbox: &str, cause: EndCause) -> bool {
        let mut world = self.lock();
        let Some(machine) = world.machines.values_mut().find(|machine| machine.runs && machine.sandbox == sandbox)
        else {
            return false;
        };
        machine.end(Fact::Ended { cause, message: "killed".to_owned() });
        drop(world);
        self.wake();
        true
    }

    /// Loses all that runs, and what would tell how it ended.
    pub fn lose_machines(&self) {
        self.lock().machines.clear();
        self.wake();
    }

    /// Loses the disks of all sandboxes.
    pub fn lose_disks(&self) {
        self.lock().disks.clear();
    }

    /// Ends what the sandbox runs by itself, at some moment.
    pub fn end_command(&self, sandbox: &str, at: Timestamp) {
        self.end_command_as(sandbox, at, &How::Exited(1));
    }

    /// The same, in some way.
    pub fn end_command_as(&self, sandbox: &str, at: Timestamp, how: &How) {
        let mut world = self.lock();
        for machine in world.machines.values_mut().filter(|machine| machine.runs && machine.sandbox == sandbox) {
            machine.journal.push((at, Fact::CommandEnded { attempt: 0, how: how.clone() }));
        }
        drop(world);
        self.wake();
    }

    /// Pauses a sandbox for want of space on the disk, or lets it continue.
    pub fn pause_for_disk(&self, sandbox: &str, message: Option<&str>) {
        let of = |machine: &Machine| machine.runs && machine.sandbox == sandbox;
        let incarnation = self.lock().machines.iter().find(|(_, machine)| of(machine)).map(|(name, _)| name.clone());
        let pause = message.map(|message| (PauseCause::HostDisk, message));
        self.note_pause(&incarnation.unwrap_or_default(), pause);
    }

    /// Says what is free on the disk.
    pub fn set_disk_space(&self, space: Option<DiskSpace>) {
        self.lock().disk_space = space;
    }

    /// How often it was asked what is free on the disk.
    pub fn disk_space_asked(&self) -> u64 {
        self.lock().disk_space_asked
    }

    /// Says that everything is elsewhere now, or where it was.
    pub fn set_home_moved(&self, moved: bool) {
        self.lock().home_moved = moved;
    }

    /// Waits until it was looked so often for what no sandbox has.
    pub async fn reaped(&self, times: u64) {
        let mut changed = self.0.changed.subscribe();
        while self.lock().reaps < times {
            // The sender is ours.
            let _changed = changed.changed().await;
        }
    }

    fn note_pause(&self, incarnation: &str, pause: Option<(PauseCause, &str)>) {
        let mut world = self.lock();
        let changed = match pause {
            Some(_) => world.paused.insert(incarnation.to_owned()),
            None => world.paused.remove(incarnation),
        };
        if let Some(machine) = world.machines.get_mut(incarnation).filter(|_| changed) {
            let fact = match pause {
                Some((cause, message)) => Fact::Paused { cause, message: message.to_owned() },
                None => Fact::Unpaused,
            };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            machine.journal.push((Timestamp(i64::try_from(now).unwrap_or(i64::MAX)), fact));
        }
        drop(world);
        self.wake();
    }

    /// Sandboxes of which something runs.
    pub fn running(&self) -> Vec<String> {
        let world = self.lock();
        let mut running: Vec<_> =
            world.machines.values().filter(|machine| machine.runs).map(|machine| machine.sandbox.clone()).collect();
        running.sort();
        running
    }

    /// Commands that run.
    pub fn running_execs(&self) -> Vec<String> {
        let world = self.lock();
        let machines = world.machines.values().filter(|machine| machine.runs);
        let mut execs: Vec<_> = machines
            .flat_map(|machine| machine.execs.iter().filter(|(_, runs)| **runs).map(|(exec, _)| exec.clone()))
            .collect();
        execs.sort();
        execs
    }

    /// How many incarnations and disks something is left of.
    pub fn left(&self) -> (usize, usize) {
        let world = self.lock();
        (world.machines.len(), world.disks.len())
    }

    /// Execs whose output was removed, in that order.
    pub fn removed_logs(&self) -> Vec<String> {
        self.lock().removed_logs.clone()
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }

    /// Waits if it has to, then says whether to fail.
    async fn admit(&self, call: Call) -> Result<(), ProviderError> {
        let mut changed = self.0.changed.subscribe();
        while self.lock().held.contains(&call) {
            if changed.changed().await.is_err() {
                break;
            }
        }
        let mut world = self.lock();
        match world.failing.get_mut(&call).filter(|times| **times > 0) {
            Some(times) => {
                *times -= 1;
                Err(ProviderError::new(format!("{call:?} fails")))
            }
            None => Ok(()),
        }
    }

    fn stop_now(&self, place: &Place) {
        if let Some(machine) = self.lock().machines.get_mut(&place.incarnation).filter(|machine| machine.runs) {
            machine.end(Fact::Ended { cause: EndCause::Stopped, message: "asked".to_owned() });
        }
        self.wake();
    }
}

impl Provider for FakeProvider {
    fn start<'a>(&'a self, place: &'a Place, _: &'a Spec) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(Call::Start).await?;
            let mut world = self.lock();
            if !place.is_first_start() && !world.disks.contains(&place.disk) {
                return Err(ProviderError::new("its disk is missing"));
            }
            world.disks.insert(place.disk.clone());
            let fresh = Machine { sandbox: place.sandbox.to_string(), runs: true, ..Machine::default() };
            world.machines.entry(place.incarnation.clone()).or_insert(fresh);
            drop(world);
            self.wake();
            Ok(())
        })
    }

    fn adopt<'a>(&'a self, place: &'a Place, _: &'a Spec) -> Answer<'a, bool> {
        Box::pin(async move {
            self.admit(Call::Start).await?;
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
            if reader.is_over() {
                return Err(ProviderError::new("its disk is missing"));
            }
            Ok(Box::new(reader) as Box<dyn DiskReader>)
        })
    }

    fn watch(&self, place: &Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
        let (told, facts) = mpsc::channel(16);
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
                        () = told.closed() => return,
                    }
                    continue;
                }
                let is_last = noted.iter().any(|noted| matches!(noted.fact, Fact::Ended { .. }));
                if told.send(noted).await.is_err() || is_last {
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
            self.admit(Call::Command).await
        })
    }

    fn exec<'a>(&'a self, place: &'a Place, _: &'a Spec, exec: &'a ExecStart) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(Call::Exec).await?;
            let mut world = self.lock();
            let machine = world.machines.get_mut(&place.incarnation).filter(|machine| machine.runs);
            let machine = machine.ok_or_else(|| ProviderError::new("it does not run"))?;
            machine.execs.entry(exec.id.to_string()).or_insert(true);
            Ok(())
        })
    }

    fn service(&self, _: &Place, _: &Spec, service: &Service) -> mpsc::Receiver<ServiceFact> {
        let (told, facts) = mpsc::channel(1);
        let told_once = match service.name.as_str() {
            "broken" => ServiceFact::Failed(ProviderError::new("it is broken")),
            _ => ServiceFact::Ready,
        };
        let _room_for_one = told.try_send(told_once);
        facts
    }

    fn cancel<'a>(&'a self, _: &'a Place, exec: &'a ExecId) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(Call::Cancel).await?;
            self.end_exec(exec.as_str(), How::Cancelled);
            Ok(())
        })
    }

    fn stop<'a>(&'a self, place: &'a Place, _: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(Call::Stop).await?;
            self.stop_now(place);
            Ok(())
        })
    }

    fn forget<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut world = self.lock();
            if world.machines.get(&place.incarnation).is_some_and(|machine| !machine.runs) {
                world.machines.remove(&place.incarnation);
            }
            Ok(())
        })
    }

    fn remove<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        Box::pin(async move {
            self.admit(Call::Remove).await?;
            self.stop_now(place);
            let mut world = self.lock();
            world.machines.remove(&place.incarnation);
            world.disks.remove(&place.disk);
            drop(world);
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
            self.note_pause(&place.incarnation, paused.then_some((PauseCause::User, "")));
            Ok(())
        })
    }

    fn is_active<'a>(&'a self, _: &'a Place) -> Answer<'a, bool> {
        Box::pin(async { Ok(self.lock().active) })
    }

    fn save_manifest<'a>(&'a self, place: &'a Place, manifest: &'a Manifest) -> Answer<'a, ()> {
        Box::pin(async move {
            self.lock().manifests.insert(place.disk.clone(), manifest.clone());
            Ok(())
        })
    }

    fn reap<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Reaped> {
        Box::pin(async move {
            let mut world = self.lock();
            world.reaps += 1;
            let in_use = in_use();
            let before = world.disks.len();
            world.disks.retain(|disk| !in_use.deleted.contains(disk));
            let quarantined = world.disks.iter().filter(|disk| !in_use.disks.contains(*disk)).cloned().collect();
            let removed = before - world.disks.len();
            drop(world);
            self.wake();
            Ok(Reaped { removed, quarantined })
        })
    }

    fn orphans<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Vec<Orphan>> {
        Box::pin(async move {
            let world = self.lock();
            let in_use = in_use();
            let unknown = world.disks.iter().filter(|disk| !in_use.disks.contains(*disk));
            let orphan = |disk: &String| Orphan {
                disk: disk.clone(),
                manifest: world.manifests.get(disk).cloned(),
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
        let mut world = self.lock();
        world.disk_space_asked += 1;
        world.disk_space.clone()
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
    fn is_over(&self) -> bool {
        let (world, sandbox) = (self.fake.lock(), self.place.sandbox.to_string());
        let runs = world.machines.values().any(|machine| machine.runs && machine.sandbox == sandbox);
        runs || !world.disks.contains(&self.place.disk)
    }
}

impl DiskReader for FakeDiskReader {
    fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let mut changed = self.fake.0.changed.subscribe();
            while !self.is_over() && changed.changed().await.is_ok() {}
        })
    }
}

// === impl Machine ===

impl Machine {
    fn note(&mut self, fact: Fact) {
        let at = i64::try_from(self.journal.len()).unwrap_or(i64::MAX);
        self.journal.push((Timestamp(at), fact));
    }

    fn end_exec(&mut self, exec: &str, how: How) {
        self.execs.insert(exec.to_owned(), false);
        if let Ok(exec) = ExecId::new(exec) {
            self.note(Fact::ExecEnded { exec, how });
        }
    }

    fn end(&mut self, fact: Fact) {
        let running: Vec<_> = self.execs.iter().filter(|(_, runs)| **runs).map(|(exec, _)| exec.clone()).collect();
        for exec in running {
            self.end_exec(&exec, How::SandboxEnded);
        }
        self.runs = false;
        self.note(fact);
    }
}
