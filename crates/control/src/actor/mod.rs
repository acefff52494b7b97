//! Whoever has one sandbox: hears what is asked and what happens, one thing at a time, and sees that the rest is done.

mod deleted;
mod edit;
mod facts;
mod pause;
mod requests;
mod restart;
mod services;
mod timers;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrel_store::{EventType, Exec, ExecChange, ExecId, ExecState, Namespace, Sandbox, StoreError, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use self::edit::Edit;
pub(crate) use self::edit::phase;
use self::pause::PauseState;
use self::work::Finished;
use crate::control::{ExecRequest, Shared, commit_failed, store_failed};
use crate::failpoint::Step;
use crate::machine::Stage;
use crate::provider::{EndCause, Noted, Place};
use crate::refusal::Refusal;
use crate::spec::{RestartPolicy, Spec};

/// How long to wait before something is written again that could not be, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long to wait before a provider is asked again, at first and at most.
const LATER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Something that is asked of a sandbox, and where the answer goes.
pub(crate) struct Message {
    pub(crate) request: Request,
    pub(crate) answer: oneshot::Sender<Result<Accepted, Refusal>>,
}

/// What is asked of a sandbox.
pub(crate) enum Request {
    /// With the reason that its events carry.
    Stop(&'static str),
    Resume,
    Delete,
    /// With the namespace of its id.
    Exec(Box<ExecRequest>, Namespace),
    Cancel(ExecId),
    Pause(bool),
    SetIdle(Option<Duration>),
}

/// Where a daemon has a sandbox from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was there when the daemon began.
    Store,
    /// A client has asked this daemon for it.
    Request,
}

/// What became of it.
pub(crate) enum Accepted {
    /// It is written down.
    Changed,
    /// It was so already.
    Already,
    /// A command is written down.
    Exec(Arc<Exec>),
}

/// Whoever has one sandbox.
pub(crate) struct Actor {
    shared: Arc<Shared>,
    /// As the store has it.
    sandbox: Arc<Sandbox>,
    spec: Arc<Spec>,
    messages: mpsc::Receiver<Message>,
    /// Commands that have not ended.
    execs: BTreeMap<ExecId, Arc<Exec>>,
    /// What the provider is at.
    tasks: JoinSet<Finished>,
    /// Whether it is at something that changes the stage: one such thing at a time.
    busy: bool,
    /// What happens to this incarnation.
    facts: Option<mpsc::Receiver<Vec<Noted>>>,
    machine: Machine,
    /// The start that is under way.
    starting: Option<AbortHandle>,
    /// Whether nothing but the disk is left of this incarnation.
    clean: bool,
    /// An earlier incarnation of which something is left.
    left: Option<Place>,
    again: Again,
    command: Command,
    /// What was last told of each service of this incarnation.
    services: BTreeMap<String, EventType>,
    idle: Idle,
    /// When something is tried again that time demanded and that failed.
    not_before: Option<Instant>,
    restart: Restart,
    pause: PauseState,
    /// Pauses up to then are in the log already, though they may be heard again.
    pause_told_until: Option<Timestamp>,
}

/// Whether the sandbox is resumed without a request, because the host stopped it and its restart policy says so.
enum Restart {
    /// It is not.
    Never,
    /// It is, once it is found to be stopped and so much time has passed.
    Due { after: Duration },
    /// It waits for its turn among those that are resumed.
    Waiting { after: Duration },
    /// It has its turn until it runs.
    Running { _turn: OwnedSemaphorePermit },
}

/// What is known of the incarnation, since this daemon began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Machine {
    /// Whether it was started or taken over.
    runs: bool,
    /// Whether the provider has ended it.
    stopped: bool,
    /// When that it has ended is believed although nobody told.
    settled_at: Option<Instant>,
    /// How it ended, once nothing more is told of it.
    over: Option<Over>,
}

/// How an incarnation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Over {
    cause: EndCause,
    message: String,
}

/// What the sandbox runs by itself.
#[derive(Clone, Debug, Default)]
struct Command {
    /// When it last began, or ended.
    since: Timestamp,
    /// The last end that was heard: it may be told again.
    heard: u64,
    /// How often in a row it ended soon.
    soon: u32,
    /// How it ended last.
    last: String,
    /// Whether its program was not there when it was first started.
    missing: bool,
    /// The fact of its end, until it runs again: it is heard again by the next daemon.
    ended: Option<u64>,
    /// When it is to run again.
    again_at: Option<Instant>,
}

/// When the provider is asked again for something that it could not do.
#[derive(Clone, Copy, Debug, Default)]
struct Again {
    at: Option<Instant>,
    pause: Duration,
}

/// How long the sandbox has done nothing.
#[derive(Clone, Copy, Debug)]
struct Idle {
    since: Instant,
    /// Whether somebody is being asked whether it is used.
    asking: bool,
}

/// The sandbox is no longer this actor's.
struct Gone;

/// What an actor hears.
enum Heard {
    Message(Option<Message>),
    Finished(Finished),
    Fact(Option<Vec<Noted>>),
    Time,
}

// === impl Actor ===

impl Actor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        sandbox: Arc<Sandbox>,
        spec: Arc<Spec>,
        messages: mpsc::Receiver<Message>,
        origin: Origin,
    ) -> Self {
        let execs = shared.store.running_execs(Some(&sandbox.id));
        let execs = execs.into_iter().map(|(exec, _)| (exec.id.clone(), exec)).collect();
        let now = Instant::now();
        // It was idle while nobody looked after it as well, but no longer than the clock can be believed.
        let since = now.checked_sub(shared.settings().clock.since(sandbox.active_at)).unwrap_or(now);
        let command = Command { since: sandbox.state_changed_at, ..Command::default() };
        let restart = match (origin, spec.restart) {
            (Origin::Store, RestartPolicy::OnBoot) => Restart::Due { after: Duration::ZERO },
            (Origin::Store | Origin::Request, _) => Restart::Never,
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
            machine: Machine::default(),
            starting: None,
            clean: false,
            left: None,
            again: Again::default(),
            command,
            services: BTreeMap::new(),
            idle: Idle { since, asking: false },
            not_before: None,
            restart,
            pause: if origin == Origin::Store { PauseState::Recorded } else { PauseState::Unpaused },
            pause_told_until: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while let Ok(true) = self.turn().await {}
        self.shared.leave(&self.sandbox.id);
        if self.stage() == Stage::Deleted {
            self.shared.note_deleted(&self.sandbox);
            // Whoever asked before it was gone is answered as whoever asks from now on.
            self.messages.close();
            while let Some(Message { request, answer }) = self.messages.recv().await {
                let _left = answer.send(self.shared.answer_for_deleted(&self.sandbox, request).await);
            }
        }
    }

    /// Sees that what is to be done is being done, then hears one thing. Says whether there is more to come.
    async fn turn(&mut self) -> Result<bool, Gone> {
        if self.stage() == Stage::Deleted {
            return Ok(false);
        }
        self.advance().await?;
        let mut settings = self.shared.settings.subscribe();
        let deadline = self.deadline();
        let heard = tokio::select! {
            // What is due depends on them.
            Ok(()) = settings.changed() => return Ok(true),
            message = self.messages.recv() => Heard::Message(message),
            Some(finished) = self.tasks.join_next(), if !self.tasks.is_empty() => match finished {
                Ok(finished) => Heard::Finished(finished),
                // A start that was given up. What it was at is undone, or removed by what follows.
                Err(error) if error.is_cancelled() => {
                    self.busy = false;
                    return Ok(true);
                }
                Err(panic) => {
                    tracing::error!(sandbox = %self.sandbox.id, %panic, "the provider broke");
                    return Err(Gone);
                }
            },
            facts = next_facts(&mut self.facts) => Heard::Fact(facts),
            () = until(deadline) => Heard::Time,
        };
        match heard {
            Heard::Message(None) => return Ok(false),
            Heard::Message(Some(message)) => self.answer(message).await?,
            Heard::Finished(finished) => self.finished(finished).await?,
            Heard::Fact(fact) => self.hear(fact).await?,
            Heard::Time => self.time().await?,
        }
        Ok(true)
    }

    fn stage(&self) -> Stage {
        Stage::of(&self.sandbox)
    }

    fn edit(&self) -> Edit {
        Edit::new(&self.sandbox, self.shared.settings().clock.now())
    }

    /// Writes something down that was asked for, or refuses it.
    async fn accept(&mut self, edit: Edit, step: Step) -> Result<(), Refusal> {
        step.begin();
        self.commit(edit).await.map_err(|error| commit_failed(&error))?;
        step.end();
        Ok(())
    }

    /// Writes something down that has happened, however long that takes.
    async fn persist(&mut self, edit: Edit, step: Step) -> Result<(), Gone> {
        let mut pause = AGAIN.0;
        loop {
            step.begin();
            match self.commit(edit.clone()).await {
                Ok(()) => {
                    step.end();
                    return Ok(());
                }
                Err(error @ (StoreError::Database(_) | StoreError::Full)) => {
                    tracing::error!(sandbox = %self.sandbox.id, %error, "what happened cannot be written down");
                }
                Err(error) => {
                    // Another daemon has it, or this one is going.
                    tracing::warn!(sandbox = %self.sandbox.id, %error, "the sandbox is left");
                    return Err(Gone);
                }
            }
            // Nothing can be accepted meanwhile either.
            let again = Instant::now() + pause;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(again) => break,
                    message = self.messages.recv() => match message {
                        Some(message) => {
                            let refusal = store_failed(&"the last thing that happened is still to be written down");
                            let _left = message.answer.send(Err(refusal));
                        }
                        None => return Err(Gone),
                    },
                }
            }
            pause = (pause * 2).min(AGAIN.1);
        }
    }

    async fn commit(&mut self, edit: Edit) -> Result<(), StoreError> {
        let (execs, stage) = (edit.change.execs.clone(), self.stage());
        let committed = self.shared.store.commit(edit.change).await?;
        self.sandbox = committed.sandbox;
        if self.stage() != stage {
            self.again = Again::default();
        }
        for change in execs {
            let (ExecChange::New(exec) | ExecChange::Known(exec)) = change;
            match exec.state {
                ExecState::Running => self.execs.insert(exec.id.clone(), Arc::new(exec)),
                ExecState::Finished | ExecState::Failed | ExecState::Cancelled => self.execs.remove(&exec.id),
            };
        }
        if !self.stage().takes_room() {
            self.shared.admission.give_back(&self.sandbox.id);
        }
        Ok(())
    }
}

// === impl Again ===

impl Again {
    /// Later, and each time later than before.
    fn later(&mut self) {
        self.pause = (self.pause * 2).clamp(LATER.0, LATER.1);
        self.at = Some(Instant::now() + self.pause);
    }

    /// Whether it is still to be waited for.
    fn waits(&self) -> bool {
        self.at.is_some_and(|at| at > Instant::now())
    }
}

/// The next facts, if somebody tells any.
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
