//! What may be asked, by whom, and where it goes.

mod create;
mod disk;
mod orphans;
mod reaper;
mod refusals;
mod retention;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrel_store::{
    Events, EventsError, Exec, ExecId, ExecState, Namespace, Pairs, Sandbox, SandboxId, SandboxState, Sequence, Store,
    StoreError,
};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::actor::{Accepted, Actor, Message, Origin, Request};
use crate::admission::Admission;
use crate::descriptors::{DescriptorUse, Descriptors};
use crate::event_log::EventLog;
use crate::exec_size::MAX_EXEC_BYTES_ON_LOW_DISK;
use crate::kept::KeptSandboxes;
use crate::machine::Stage;
use crate::provider::{Condition, DiskSpace, ExecOptions, Place, Provider, ProviderError, Reach};
use crate::refusal::{Code, Refusal};
use crate::settings::{Caller, Settings};
use crate::spec::{Draft, RestartPolicy, Spec};
use crate::watch::{Watch, matches};
use crate::words::{cause, reason};

/// How many requests wait for one sandbox before those who ask have to.
const MAILBOX: usize = 64;
/// How long whoever cancels a command is kept waiting for its end.
const CANCELLED_SOON: Duration = Duration::from_secs(3);
/// How many sandboxes are resumed at a time when a host has booted.
const RESTARTS: usize = 4;
/// What to do about a disk that is full.
const MAKE_ROOM: &str = "free space, for example with `carrel rm --force ID` or `carrel prune`";

/// All sandboxes.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

/// A sandbox that is asked for.
#[derive(Clone, Debug, Default)]
pub struct CreateRequest {
    /// What it is to be called by; a random id if that is left to us.
    pub id: Option<String>,
    /// What it is made from.
    pub spec: Option<Draft>,
    /// What lies below that, in YAML; empty if nothing.
    pub config_yaml: Vec<u8>,
    /// Whether it is made although this host cannot enforce a limit.
    pub allow_unenforced_limits: bool,
    /// When it is resumed without a request; none is what the spec says.
    pub restart: Option<RestartPolicy>,
    /// Who its command and its execs run as.
    pub user: Option<String>,
    /// Where its command and its execs start.
    pub workdir: Option<String>,
    /// How many processes it may have.
    pub pids: Option<u32>,
}

/// A command that is asked for.
#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    /// What it is to be called by; a random id if that is left to us.
    pub id: Option<String>,
    /// The sandbox.
    pub sandbox: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its working directory; empty is the workspace.
    pub cwd: String,
    /// What its environment has besides the sandbox's.
    pub env: Pairs,
    /// Everything else.
    pub options: ExecOptions,
}

/// Why sandboxes cannot be looked after.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What all actors share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) settings: watch::Sender<Arc<Settings>>,
    pub(crate) admission: Admission,
    pub(crate) kept: KeptSandboxes,
    /// Turns of those that are resumed without a request.
    pub(crate) restarts: Arc<Semaphore>,
    /// A sandbox was deleted of which much is known.
    large_deleted: Arc<Notify>,
    actors: Mutex<Actors>,
}

/// Where what is asked of one sandbox goes, and from where it is taken.
struct Mailbox {
    sender: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
}

/// Those who have a sandbox.
#[derive(Default)]
struct Actors {
    mailboxes: HashMap<SandboxId, mpsc::Sender<Message>>,
    tasks: JoinSet<()>,
    event_log: Option<EventLog>,
    closed: bool,
}

// === impl Control ===

impl Control {
    /// Looks after the sandboxes of a store: each that is not deleted gets its actor, which goes on where the last one was.
    pub async fn start(store: Store, provider: Arc<dyn Provider>, settings: Settings) -> Result<Self, StartError> {
        let (admission, kept) = (Admission::default(), KeptSandboxes::default());
        let (settings, restarts) = (watch::Sender::new(Arc::new(settings)), Arc::new(Semaphore::new(RESTARTS)));
        let (large_deleted, actors) = (Arc::default(), Mutex::default());
        let shared = Shared { store, provider, settings, admission, kept, restarts, large_deleted, actors };
        let control = Self(Arc::new(shared));
        // From here on whatever happens is logged, also what is found to have happened meanwhile.
        control.0.lock().event_log = Some(EventLog::start(control.0.store.clone()));
        for sandbox in control.0.store.sandboxes() {
            // One that is gone is answered for from its row.
            if sandbox.state == SandboxState::Deleted {
                continue;
            }
            let spec = parse(&sandbox);
            if Stage::of(&sandbox).takes_room() {
                control.0.admission.count(&sandbox.id, control.memory(&spec));
            }
            control.begin(sandbox, Arc::new(spec), Mailbox::new(), Origin::Store);
        }
        control.save_manifests();
        control.start_reaper();
        control.start_retention();
        Ok(control)
    }

    /// Replaces the settings; what time it is and how many descriptors there are is asked of whom it was. Sandboxes that run
    /// stay, also above a limit that is lower now.
    pub fn reload(&self, settings: Settings) {
        self.0.settings.send_modify(|now| *now = Arc::new(settings.beside(now)));
    }

    /// The file descriptors of this process.
    pub fn descriptors(&self) -> Descriptors {
        self.0.settings().descriptors.clone()
    }

    /// A sandbox as it is.
    pub fn get(&self, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, Refusal> {
        let mut meant = SandboxId::meant(id, caller.namespace()).filter_map(|id| self.0.store.sandbox(&id));
        meant.find(|sandbox| caller.sees(sandbox)).ok_or_else(|| sandbox_unknown(id))
    }

    /// Sandboxes with some labels, the newest first.
    pub fn list(&self, caller: &Caller, include_deleted: bool, selector: &Pairs) -> Vec<Arc<Sandbox>> {
        let mut found = self.0.store.sandboxes();
        found.retain(|sandbox| {
            let is_there = include_deleted || sandbox.state != SandboxState::Deleted;
            is_there && caller.sees(sandbox) && matches(selector, &sandbox.labels)
        });
        found.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| one.id.cmp(&other.id)));
        found
    }

    /// Accepts the end of a sandbox, to be resumed later.
    pub async fn stop(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        self.ask(caller, &self.get(caller, id)?.id, Request::Stop(cause::STOP_REQUESTED)).await.map(drop)
    }

    /// Accepts the end of all sandboxes that run, because the host shuts down; says which that are. The next daemon resumes
    /// those whose restart policy says so.
    pub async fn stop_for_shutdown(&self, caller: &Caller) -> Result<Vec<Arc<Sandbox>>, Refusal> {
        if !caller.trusted {
            let words = "only the daemon's own user may stop the sandboxes of all users";
            return Err(Refusal::new(Code::PermissionDenied, reason::SHUTDOWN_FORBIDDEN, words));
        }
        let mut asked = JoinSet::new();
        for sandbox in self.list(caller, false, &Pairs::new()) {
            let (control, caller) = (self.clone(), *caller);
            asked.spawn(async move {
                let stopped = control.ask(&caller, &sandbox.id, Request::Stop(cause::HOST_SHUTDOWN)).await;
                (sandbox, stopped)
            });
        }
        let mut stopping = Vec::new();
        while let Some(asked) = asked.join_next().await {
            match asked.map_err(|error| broken(&error))? {
                (sandbox, Ok(_)) => stopping.push(sandbox),
                // It does not run, or it is gone.
                (_, Err(refusal)) if matches!(refusal.code, Code::FailedPrecondition | Code::NotFound) => {}
                (_, Err(refusal)) => return Err(refusal),
            }
        }
        stopping.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(stopping)
    }

    /// Accepts that a sandbox is to run again.
    pub async fn resume(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        self.ask(caller, &self.get(caller, id)?.id, Request::Resume).await.map(drop)
    }

    /// Accepts that a sandbox is to be gone.
    pub async fn delete(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        self.ask(caller, &self.get(caller, id)?.id, Request::Delete).await.map(drop)
    }

    /// Accepts that all sandboxes with some labels are to be gone; says which that were.
    pub async fn delete_matching(&self, caller: &Caller, selector: &Pairs) -> Result<Vec<SandboxId>, Refusal> {
        if selector.is_empty() {
            return Err(Refusal::invalid("label_selector", "it would match every sandbox: give at least one label"));
        }
        let mut asked = Vec::new();
        for sandbox in self.list(caller, false, selector) {
            let (control, caller, id) = (self.clone(), *caller, sandbox.id.clone());
            asked.push(tokio::spawn(async move { (control.ask(&caller, &id, Request::Delete).await, id) }));
        }
        let mut deleted = Vec::new();
        for asked in asked {
            match asked.await {
                Ok((Ok(Accepted::Changed), id)) => deleted.push(id),
                Ok((Ok(_), _)) | Err(_) => {}
                // It was purged meanwhile: what was asked for is so.
                Ok((Err(Refusal { code: Code::NotFound, .. }), _)) => {}
                Ok((Err(refusal), _)) => return Err(refusal),
            }
        }
        deleted.sort();
        Ok(deleted)
    }

    /// Accepts a command.
    pub async fn create_exec(&self, caller: &Caller, request: ExecRequest) -> Result<Arc<Exec>, Refusal> {
        let id = self.get(caller, &request.sandbox)?.id.clone();
        self.0.settings().descriptors.check(DescriptorUse::Stream)?;
        // A sandbox from before there were namespaces may have a supervisor from then, which knows plain ids only.
        let namespace = if id.namespace() == caller.namespace() { id.namespace() } else { Namespace::Daemon };
        match self.ask(caller, &id, Request::Exec(Box::new(request), namespace)).await? {
            Accepted::Exec(exec) => Ok(exec),
            Accepted::Changed | Accepted::Already => Err(broken(&"an exec was accepted without one")),
        }
    }

    /// Accepts that a command is to end. Answered when it is dead, or soon.
    pub async fn cancel_exec(&self, caller: &Caller, id: &str) -> Result<(), Refusal> {
        let (exec, sequence) = self.exec(caller, id).await?;
        self.ask(caller, &exec.sandbox, Request::Cancel(exec.id.clone())).await?;
        // It is accepted, whatever comes of waiting for it.
        let _in_time = tokio::time::timeout(CANCELLED_SOON, self.ended(&exec, sequence)).await;
        Ok(())
    }

    /// Waits for the end of a command.
    async fn ended(&self, exec: &Exec, sequence: Sequence) {
        let Ok(mut events) = self.0.store.events(&exec.sandbox, sequence) else { return };
        loop {
            match self.0.store.exec(&exec.id).await {
                Ok(Some((exec, _))) if exec.state == ExecState::Running => {}
                _ => return,
            }
            let Ok(Some(_)) = events.next().await else { return };
        }
    }

    /// A command as it is, with a place in the log of its sandbox from which on nothing of it is missed.
    pub async fn exec(&self, caller: &Caller, id: &str) -> Result<(Arc<Exec>, Sequence), Refusal> {
        for meant in ExecId::meant(id, caller.namespace()) {
            let found = self.0.store.exec(&meant).await.map_err(|error| store_failed(&error))?;
            if let Some(found) = found.filter(|(exec, _)| self.is_seen(caller, exec)) {
                return Ok(found);
            }
        }
        Err(exec_unknown(id))
    }

    fn is_seen(&self, caller: &Caller, exec: &Exec) -> bool {
        self.0.store.sandbox(&exec.sandbox).is_some_and(|sandbox| caller.sees(&sandbox))
    }

    /// Commands that have not ended, of one sandbox or of all.
    pub fn active_execs(&self, caller: &Caller, sandbox: Option<&str>) -> Result<Vec<(Arc<Exec>, Sequence)>, Refusal> {
        let sandbox = sandbox.map(|id| self.get(caller, id)).transpose()?;
        let mut execs = self.0.store.running_execs(sandbox.as_ref().map(|sandbox| &sandbox.id));
        execs.retain(|(exec, _)| self.is_seen(caller, exec));
        Ok(execs)
    }

    /// All commands of a sandbox that are known, those that have ended too, in the order of their creation.
    pub async fn execs(&self, caller: &Caller, sandbox: &str) -> Result<Vec<Arc<Exec>>, Refusal> {
        let sandbox = self.get(caller, sandbox)?;
        self.0.store.execs(&sandbox.id).await.map_err(|error| store_failed(&error))
    }

    /// What happened to a sandbox after a place in its log, and what happens.
    pub fn events(&self, caller: &Caller, id: &str, after: Sequence) -> Result<Events, Refusal> {
        let sandbox = self.get(caller, id)?;
        self.open()?;
        self.0.store.events(&sandbox.id, after).map_err(|error| match error {
            EventsError::Unknown => sandbox_unknown(id),
            EventsError::Future { newest, oldest } => {
                let words = format!("there is no event {after} yet: the newest is {newest}");
                out_of_range(id, after, oldest, words)
            }
            EventsError::Expired { oldest } => expired(id, after, oldest),
        })
    }

    /// What is free on the disk of the host; none where nothing has to stay free.
    pub fn disk_space(&self) -> Option<DiskSpace> {
        self.0.provider.disk_space()
    }

    /// What happens to all sandboxes with some labels.
    pub fn watch(&self, caller: &Caller, selector: Pairs, after: Option<u64>) -> Watch {
        Watch { store: self.0.store.clone(), caller: *caller, selector, events: self.0.store.all_events(after) }
    }

    /// Stops all processes of a sandbox where they are, or lets them continue.
    pub async fn pause(&self, caller: &Caller, id: &str, paused: bool) -> Result<(), Refusal> {
        self.ask(caller, &self.get(caller, id)?.id, Request::Pause(paused)).await.map(drop)
    }

    /// Changes how long a sandbox may be idle: none is what the daemon says, 0 for ever.
    pub async fn set_idle_ttl(&self, caller: &Caller, id: &str, idle: Option<Duration>) -> Result<(), Refusal> {
        self.ask(caller, &self.get(caller, id)?.id, Request::SetIdle(idle)).await.map(drop)
    }

    /// How to reach a sandbox that runs, past the control plane.
    pub fn reach(&self, caller: &Caller, id: &str) -> Result<Reach, Refusal> {
        let sandbox = self.get(caller, id)?;
        match sandbox.state {
            SandboxState::Ready => Ok(self.0.provider.reach(&place(&sandbox))),
            _ => Err(not_ready(&sandbox).seen_from(caller.namespace())),
        }
    }

    /// What of a sandbox that runs is not as it was asked for, and is retried.
    pub fn conditions(&self, sandbox: &Sandbox) -> Vec<Condition> {
        self.0.provider.conditions(&place(sandbox))
    }

    /// What a sandbox is made from.
    pub fn spec(&self, sandbox: &Sandbox) -> Result<Spec, Refusal> {
        serde_json::from_str(&sandbox.spec).map_err(|error| broken(&error))
    }

    /// Accepts nothing any more. Nothing is stopped: what is going on is left to the next daemon.
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

    /// Gives a sandbox its actor.
    fn begin(&self, sandbox: Arc<Sandbox>, spec: Arc<Spec>, mailbox: Mailbox, origin: Origin) {
        let Mailbox { sender, messages } = mailbox;
        self.0.kept.count(&sandbox);
        let mut actors = self.0.lock();
        if actors.closed {
            // The next daemon finds it in the store.
            return;
        }
        actors.mailboxes.insert(sandbox.id.clone(), sender);
        let actor = Actor::new(Arc::clone(&self.0), sandbox, spec, messages, origin);
        actors.collect();
        actors.tasks.spawn(actor.run());
    }

    async fn ask(&self, caller: &Caller, id: &SandboxId, request: Request) -> Result<Accepted, Refusal> {
        self.deliver(id, request).await.map_err(|refusal| refusal.seen_from(caller.namespace()))
    }

    async fn deliver(&self, id: &SandboxId, request: Request) -> Result<Accepted, Refusal> {
        self.0.check_home()?;
        let mailbox = {
            let actors = self.0.lock();
            if actors.closed {
                return Err(stopping());
            }
            actors.mailboxes.get(id).cloned()
        };
        let (answer, answered) = oneshot::channel();
        let message = Message { request, answer };
        let unsent = match mailbox {
            Some(mailbox) => mailbox.send(message).await.err().map(|unsent| unsent.0),
            None => Some(message),
        };
        match unsent {
            None => answered.await.unwrap_or_else(|_| Err(self.unanswered(id))),
            Some(message) => match self.deleted(id) {
                Some(sandbox) => self.0.answer_for_deleted(&sandbox, message.request).await,
                None => Err(self.unanswered(id)),
            },
        }
    }

    /// A sandbox that is gone, and still known.
    fn deleted(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        let sandbox = self.0.store.sandbox(id).filter(|sandbox| sandbox.state == SandboxState::Deleted);
        sandbox.filter(|_| !self.0.lock().closed)
    }

    /// What is said when an actor left without an answer.
    fn unanswered(&self, id: &SandboxId) -> Refusal {
        match self.deleted(id) {
            // Only a pause is left unanswered, since it takes its time.
            Some(sandbox) => not_ready(&sandbox),
            None if self.0.lock().closed => stopping(),
            None => sandbox_gone(id),
        }
    }

    /// How many sandboxes have an actor: those that are not deleted.
    pub fn actors(&self) -> usize {
        self.0.lock().mailboxes.len()
    }

    fn open(&self) -> Result<(), Refusal> {
        if self.0.lock().closed { Err(stopping()) } else { Ok(()) }
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Actors> {
        // Nothing in there is ever half done.
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings as they are now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    /// How much memory a sandbox may use, with all that stands beside it.
    pub(crate) fn memory(&self, spec: &Spec) -> u64 {
        let beside = spec.services.iter().map(|service| service.limits);
        let all = std::iter::once(spec.limits).chain(beside);
        let default = self.settings().default_memory;
        let each = all.map(|limits| limits.memory.unwrap_or(default));
        each.fold(0, u64::saturating_add)
    }

    /// Takes room for a sandbox that is asked for.
    pub(crate) fn take_room(&self, id: &SandboxId, memory: u64) -> Result<(), Refusal> {
        let starts = |sandbox: &Sandbox| matches!(Stage::of(sandbox), Stage::Creating | Stage::Resuming);
        let is_starting = |id: &SandboxId| self.store.sandbox(id).is_none_or(|sandbox| starts(&sandbox));
        self.admission.take(id, memory, &self.settings(), (|id| self.is_there(id), is_starting))
    }

    /// Refuses what would look for a sandbox where it is not, and so take it for gone.
    pub(crate) fn check_home(&self) -> Result<(), Refusal> {
        let moved = |error: ProviderError| Refusal::new(Code::FailedPrecondition, reason::HOME_MOVED, error.message);
        self.provider.check_home().map_err(moved)
    }

    /// Takes a place for a sandbox that is asked for among those that are kept.
    fn take_place(&self, sandbox: &Sandbox) -> Result<(), Refusal> {
        self.kept.take(sandbox, &self.settings(), |id| self.kept_row(id).is_some())
    }

    /// Whether it was written down decides whether it has a place.
    fn settle_place(&self, id: &SandboxId) {
        match self.kept_row(id) {
            Some(sandbox) => self.kept.count(&sandbox),
            None => self.kept.give_back(id),
        }
    }

    fn kept_row(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.store.sandbox(id).filter(|sandbox| sandbox.state != SandboxState::Deleted)
    }

    /// Refuses what would begin to write to a disk of the host that is low.
    pub(crate) fn check_disk(&self, id: &SandboxId) -> Result<(), Refusal> {
        match self.provider.disk_space().filter(|space| space.is_low) {
            Some(space) => Err(disk_low(&space).about("sandbox_id", id.as_str())),
            None => Ok(()),
        }
    }

    /// Refuses an exec that the store has no room for on a disk that is low. A small one may be what makes room, so it is
    /// accepted until half of the reserve is used.
    pub(crate) fn check_disk_for_exec(&self, id: &SandboxId, bytes: usize) -> Result<(), Refusal> {
        let is_small = bytes <= MAX_EXEC_BYTES_ON_LOW_DISK;
        match self.provider.disk_space().filter(|space| space.is_low) {
            Some(space) if !is_small || space.free < space.reserve / 2 => {
                Err(disk_low(&space).about("sandbox_id", id.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// Whether it was written down decides whether it takes room.
    pub(crate) fn settle_room(&self, id: &SandboxId, memory: u64) {
        if self.is_there(id) { self.admission.count(id, memory) } else { self.admission.give_back(id) }
    }

    fn is_there(&self, id: &SandboxId) -> bool {
        self.store.sandbox(id).is_some_and(|sandbox| Stage::of(&sandbox).takes_room())
    }

    /// As soon as anybody can see a sandbox, it can be asked something: before it is written down. If somebody else is at
    /// writing down one of that id, whoever is first has it.
    fn expect(&self, id: &SandboxId, mailbox: &Mailbox) {
        self.lock().mailboxes.entry(id.clone()).or_insert_with(|| mailbox.sender.clone());
    }

    /// It was not written down.
    fn give_up(&self, id: &SandboxId, mailbox: &Mailbox) {
        let mut actors = self.lock();
        if actors.mailboxes.get(id).is_some_and(|sender| sender.same_channel(&mailbox.sender)) {
            actors.mailboxes.remove(id);
        }
    }

    /// A sandbox needs nobody any more.
    pub(crate) fn leave(&self, id: &SandboxId) {
        self.kept.give_back(id);
        let mut actors = self.lock();
        actors.mailboxes.remove(id);
        actors.collect();
    }
}

pub(crate) use self::create::{random_id, random_incarnation};
pub use self::disk::DiskAccess;
pub use self::refusals::expired;
pub(crate) use self::refusals::{
    broken, commit_failed, exec_unknown, not_ready, sandbox_gone, sandbox_unknown, shown, store_failed,
};
use self::refusals::{disk_low, out_of_range, stopping};

// === impl Actors ===

impl Actors {
    /// Those that are over are not kept until the end.
    fn collect(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }
}

// === impl Mailbox ===

impl Mailbox {
    fn new() -> Self {
        let (sender, messages) = mpsc::channel(MAILBOX);
        Self { sender, messages }
    }
}

/// What everything of a sandbox is named by.
pub(crate) fn place(sandbox: &Sandbox) -> Place {
    Place { sandbox: sandbox.id.clone(), incarnation: sandbox.incarnation.clone(), disk: sandbox.disk.clone() }
}

/// What a sandbox is made from. One of which that cannot be read keeps nobody from the others: it can be deleted.
fn parse(sandbox: &Sandbox) -> Spec {
    serde_json::from_str(&sandbox.spec).unwrap_or_else(|error| {
        tracing::error!(sandbox = %sandbox.id, %error, "what a sandbox is made from cannot be understood");
        Spec::default()
    })
}
