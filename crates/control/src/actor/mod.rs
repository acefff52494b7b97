//! The actor of one sandbox. It handles requests, facts and task results one at a time, and starts the tasks that the
//! stage requires.

mod deleted;
mod edit;
mod facts;
mod pause;
mod requests;
mod restart;
mod services;
mod tasks;
mod timers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrel_failpoint::Failpoints;
use carrel_store::{EventType, Exec, ExecChange, ExecId, ExecState, IdNamespace, Sandbox, StoreError, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use self::edit::SandboxEdit;
pub(crate) use self::edit::phase_details;
use self::pause::PauseState;
use self::tasks::TaskOutcome;
use crate::control::{ControlInner, ExecRequest, commit_failed, store_failed};
use crate::failpoint::FailpointStep;
use crate::provider::{EndCause, Noted, Place};
use crate::refusal::Refusal;
use crate::spec::{RestartPolicy, Spec};
use crate::stage::SandboxStage;

/// The initial and the maximum delay before a failed commit is retried.
const WRITE_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The initial and the maximum delay before a failed provider call is retried.
const PROVIDER_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A request with the channel for its answer.
pub(crate) struct ActorMessage {
    pub(crate) request: ActorRequest,
    pub(crate) answer: oneshot::Sender<Result<Acceptance, Refusal>>,
}

/// A request to a sandbox.
pub(crate) enum ActorRequest {
    /// With the reason for the events.
    Stop(&'static str),
    Resume,
    /// Makes an incarnation that runs the current one.
    Adopt(String),
    Delete,
    /// With the namespace of the exec's id.
    Exec(Box<ExecRequest>, IdNamespace),
    Cancel(ExecId),
    Pause(bool),
    SetIdle(Option<Duration>),
}

/// Where a daemon got a sandbox from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxOrigin {
    /// It was in the store when the daemon started.
    Store,
    /// A client created it in this daemon.
    Request,
}

/// How a request was accepted.
pub(crate) enum Acceptance {
    /// It is committed.
    Changed,
    /// Nothing had to change.
    Unchanged,
    /// An exec is committed.
    Exec(Arc<Exec>),
}

/// The actor of one sandbox. It alone writes the sandbox's row.
pub(crate) struct Actor {
    shared: Arc<ControlInner>,
    /// The row in the store.
    sandbox: Arc<Sandbox>,
    spec: Arc<Spec>,
    messages: mpsc::Receiver<ActorMessage>,
    /// Execs that are running.
    execs: BTreeMap<ExecId, Arc<Exec>>,
    /// Tasks that are in progress, most of them calls of the provider.
    tasks: JoinSet<TaskOutcome>,
    /// Whether a task is in progress that changes the stage. There is at most one.
    busy: bool,
    /// Facts about this incarnation.
    facts: Option<mpsc::Receiver<Vec<Noted>>>,
    incarnation: IncarnationState,
    /// The start that is in progress.
    starting: Option<AbortHandle>,
    /// Whether only the disk of this incarnation is left.
    clean: bool,
    /// An earlier incarnation that is not cleaned up yet.
    leftover: Option<Place>,
    retry: ProviderRetry,
    command: CommandState,
    /// The last event about each service of this incarnation.
    services: BTreeMap<String, EventType>,
    idle: IdleState,
    /// When a cleanup that failed is retried.
    cleanup_not_before: Option<Instant>,
    restart: RestartState,
    pause: PauseState,
    /// Pauses up to this time are in the log already, although their facts may be replayed.
    pause_logged_until: Option<Timestamp>,
}

/// Whether the sandbox is resumed without a request because the host stopped it and its restart policy is `on-boot`.
enum RestartState {
    Never,
    /// It is resumed once it is stopped and this delay has passed.
    Due {
        after: Duration,
    },
    /// It waits for a permit.
    Waiting {
        after: Duration,
    },
    /// It is starting, and holds its permit until it runs.
    Running {
        _permit: OwnedSemaphorePermit,
    },
}

/// What this daemon knows about the incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct IncarnationState {
    /// Whether it was started or adopted.
    runs: bool,
    /// Whether the provider has stopped it.
    stopped: bool,
    /// When its end is assumed although no fact reported it.
    settled_at: Option<Instant>,
    /// How it ended, once no more facts follow.
    end: Option<IncarnationEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct IncarnationEnd {
    cause: EndCause,
    message: String,
}

/// The command of the sandbox's spec.
#[derive(Clone, Debug, Default)]
struct CommandState {
    /// When it was last started or exited.
    since: Timestamp,
    /// The sequence of the last exit that was handled. Exits may be replayed.
    last_exit: u64,
    /// How many early exits there were in a row.
    early_exits: u32,
    /// The exit status of the last run, for people.
    last_status: String,
    /// Whether its program was missing at the first start.
    missing: bool,
    /// The sequence of the exit that is not followed by a restart yet. The next daemon replays it.
    pending_exit: Option<u64>,
    /// When it is restarted.
    restart_at: Option<Instant>,
}

/// When a failed provider call is retried.
#[derive(Clone, Copy, Debug, Default)]
struct ProviderRetry {
    at: Option<Instant>,
    delay: Duration,
}

/// Since when the sandbox is idle.
#[derive(Clone, Copy, Debug)]
struct IdleState {
    since: Instant,
    /// Whether the provider is being asked if the sandbox is in use.
    checking: bool,
}

/// The actor must stop: it can no longer write the sandbox's row.
struct ActorStopped;

/// What an actor waits for.
enum ActorEvent {
    Request(Option<ActorMessage>),
    Task(TaskOutcome),
    Facts(Option<Vec<Noted>>),
    Deadline,
}

// === impl Actor ===

impl Actor {
    pub(crate) fn new(
        shared: Arc<ControlInner>,
        sandbox: Arc<Sandbox>,
        spec: Arc<Spec>,
        messages: mpsc::Receiver<ActorMessage>,
        origin: SandboxOrigin,
    ) -> Self {
        let execs = shared.store.running_execs(Some(&sandbox.id));
        let execs = execs.into_iter().map(|(exec, _)| (exec.id.clone(), exec)).collect();
        let now = Instant::now();
        // Idle time counts while no daemon ran, too, but no longer than the clock allows.
        let since = now.checked_sub(shared.settings().clock.since(sandbox.active_at)).unwrap_or(now);
        let command = CommandState { since: sandbox.state_changed_at, ..CommandState::default() };
        let restart = match (origin, spec.restart) {
            (SandboxOrigin::Store, RestartPolicy::OnBoot) => RestartState::Due { after: Duration::ZERO },
            (SandboxOrigin::Store | SandboxOrigin::Request, _) => RestartState::Never,
        };
        Self {
            shared,
            sandbox,
            spec,
            messages,
            execs,
            tasks: JoinSet::new(),
            busy: false,
            facts: None,
            incarnation: IncarnationState::default(),
            starting: None,
            clean: false,
            leftover: None,
            retry: ProviderRetry::default(),
            command,
            services: BTreeMap::new(),
            idle: IdleState { since, checking: false },
            cleanup_not_before: None,
            restart,
            pause: if origin == SandboxOrigin::Store { PauseState::Recorded } else { PauseState::Unpaused },
            pause_logged_until: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while let Ok(true) = self.run_once().await {}
        self.shared.unregister_actor(&self.sandbox.id);
        if self.stage() == SandboxStage::Deleted {
            self.shared.sandbox_deleted(&self.sandbox);
            // Requests that were queued before the deletion get the same answer as later ones.
            self.messages.close();
            while let Some(ActorMessage { request, answer }) = self.messages.recv().await {
                let _left = answer.send(self.shared.answer_for_deleted(&self.sandbox, request).await);
            }
        }
    }

    /// Starts what the stage requires, then handles one event. Returns whether to continue.
    async fn run_once(&mut self) -> Result<bool, ActorStopped> {
        if self.stage() == SandboxStage::Deleted {
            return Ok(false);
        }
        self.advance().await?;
        let mut settings = self.shared.settings.subscribe();
        let deadline = self.deadline();
        let event = tokio::select! {
            // The deadline depends on the settings.
            Ok(()) = settings.changed() => return Ok(true),
            message = self.messages.recv() => ActorEvent::Request(message),
            Some(finished) = self.tasks.join_next(), if !self.tasks.is_empty() => match finished {
                Ok(finished) => ActorEvent::Task(finished),
                // A start was aborted; the next task undoes what it did.
                Err(error) if error.is_cancelled() => {
                    self.busy = false;
                    return Ok(true);
                }
                Err(panic) => {
                    tracing::error!(sandbox = %self.sandbox.id, %panic, "a provider task panicked");
                    return Err(ActorStopped);
                }
            },
            facts = next_facts(&mut self.facts) => ActorEvent::Facts(facts),
            () = until(deadline) => ActorEvent::Deadline,
        };
        match event {
            ActorEvent::Request(None) => return Ok(false),
            ActorEvent::Request(Some(message)) => self.answer(message).await?,
            ActorEvent::Task(finished) => self.task_finished(finished).await?,
            ActorEvent::Facts(fact) => self.handle_facts(fact).await?,
            ActorEvent::Deadline => self.run_timers().await?,
        }
        Ok(true)
    }

    fn stage(&self) -> SandboxStage {
        SandboxStage::of(&self.sandbox)
    }

    fn edit(&self) -> SandboxEdit {
        SandboxEdit::new(&self.sandbox, self.shared.settings().clock.now())
    }

    /// Commits a request, or refuses it.
    async fn accept(&mut self, edit: SandboxEdit, step: FailpointStep) -> Result<(), Refusal> {
        step.begin();
        self.commit(edit).await.map_err(|error| commit_failed(&error))?;
        step.end();
        Ok(())
    }

    /// Commits something that has happened, and retries until it succeeds.
    async fn persist(&mut self, edit: SandboxEdit, step: FailpointStep) -> Result<(), ActorStopped> {
        let mut delay = WRITE_RETRY.0;
        loop {
            step.begin();
            match self.commit(edit.clone()).await {
                Ok(()) => {
                    step.end();
                    return Ok(());
                }
                Err(error @ (StoreError::Database(_) | StoreError::Full)) => {
                    tracing::error!(sandbox = %self.sandbox.id, %error, "an event cannot be committed; retrying");
                }
                Err(error) => {
                    // Another daemon owns the store, or this one is shutting down.
                    tracing::warn!(sandbox = %self.sandbox.id, %error, "the actor stops");
                    return Err(ActorStopped);
                }
            }
            // Requests cannot be accepted meanwhile either.
            let retry_at = Instant::now() + delay;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(retry_at) => break,
                    message = self.messages.recv() => match message {
                        Some(message) => {
                            let refusal = store_failed(&"an earlier event is not committed yet");
                            let _left = message.answer.send(Err(refusal));
                        }
                        None => return Err(ActorStopped),
                    },
                }
            }
            delay = (delay * 2).min(WRITE_RETRY.1);
        }
    }

    async fn commit(&mut self, edit: SandboxEdit) -> Result<(), StoreError> {
        let (execs, stage) = (edit.change.execs.clone(), self.stage());
        let committed = self.shared.store.commit(edit.change).await?;
        self.sandbox = committed.sandbox;
        if self.stage() != stage {
            self.retry = ProviderRetry::default();
        }
        for change in execs {
            let (ExecChange::New(exec) | ExecChange::Known(exec)) = change;
            match exec.state {
                ExecState::Running => self.execs.insert(exec.id.clone(), Arc::new(exec)),
                ExecState::Finished | ExecState::Failed | ExecState::Cancelled => self.execs.remove(&exec.id),
            };
        }
        if !self.stage().uses_capacity() {
            self.shared.admission.release(&self.sandbox.id);
        }
        Ok(())
    }
}

// === impl ProviderRetry ===

impl ProviderRetry {
    /// Doubles the delay up to the maximum.
    fn back_off(&mut self) {
        self.delay = (self.delay * 2).clamp(PROVIDER_RETRY.0, PROVIDER_RETRY.1);
        self.at = Some(Instant::now() + self.delay);
    }

    /// Whether the retry is not due yet.
    fn is_pending(&self) -> bool {
        self.at.is_some_and(|at| at > Instant::now())
    }
}

/// The next facts; never returns if there is no receiver.
async fn next_facts(facts: &mut Option<mpsc::Receiver<Vec<Noted>>>) -> Option<Vec<Noted>> {
    match facts {
        Some(facts) => facts.recv().await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
