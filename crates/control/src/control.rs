//! The control plane: dispatches the requests of callers to the actors of sandboxes.

mod create;
mod disk;
mod orphans;
mod reaper;
mod refusals;
mod retention;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrel_store::{
    Events, EventsError, Exec, ExecId, ExecState, IdNamespace, Pairs, Sandbox, SandboxId, SandboxState, Sequence,
    Store, StoreError,
};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::actor::{Acceptance, Actor, ActorMessage, ActorRequest, SandboxOrigin};
use crate::admission::Admission;
use crate::codes::{cause, reason};
use crate::descriptors::{DescriptorUse, Descriptors};
use crate::event_log::EventLog;
use crate::exec_size::MAX_EXEC_BYTES_ON_LOW_DISK;
use crate::provider::{Condition, DiskSpace, ExecOptions, Place, Provider, ProviderError, Reach};
use crate::refusal::{Code, Refusal};
use crate::sandbox_quota::SandboxQuota;
use crate::settings::{Caller, ControlSettings};
use crate::spec::{RestartPolicy, Spec, SpecDraft};
use crate::stage::SandboxStage;
use crate::watch::{EventWatch, matches};

/// How many requests of one sandbox are queued before callers have to wait.
const MAILBOX_CAPACITY: usize = 64;
/// How long a cancel waits for the end of its exec.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);
/// How many sandboxes are resumed concurrently when a host has booted.
const MAX_CONCURRENT_RESUMES: usize = 4;
/// The hint for a full disk.
const FREE_SPACE_HINT: &str = "free space, for example with `carrel rm --force ID` or `carrel prune`";

/// The control plane of all sandboxes. Clones share it.
#[derive(Clone)]
pub struct Control(Arc<ControlInner>);

/// A request to create a sandbox.
#[derive(Clone, Debug, Default)]
pub struct CreateRequest {
    /// The id; a random one if it is not given.
    pub id: Option<String>,
    /// The spec; it takes precedence over `config_yaml`.
    pub spec: Option<SpecDraft>,
    /// A spec in YAML; empty if there is none.
    pub config_yaml: Vec<u8>,
    /// Whether to create it although this host cannot enforce a limit.
    pub allow_unenforced_limits: bool,
    /// When it is resumed without a request; the spec decides if it is not given.
    pub restart: Option<RestartPolicy>,
    /// The user of its command and its execs.
    pub user: Option<String>,
    /// The working directory of its command and its execs.
    pub workdir: Option<String>,
    /// The maximum number of processes.
    pub pids: Option<u32>,
}

/// A request to run a command.
#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    /// The id; a random one if it is not given.
    pub id: Option<String>,
    /// The id of the sandbox.
    pub sandbox: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The working directory; empty is the workspace.
    pub cwd: String,
    /// Variables that are added to the sandbox's environment.
    pub env: Pairs,
    /// Options that the published API does not have.
    pub options: ExecOptions,
}

/// Why the control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ControlStartError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the actors and all clones of [`Control`] share.
pub(crate) struct ControlInner {
    pub(crate) store: Store,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) settings: watch::Sender<Arc<ControlSettings>>,
    pub(crate) admission: Admission,
    pub(crate) quota: SandboxQuota,
    /// Permits for resumes at boot.
    pub(crate) resume_permits: Arc<Semaphore>,
    /// Notified when a sandbox with a large row is deleted.
    large_deleted: Arc<Notify>,
    /// Whether what runs on this host was compared with the store: before that, no retention deletes a sandbox.
    pub(crate) is_compared: AtomicBool,
    actors: Mutex<ActorRegistry>,
}

/// Both ends of the request queue of a sandbox.
struct Mailbox {
    sender: mpsc::Sender<ActorMessage>,
    messages: mpsc::Receiver<ActorMessage>,
}

/// The actors of sandboxes that are not deleted.
#[derive(Default)]
struct ActorRegistry {
    mailboxes: HashMap<SandboxId, mpsc::Sender<ActorMessage>>,
    tasks: JoinSet<()>,
    event_log: Option<EventLog>,
    closed: bool,
}

// === impl Control ===

impl Control {
    /// Starts the control plane of a store. Each sandbox that is not deleted gets an actor, which continues where the
    /// last daemon stopped.
    pub async fn start(
        store: Store,
        provider: Arc<dyn Provider>,
        settings: ControlSettings,
    ) -> Result<Self, ControlStartError> {
        let (admission, quota) = (Admission::default(), SandboxQuota::default());
        let (settings, resume_permits) =
            (watch::Sender::new(Arc::new(settings)), Arc::new(Semaphore::new(MAX_CONCURRENT_RESUMES)));
        let shared = ControlInner {
            store,
            provider,
            settings,
            admission,
            quota,
            resume_permits,
            large_deleted: Arc::default(),
            is_compared: AtomicBool::new(false),
            actors: Mutex::default(),
        };
        let control = Self(Arc::new(shared));
        // From here on all events are logged, including those that follow from what happened while no daemon ran.
        control.0.lock().event_log = Some(EventLog::start(control.0.store.clone()));
        for sandbox in control.0.store.sandboxes() {
            // A deleted sandbox needs no actor.
            if sandbox.state == SandboxState::Deleted {
                continue;
            }
            let spec = parse_spec(&sandbox);
            if SandboxStage::of(&sandbox).uses_capacity() {
                control.0.admission.record(&sandbox.id, control.memory(&spec));
            }
            control.spawn_actor(sandbox, Arc::new(spec), Mailbox::new(), SandboxOrigin::Store);
        }
        control.start_reaper();
        control.start_retention();
        Ok(control)
    }

    /// Replaces the settings, except the clock and the descriptors. Running sandboxes stay, even above a limit that is
    /// now lower.
    pub fn reload(&self, settings: ControlSettings) {
        self.0.settings.send_modify(|now| *now = Arc::new(settings.with_fixed_parts_of(now)));
    }

    /// The file descriptors of this process.
    pub fn descriptors(&self) -> Descriptors {
        self.0.settings().descriptors.clone()
    }

    /// Returns a sandbox.
    pub fn get(&self, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, Refusal> {
        let mut candidates = SandboxId::candidates(id, caller.namespace()).filter_map(|id| self.0.store.sandbox(&id));
        candidates.find(|sandbox| caller.sees(sandbox)).ok_or_else(|| sandbox_unknown(id))
    }

    /// Lists sandboxes with some labels, the newest first.
    pub fn list(&self, caller: &Caller, include_deleted: bool, selector: &Pairs) -> Vec<Arc<Sandbox>> {
        let mut found = self.0.store.sandboxes();
        found.retain(|sandbox| {
            let is_listed = include_deleted || sandbox.state != SandboxState::Deleted;
            is_listed && caller.sees(sandbox) && matches(selector, &sandbox.labels)
        });
        found.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id)));
        found
    }

    /// Accepts a stop. The sandbox can be resumed later.
    pub async fn stop(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        self.send(caller, &self.get(caller, id)?.id, ActorRequest::Stop(cause::STOP_REQUESTED)).await.map(drop)
    }

    /// Accepts the stop of all running sandboxes because the host shuts down, and returns them. The next daemon resumes
    /// those with the restart policy `on-boot`.
    pub async fn stop_for_shutdown(&self, caller: &Caller) -> Result<Vec<Arc<Sandbox>>, Refusal> {
        if !caller.trusted {
            let message = "only the daemon's own user may stop the sandboxes of all users";
            return Err(Refusal::new(Code::PermissionDenied, reason::SHUTDOWN_FORBIDDEN, message));
        }
        let mut requests = JoinSet::new();
        for sandbox in self.list(caller, false, &Pairs::new()) {
            let (control, caller) = (self.clone(), *caller);
            requests.spawn(async move {
                let stopped = control.send(&caller, &sandbox.id, ActorRequest::Stop(cause::HOST_SHUTDOWN)).await;
                (sandbox, stopped)
            });
        }
        let mut stopping = Vec::new();
        while let Some(result) = requests.join_next().await {
            match result.map_err(|error| internal(&error))? {
                (sandbox, Ok(_)) => stopping.push(sandbox),
                // It does not run, or it was deleted.
                (_, Err(refusal)) if matches!(refusal.code, Code::FailedPrecondition | Code::NotFound) => {}
                (_, Err(refusal)) => return Err(refusal),
            }
        }
        stopping.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(stopping)
    }

    /// Accepts a resume.
    pub async fn resume(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        self.send(caller, &self.get(caller, id)?.id, ActorRequest::Resume).await.map(drop)
    }

    /// Accepts a deletion.
    pub async fn delete(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        self.send(caller, &self.get(caller, id)?.id, ActorRequest::Delete).await.map(drop)
    }

    /// Accepts the deletion of all sandboxes with some labels, and returns their ids.
    pub async fn delete_matching(&self, caller: &Caller, selector: &Pairs) -> Result<Vec<SandboxId>, Refusal> {
        if selector.is_empty() {
            return Err(Refusal::invalid("label_selector", "would match every sandbox; give at least one label"));
        }
        let mut requests = Vec::new();
        for sandbox in self.list(caller, false, selector) {
            let (control, caller, id) = (self.clone(), *caller, sandbox.id.clone());
            requests.push(tokio::spawn(async move { (control.send(&caller, &id, ActorRequest::Delete).await, id) }));
        }
        let mut deleted = Vec::new();
        for request in requests {
            match request.await {
                Ok((Ok(Acceptance::Changed), id)) => deleted.push(id),
                Ok((Ok(_), _)) | Err(_) => {}
                // It was purged meanwhile, so there is nothing to delete.
                Ok((Err(Refusal { code: Code::NotFound, .. }), _)) => {}
                Ok((Err(refusal), _)) => return Err(refusal),
            }
        }
        deleted.sort();
        Ok(deleted)
    }

    /// Accepts an exec.
    pub async fn create_exec(&self, caller: &Caller, request: ExecRequest) -> Result<Arc<Exec>, Refusal> {
        let id = self.get(caller, &request.sandbox)?.id.clone();
        self.0.settings().descriptors.check(DescriptorUse::Stream)?;
        // A sandbox from before namespaces existed may have an old supervisor, which knows plain ids only.
        let namespace = if id.namespace() == caller.namespace() { id.namespace() } else { IdNamespace::Daemon };
        match self.send(caller, &id, ActorRequest::Exec(Box::new(request), namespace)).await? {
            Acceptance::Exec(exec) => Ok(exec),
            Acceptance::Changed | Acceptance::Unchanged => {
                Err(internal(&"an exec request was answered without an exec"))
            }
        }
    }

    /// Accepts a cancel. Returns when the exec has ended, or after a short timeout.
    pub async fn cancel_exec(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        let (exec, sequence) = self.exec(caller, id).await?;
        self.send(caller, &exec.sandbox, ActorRequest::Cancel(exec.id.clone())).await?;
        // The cancel is accepted, whether or not the exec ends in time.
        let _in_time = tokio::time::timeout(CANCEL_TIMEOUT, self.wait_for_exit(&exec, sequence)).await;
        Ok(())
    }

    /// Waits for the end of an exec.
    async fn wait_for_exit(&self, exec: &Exec, sequence: Sequence) {
        let Ok(mut events) = self.0.store.events(&exec.sandbox, sequence) else { return };
        loop {
            match self.0.store.exec(&exec.id).await {
                Ok(Some((exec, _))) if exec.state == ExecState::Running => {}
                _ => return,
            }
            let Ok(Some(_)) = events.next().await else { return };
        }
    }

    /// Returns an exec with a sequence of its sandbox's log after which no event about it is missed.
    pub async fn exec(&self, caller: &Caller, id: &str) -> Result<(Arc<Exec>, Sequence), Refusal> {
        for candidate in ExecId::candidates(id, caller.namespace()) {
            let found = self.0.store.exec(&candidate).await.map_err(|error| store_failed(&error))?;
            if let Some(found) = found.filter(|(exec, _)| self.is_visible(caller, exec)) {
                return Ok(found);
            }
        }
        Err(exec_unknown(id))
    }

    fn is_visible(&self, caller: &Caller, exec: &Exec) -> bool {
        self.0.store.sandbox(&exec.sandbox).is_some_and(|sandbox| caller.sees(&sandbox))
    }

    /// Lists running execs of one sandbox or of all.
    pub fn active_execs(&self, caller: &Caller, sandbox: Option<&str>) -> Result<Vec<(Arc<Exec>, Sequence)>, Refusal> {
        let sandbox = sandbox.map(|id| self.get(caller, id)).transpose()?;
        let mut execs = self.0.store.running_execs(sandbox.as_ref().map(|sandbox| &sandbox.id));
        execs.retain(|(exec, _)| self.is_visible(caller, exec));
        Ok(execs)
    }

    /// Lists all execs of a sandbox that are retained, in the order of their creation.
    pub async fn execs(&self, caller: &Caller, sandbox: &str) -> Result<Vec<Arc<Exec>>, Refusal> {
        let sandbox = self.get(caller, sandbox)?;
        self.0.store.execs(&sandbox.id).await.map_err(|error| store_failed(&error))
    }

    /// Streams the events of a sandbox after a sequence.
    pub fn events(&self, caller: &Caller, id: &str, after: Sequence) -> Result<Events, Refusal> {
        let sandbox = self.get(caller, id)?;
        self.check_open()?;
        self.0.store.events(&sandbox.id, after).map_err(|error| match error {
            EventsError::Unknown => sandbox_unknown(id),
            EventsError::Future { newest, oldest } => {
                let message = format!("there is no event {after} yet; the newest is {newest}");
                out_of_range(id, after, oldest, message)
            }
            EventsError::Expired { oldest } => expired(id, after, oldest),
        })
    }

    /// The free space on the host's disk; `None` if no reserve is configured.
    pub fn disk_space(&self) -> Option<DiskSpace> {
        self.0.provider.disk_space()
    }

    /// Streams the events of all sandboxes with some labels.
    pub fn watch(&self, caller: &Caller, selector: Pairs, after: Option<u64>) -> EventWatch {
        EventWatch { store: self.0.store.clone(), caller: *caller, selector, events: self.0.store.all_events(after) }
    }

    /// Pauses or unpauses all processes of a sandbox.
    pub async fn pause(&self, caller: &Caller, id: &str, paused: bool) -> Result<(), Refusal> {
        self.send(caller, &self.get(caller, id)?.id, ActorRequest::Pause(paused)).await.map(drop)
    }

    /// Sets how long a sandbox may be idle: `None` is the default of the daemon, 0 is forever.
    pub async fn set_idle_ttl(&self, caller: &Caller, id: &str, idle: Option<Duration>) -> Result<(), Refusal> {
        // The store has signed numbers.
        if idle.is_some_and(|idle| i64::try_from(idle.as_millis()).is_err()) {
            return Err(Refusal::invalid("idle_ttl", "it is too long"));
        }
        self.send(caller, &self.get(caller, id)?.id, ActorRequest::SetIdle(idle)).await.map(drop)
    }

    /// The sockets of a running sandbox, for direct access.
    pub fn reach(&self, caller: &Caller, id: &str) -> Result<Reach, Refusal> {
        let sandbox = self.get(caller, id)?;
        match sandbox.state {
            SandboxState::Ready => Ok(self.0.provider.reach(&place(&sandbox))),
            _ => Err(not_ready(&sandbox).seen_from(caller.namespace())),
        }
    }

    /// The conditions of a running sandbox that differ from its spec and are retried.
    pub fn conditions(&self, sandbox: &Sandbox) -> Vec<Condition> {
        self.0.provider.conditions(&place(sandbox))
    }

    /// Returns the spec of a sandbox.
    pub fn spec(&self, sandbox: &Sandbox) -> Result<Spec, Refusal> {
        serde_json::from_str(&sandbox.spec).map_err(|error| internal(&error))
    }

    /// Shuts the control plane down. It stops no sandbox: the next daemon continues what is in progress.
    pub async fn shutdown(&self) {
        let (mut tasks, event_log) = {
            let mut actors = self.0.lock();
            actors.closed = true;
            actors.mailboxes.clear();
            (std::mem::take(&mut actors.tasks), actors.event_log.take())
        };
        tasks.shutdown().await;
        if let Some(event_log) = event_log {
            event_log.finish().await;
        }
    }

    fn memory(&self, spec: &Spec) -> u64 {
        self.0.memory(spec)
    }

    /// Spawns the actor of a sandbox.
    fn spawn_actor(&self, sandbox: Arc<Sandbox>, spec: Arc<Spec>, mailbox: Mailbox, origin: SandboxOrigin) {
        let Mailbox { sender, messages } = mailbox;
        self.0.quota.record(&sandbox);
        let mut actors = self.0.lock();
        if actors.closed {
            // The next daemon finds it in the store.
            return;
        }
        actors.mailboxes.insert(sandbox.id.clone(), sender);
        let shared = Arc::clone(&self.0);
        let actor = Actor::new(Arc::clone(&shared), Arc::clone(&sandbox), spec, messages, origin);
        actors.reap_finished();
        actors.tasks.spawn(async move {
            // The daemon that created it may have crashed before it saved the manifest. A deletion removes the manifest, so
            // it is saved before the actor starts, and not at all if that is its next step.
            if origin == SandboxOrigin::Store && SandboxStage::of(&sandbox) != SandboxStage::Deleting {
                shared.save_manifest(&sandbox).await;
            }
            actor.run().await;
        });
    }

    async fn send(&self, caller: &Caller, id: &SandboxId, request: ActorRequest) -> Result<Acceptance, Refusal> {
        self.dispatch(id, request).await.map_err(|refusal| refusal.seen_from(caller.namespace()))
    }

    async fn dispatch(&self, id: &SandboxId, request: ActorRequest) -> Result<Acceptance, Refusal> {
        self.0.check_home()?;
        let mailbox = {
            let actors = self.0.lock();
            if actors.closed {
                return Err(shutting_down());
            }
            actors.mailboxes.get(id).cloned()
        };
        let (answer, answered) = oneshot::channel();
        let message = ActorMessage { request, answer };
        let unsent = match mailbox {
            Some(mailbox) => mailbox.send(message).await.err().map(|unsent| unsent.0),
            None => Some(message),
        };
        match unsent {
            None => answered.await.unwrap_or_else(|_| Err(self.actor_stopped(id))),
            Some(message) => match self.deleted(id) {
                Some(sandbox) => self.0.answer_for_deleted(&sandbox, message.request).await,
                None => Err(self.actor_stopped(id)),
            },
        }
    }

    /// A deleted sandbox that is not purged yet.
    fn deleted(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        let sandbox = self.0.store.sandbox(id).filter(|sandbox| sandbox.state == SandboxState::Deleted);
        sandbox.filter(|_| !self.0.lock().closed)
    }

    /// The refusal for a request whose actor stopped without an answer.
    fn actor_stopped(&self, id: &SandboxId) -> Refusal {
        match self.deleted(id) {
            // Only a pause may be unanswered, because a task performs it.
            Some(sandbox) => not_ready(&sandbox),
            None if self.0.lock().closed => shutting_down(),
            None => sandbox_gone(id),
        }
    }

    /// The number of actors.
    pub fn actors(&self) -> usize {
        self.0.lock().mailboxes.len()
    }

    fn check_open(&self) -> Result<(), Refusal> {
        if self.0.lock().closed { Err(shutting_down()) } else { Ok(()) }
    }
}

// === impl ControlInner ===

impl ControlInner {
    fn lock(&self) -> MutexGuard<'_, ActorRegistry> {
        // No update in there is partial, so a poisoned lock is usable.
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current settings.
    pub(crate) fn settings(&self) -> Arc<ControlSettings> {
        Arc::clone(&self.settings.borrow())
    }

    /// The memory limit of a sandbox and its services in total.
    pub(crate) fn memory(&self, spec: &Spec) -> u64 {
        let services = spec.services.iter().map(|service| service.limits);
        let all = std::iter::once(spec.limits).chain(services);
        let default = self.settings().default_memory;
        let each = all.map(|limits| limits.memory.unwrap_or(default));
        each.fold(0, u64::saturating_add)
    }

    /// Reserves capacity for a sandbox that is about to start.
    pub(crate) fn reserve_capacity(&self, id: &SandboxId, memory: u64) -> Result<(), Refusal> {
        let starts =
            |sandbox: &Sandbox| matches!(SandboxStage::of(sandbox), SandboxStage::Creating | SandboxStage::Resuming);
        let is_starting = |id: &SandboxId| self.store.sandbox(id).is_none_or(|sandbox| starts(&sandbox));
        self.admission.reserve(id, memory, &self.settings(), (|id| self.uses_capacity(id), is_starting))
    }

    /// Refuses requests while the home is elsewhere, where every sandbox would seem to be missing.
    pub(crate) fn check_home(&self) -> Result<(), Refusal> {
        let moved = |error: ProviderError| Refusal::new(Code::FailedPrecondition, reason::HOME_MOVED, error.message);
        self.provider.check_home().map_err(moved)
    }

    /// Reserves quota for a new sandbox.
    fn reserve_quota(&self, sandbox: &Sandbox) -> Result<(), Refusal> {
        self.quota.reserve(sandbox, &self.settings(), |id| self.live_row(id).is_some())
    }

    /// Keeps or releases the quota, depending on whether the sandbox was committed.
    fn settle_quota(&self, id: &SandboxId) {
        match self.live_row(id) {
            Some(sandbox) => self.quota.record(&sandbox),
            None => self.quota.release(id),
        }
    }

    fn live_row(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.store.sandbox(id).filter(|sandbox| sandbox.state != SandboxState::Deleted)
    }

    /// Refuses what would start to write to a low disk of the host.
    pub(crate) fn check_disk(&self, id: &SandboxId) -> Result<(), Refusal> {
        match self.provider.disk_space().filter(|space| space.is_low) {
            Some(space) => Err(disk_low(&space).about("sandbox_id", id.as_str())),
            None => Ok(()),
        }
    }

    /// Refuses an exec that does not fit into the store on a low disk. A small one may free space, so it is accepted
    /// until half of the reserve is used.
    pub(crate) fn check_disk_for_exec(&self, id: &SandboxId, bytes: usize) -> Result<(), Refusal> {
        let is_small = bytes <= MAX_EXEC_BYTES_ON_LOW_DISK;
        match self.provider.disk_space().filter(|space| space.is_low) {
            Some(space) if !is_small || space.free < space.reserve / 2 => {
                Err(disk_low(&space).about("sandbox_id", id.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// Keeps or releases the capacity, depending on whether the change was committed.
    pub(crate) fn settle_capacity(&self, id: &SandboxId, memory: u64) {
        if self.uses_capacity(id) { self.admission.record(id, memory) } else { self.admission.release(id) }
    }

    fn uses_capacity(&self, id: &SandboxId) -> bool {
        self.store.sandbox(id).is_some_and(|sandbox| SandboxStage::of(&sandbox).uses_capacity())
    }

    /// Registers the mailbox of a sandbox before its commit, since requests may follow as soon as the sandbox is
    /// visible. Of concurrent creates with the same id, the first keeps its mailbox.
    fn register_mailbox(&self, id: &SandboxId, mailbox: &Mailbox) {
        self.lock().mailboxes.entry(id.clone()).or_insert_with(|| mailbox.sender.clone());
    }

    /// Unregisters the mailbox of a sandbox that was not committed.
    fn unregister_mailbox(&self, id: &SandboxId, mailbox: &Mailbox) {
        let mut actors = self.lock();
        if actors.mailboxes.get(id).is_some_and(|sender| sender.same_channel(&mailbox.sender)) {
            actors.mailboxes.remove(id);
        }
    }

    /// Unregisters an actor that stopped.
    pub(crate) fn unregister_actor(&self, id: &SandboxId) {
        self.quota.release(id);
        let mut actors = self.lock();
        actors.mailboxes.remove(id);
        actors.reap_finished();
    }
}

pub(crate) use self::create::{random_id, random_incarnation};
pub use self::disk::DiskAccess;
pub use self::refusals::expired;
pub(crate) use self::refusals::{
    commit_failed, exec_unknown, internal, not_ready, sandbox_gone, sandbox_unknown, stage_name, store_failed,
};
use self::refusals::{disk_low, out_of_range, shutting_down};

// === impl ActorRegistry ===

impl ActorRegistry {
    /// Drops the tasks that have finished.
    fn reap_finished(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }
}

// === impl Mailbox ===

impl Mailbox {
    fn new() -> Self {
        let (sender, messages) = mpsc::channel(MAILBOX_CAPACITY);
        Self { sender, messages }
    }
}

/// The reference by which a provider knows a sandbox.
pub(crate) fn place(sandbox: &Sandbox) -> Place {
    Place { sandbox: sandbox.id.clone(), incarnation: sandbox.incarnation.clone(), disk: sandbox.disk.clone() }
}

/// Parses the spec of a sandbox. An invalid one does not affect other sandboxes, and its sandbox can be deleted.
fn parse_spec(sandbox: &Sandbox) -> Spec {
    serde_json::from_str(&sandbox.spec).unwrap_or_else(|error| {
        tracing::error!(sandbox = %sandbox.id, %error, "the spec of a sandbox cannot be parsed");
        Spec::default()
    })
}
