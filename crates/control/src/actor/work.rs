//! What is done for a sandbox, by its provider: what the stage demands, one thing at a time.

use std::sync::Arc;
use std::time::Duration;

use carrel_store::{Details, EventType, Exec, ExecId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::edit::phase;
use super::pause::{Pause, PauseState};
use super::requests::provider_failed;
use super::restart::Turn;
use super::services::Told;
use super::{Accepted, Actor, Again, Gone, LATER, Restart};
use crate::control::place;
use crate::failpoint::Step;
use crate::machine::{Input, Stage, Verdict, verdict};
use crate::provider::{ExecStart, How, PauseCause, Place, ProviderError};
use crate::refusal::Refusal;
use crate::words::{MATERIALIZE, error_code};

/// How often a command is given to a sandbox that does not answer.
const TRIES: u32 = 3;
/// How long to wait in between.
const BETWEEN: Duration = Duration::from_millis(100);
/// How long those that tell of an incarnation may take to tell its end, once nothing of it runs.
const SETTLED: Duration = Duration::from_secs(10);

/// What the provider has done.
pub(super) enum Finished {
    Start(Result<(), ProviderError>),
    Adopt(Result<bool, ProviderError>),
    Stop(Result<(), ProviderError>),
    Forget(Result<(), ProviderError>),
    Remove(Result<(), ProviderError>),
    Exec(ExecId, Result<(), ProviderError>),
    Cancel(ExecId, Duration, Result<(), ProviderError>),
    /// A restart of the command, and which one it was.
    Command(u32, Result<(), ProviderError>),
    Active(Instant, Result<bool, ProviderError>),
    Service(Told),
    Turn(Turn),
    Pause(PauseDone),
    Nothing,
}

/// What came of a pause, or of its end, and who waits for that.
pub(super) struct PauseDone {
    incarnation: String,
    paused: bool,
    done: Result<(), ProviderError>,
    answer: oneshot::Sender<Result<Accepted, Refusal>>,
}

// === impl Actor ===

impl Actor {
    fn place(&self) -> Place {
        place(&self.sandbox)
    }

    /// Sees that what the stage demands is being done.
    pub(super) async fn advance(&mut self) -> Result<(), Gone> {
        if self.busy || self.again.waits() {
            return Ok(());
        }
        if self.stage() == Stage::Stopping && self.machine.stopped && self.machine.over.is_some() {
            self.has_ended().await?;
        }
        match self.stage() {
            Stage::Creating | Stage::Resuming => {
                if self.sandbox.last_sequence == 1 {
                    let mut edit = self.edit();
                    edit.tell(EventType::SandboxPreparing, edit.now(), phase(MATERIALIZE, ""));
                    self.persist(edit, Step::Preparing).await?;
                }
                match self.left.clone() {
                    Some(left) => self.spawn_forget(left),
                    None => self.spawn_start(),
                }
            }
            Stage::Ready if !self.machine.runs && self.machine.over.is_none() => self.spawn_adopt(),
            Stage::Stopping if !self.machine.stopped => self.spawn_stop(),
            Stage::Stopped | Stage::Failed | Stage::Recoverable if !self.clean => self.spawn_forget(self.place()),
            Stage::Stopped => self.spawn_turn_if_due(),
            Stage::Deleting => self.spawn_remove(),
            Stage::Ready | Stage::Stopping | Stage::Failed | Stage::Recoverable | Stage::Deleted => {}
        }
        Ok(())
    }

    pub(super) async fn finished(&mut self, finished: Finished) -> Result<(), Gone> {
        match finished {
            Finished::Start(started) => {
                self.busy = false;
                self.starting = None;
                self.restart = Restart::Never;
                self.started(started).await
            }
            Finished::Adopt(adopted) => {
                self.busy = false;
                self.adopted(adopted).await
            }
            Finished::Stop(stopped) => {
                self.busy = false;
                self.stopped(stopped).await
            }
            Finished::Forget(forgotten) => {
                self.busy = false;
                if forgotten.is_ok() && self.left.take().is_none() {
                    self.clean = true;
                }
                self.try_again(forgotten.is_ok());
                self.note("what is left of a start could not be removed", forgotten.err().as_ref());
                Ok(())
            }
            Finished::Remove(removed) => {
                self.busy = false;
                self.removed(removed).await
            }
            Finished::Exec(exec, Err(error)) => self.exec_failed(&exec, &error).await,
            Finished::Exec(exec, Ok(())) => {
                // A cancel that was faster than the command found nothing to end.
                if self.execs.get(&exec).is_some_and(|exec| exec.cancelling) {
                    self.spawn_cancel(exec);
                }
                Ok(())
            }
            Finished::Cancel(exec, waited, Err(error)) => {
                tracing::warn!(sandbox = %self.sandbox.id, %exec, %error, "an exec could not be ended");
                // It was accepted that it ends, or told that it has.
                if self.stage() == Stage::Ready || self.execs.contains_key(&exec) {
                    self.spawn_cancel_in((waited * 2).clamp(LATER.0, LATER.1), exec);
                }
                Ok(())
            }
            Finished::Command(attempt, begun) => {
                self.command_begun(attempt, begun);
                Ok(())
            }
            Finished::Service(told) => self.service_told(told).await,
            Finished::Turn(turn) => {
                self.restart(turn).await;
                Ok(())
            }
            Finished::Pause(done) => {
                self.pause_done(done);
                Ok(())
            }
            Finished::Active(since, active) => self.is_active(since, active).await,
            Finished::Cancel(_, _, Ok(())) | Finished::Nothing => Ok(()),
        }
    }

    async fn started(&mut self, started: Result<(), ProviderError>) -> Result<(), Gone> {
        let input = if started.is_ok() { Input::Started } else { Input::StartFailed };
        let first = self.stage() == Stage::Creating;
        let Verdict::Go(next, event) = verdict(self.stage(), input) else { return Ok(()) };
        let mut edit = self.edit();
        match started {
            Ok(()) => {
                self.machine.runs = true;
                self.clean = false;
                self.facts = Some(self.shared.provider.watch(&self.place(), self.sandbox.journal));
                self.idle.since = Instant::now();
                edit.sandbox().active_at = edit.now();
                self.command.since = edit.now();
                edit.go(next, event, Details::None);
                self.persist(edit, Step::Ready).await?;
                self.begin_services();
                Ok(())
            }
            Err(error) => {
                self.clean = false;
                let code = if first { error_code::CREATE_FAILED } else { error_code::RESUME_FAILED };
                edit.fail(next, error.code.unwrap_or(code), &error.message);
                self.persist(edit, Step::Failed).await
            }
        }
    }

    /// It was running before this daemon, and is heard from where the last one stopped; or it is not, and tells its end.
    async fn adopted(&mut self, adopted: Result<bool, ProviderError>) -> Result<(), Gone> {
        self.note("a sandbox could not be taken over", adopted.as_ref().err());
        self.machine.runs = adopted.is_ok();
        if matches!(adopted, Ok(true)) {
            self.restart = Restart::Never;
        }
        self.try_again(adopted.is_ok());
        self.facts = Some(self.shared.provider.watch(&self.place(), self.sandbox.journal));
        if !matches!(adopted, Ok(true)) {
            return Ok(());
        }
        for exec in self.execs.values().map(Arc::clone).collect::<Vec<_>>() {
            // It may not have been given to the sandbox. If it was, nothing happens twice.
            self.spawn_exec(&exec);
            if exec.cancelling {
                self.spawn_cancel(exec.id.clone());
            }
        }
        self.recall_services().await;
        self.begin_services();
        Ok(())
    }

    async fn stopped(&mut self, stopped: Result<(), ProviderError>) -> Result<(), Gone> {
        self.drain().await?;
        match stopped {
            Ok(()) => {
                self.machine.stopped = true;
                self.machine.settled_at = Some(Instant::now() + SETTLED);
                Ok(())
            }
            // It is over anyway.
            Err(_) if self.machine.over.is_some() => {
                self.machine.stopped = true;
                Ok(())
            }
            Err(error) => {
                let Verdict::Go(next, _) = verdict(self.stage(), Input::StopFailed) else { return Ok(()) };
                let mut edit = self.edit();
                self.end_execs(&mut edit);
                edit.fail(next, error.code.unwrap_or(error_code::STOP_FAILED), &error.message);
                self.persist(edit, Step::Failed).await
            }
        }
    }

    async fn removed(&mut self, removed: Result<(), ProviderError>) -> Result<(), Gone> {
        // What is told of its last moments belongs before its end.
        self.drain().await?;
        let input = if removed.is_ok() { Input::Removed } else { Input::RemoveFailed };
        let Verdict::Go(next, event) = verdict(self.stage(), input) else { return Ok(()) };
        let mut edit = self.edit();
        self.end_execs(&mut edit);
        match removed {
            Ok(()) => {
                self.facts = None;
                self.clean = true;
                let reason = self.sandbox.reason.clone();
                edit.go_because(next, event, &reason);
                self.persist(edit, Step::Deleted).await
            }
            Err(error) => {
                self.clean = false;
                edit.fail(next, error.code.unwrap_or(error_code::DELETE_FAILED), &error.message);
                self.persist(edit, Step::Failed).await
            }
        }
    }

    /// Waits before the stage is looked at again, if what it demands was not done.
    fn try_again(&mut self, done: bool) {
        if done {
            self.again = Again::default();
        } else {
            self.again.later();
        }
    }

    /// A command could not be given to the sandbox.
    async fn exec_failed(&mut self, id: &ExecId, error: &ProviderError) -> Result<(), Gone> {
        let Some(exec) = self.execs.get(id).map(Arc::clone) else { return Ok(()) };
        // If it was given all the same, it is not to go on behind our back.
        self.spawn_cancel(id.clone());
        self.idle.since = Instant::now();
        let mut edit = self.edit();
        edit.sandbox().active_at = edit.now();
        edit.end_exec(&exec, &How::NeverRan(126, error.message.clone()), edit.now());
        self.persist(edit, Step::ExecEnded).await
    }

    fn spawn_start(&mut self) {
        self.busy = true;
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        let starting = self.tasks.spawn(async move {
            Step::Start.begin();
            let mut started = provider.start(&place, &spec).await;
            if started.is_ok() && !spec.command.is_empty() {
                started = provider.command(&place, &spec, 0).await;
            }
            Step::Start.end();
            Finished::Start(started)
        });
        self.starting = Some(starting);
    }

    fn spawn_adopt(&mut self) {
        self.busy = true;
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        self.tasks.spawn(async move { Finished::Adopt(provider.adopt(&place, &spec).await) });
    }

    fn spawn_stop(&mut self) {
        if self.facts.is_none() && self.machine.over.is_none() {
            self.facts = Some(self.shared.provider.watch(&self.place(), self.sandbox.journal));
        }
        self.busy = true;
        let (provider, place, grace) = (Arc::clone(&self.shared.provider), self.place(), self.shared.settings().grace);
        self.tasks.spawn(async move {
            Step::Stop.begin();
            let stopped = provider.stop(&place, grace).await;
            Step::Stop.end();
            Finished::Stop(stopped)
        });
    }

    fn spawn_forget(&mut self, place: Place) {
        self.busy = true;
        let provider = Arc::clone(&self.shared.provider);
        self.tasks.spawn(async move {
            Step::Forget.begin();
            // One that failed may still run, and so may what is beside one that ended by itself.
            let stopped = provider.stop(&place, Duration::ZERO).await;
            let forgotten = provider.forget(&place).await;
            Step::Forget.end();
            Finished::Forget(stopped.and(forgotten))
        });
    }

    fn spawn_remove(&mut self) {
        self.busy = true;
        let (provider, place) = (Arc::clone(&self.shared.provider), self.place());
        self.tasks.spawn(async move {
            Step::Remove.begin();
            let removed = provider.remove(&place).await;
            Step::Remove.end();
            Finished::Remove(removed)
        });
    }

    /// Gives a command to the sandbox. It is run once, however often it is given.
    pub(super) fn spawn_exec(&mut self, exec: &Exec) {
        let mut env = self.spec.envs.clone();
        env.extend(exec.env.clone());
        let start = ExecStart {
            id: exec.id.clone(),
            command: exec.command.clone(),
            cwd: exec.cwd.clone(),
            env,
            // What was written by this program is understood by it.
            options: serde_json::from_str(&exec.options).unwrap_or_default(),
        };
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        self.tasks.spawn(async move {
            Step::ExecStart.begin();
            let mut given = provider.exec(&place, &spec, &start).await;
            for _ in 1..TRIES {
                if given.is_ok() {
                    break;
                }
                tokio::time::sleep(BETWEEN).await;
                given = provider.exec(&place, &spec, &start).await;
            }
            Step::ExecStart.end();
            Finished::Exec(start.id, given)
        });
    }

    pub(super) fn spawn_cancel(&mut self, exec: ExecId) {
        self.spawn_cancel_in(Duration::ZERO, exec);
    }

    fn spawn_cancel_in(&mut self, pause: Duration, exec: ExecId) {
        let (provider, place) = (Arc::clone(&self.shared.provider), self.place());
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            Step::Cancel.begin();
            let cancelled = provider.cancel(&place, &exec).await;
            Step::Cancel.end();
            Finished::Cancel(exec, pause, cancelled)
        });
    }

    pub(super) fn spawn_command(&mut self, attempt: u32) {
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        self.tasks.spawn(async move { Finished::Command(attempt, provider.command(&place, &spec, attempt).await) });
    }

    pub(super) fn spawn_active(&mut self) {
        self.idle.asking = true;
        let (provider, place, since) = (Arc::clone(&self.shared.provider), self.place(), self.idle.since);
        self.tasks.spawn(async move { Finished::Active(since, provider.is_active(&place).await) });
    }

    pub(super) fn spawn_pause(&mut self, paused: bool, answer: oneshot::Sender<Result<Accepted, Refusal>>) {
        let (provider, place) = (Arc::clone(&self.shared.provider), self.place());
        self.tasks.spawn(async move {
            let done = provider.pause(&place, paused).await;
            Finished::Pause(PauseDone { incarnation: place.incarnation, paused, done, answer })
        });
    }

    /// Answers whoever asked for a pause. From then on they find it so, before its supervisor has reported it.
    fn pause_done(&mut self, PauseDone { incarnation, paused, done, answer }: PauseDone) {
        if done.is_ok() && incarnation == self.sandbox.incarnation {
            let pause = Pause::new(PauseCause::User, String::new());
            self.pause = if paused { PauseState::Paused(pause) } else { PauseState::Unpaused };
        }
        let _left = answer.send(done.map(|()| Accepted::Changed).map_err(|error| provider_failed(&error)));
    }

    fn note(&self, what: &'static str, error: Option<&ProviderError>) {
        if let Some(error) = error {
            tracing::warn!(sandbox = %self.sandbox.id, %error, "{what}");
        }
    }
}
