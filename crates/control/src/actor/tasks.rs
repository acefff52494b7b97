//! The tasks of an actor: the provider calls that the stage requires, one at a time.

use std::sync::Arc;
use std::time::Duration;

use carrel_failpoint::Failpoints;
use carrel_store::{EventDetails, EventType, Exec, ExecId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::edit::phase_details;
use super::pause::{PauseCauseRecord, PauseState};
use super::requests::provider_failed;
use super::restart::ResumePermit;
use super::services::ServiceReport;
use super::{Acceptance, Actor, ActorStopped, PROVIDER_RETRY, ProviderRetry, RestartState};
use crate::codes::{MATERIALIZE, error_code};
use crate::control::place;
use crate::failpoint::FailpointStep;
use crate::provider::{ExecStart, How, PauseCause, Place, ProviderError};
use crate::refusal::Refusal;
use crate::stage::{SandboxStage, StageInput, StageTransition, transition};

/// How many times an exec is passed to a sandbox that does not respond.
const EXEC_ATTEMPTS: u32 = 3;
/// The delay between those attempts.
const EXEC_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long to wait for the fact of an incarnation's end after it was stopped.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a task.
pub(super) enum TaskOutcome {
    Start(Result<(), ProviderError>),
    Adopt(Result<bool, ProviderError>),
    Stop(Result<(), ProviderError>),
    Forget(Result<(), ProviderError>),
    Remove(Result<(), ProviderError>),
    Exec(ExecId, Result<(), ProviderError>),
    Cancel(ExecId, Duration, Result<(), ProviderError>),
    /// A restart of the command, with its attempt number.
    Command(u32, Result<(), ProviderError>),
    Active(Instant, Result<bool, ProviderError>),
    Service(ServiceReport),
    Resume(ResumePermit),
    Pause(PauseResult),
    Nothing,
}

/// The result of a pause or an unpause, and the channel for its answer.
pub(super) struct PauseResult {
    incarnation: String,
    paused: bool,
    done: Result<(), ProviderError>,
    answer: oneshot::Sender<Result<Acceptance, Refusal>>,
}

// === impl Actor ===

impl Actor {
    fn place(&self) -> Place {
        place(&self.sandbox)
    }

    /// Starts the task that the stage requires.
    pub(super) async fn advance(&mut self) -> Result<(), ActorStopped> {
        if self.busy || self.retry.is_pending() {
            return Ok(());
        }
        if self.stage() == SandboxStage::Stopping && self.incarnation.stopped && self.incarnation.end.is_some() {
            self.record_exit().await?;
        }
        match self.stage() {
            SandboxStage::Creating | SandboxStage::Resuming => {
                if self.sandbox.last_sequence == 1 {
                    let mut edit = self.edit();
                    edit.emit(EventType::SandboxPreparing, edit.now(), phase_details(MATERIALIZE, ""));
                    self.persist(edit, FailpointStep::Preparing).await?;
                }
                match self.leftover.clone() {
                    Some(leftover) => self.spawn_forget(leftover),
                    None => self.spawn_start(),
                }
            }
            SandboxStage::Ready if !self.incarnation.runs && self.incarnation.end.is_none() => self.spawn_adopt(),
            SandboxStage::Stopping if !self.incarnation.stopped => self.spawn_stop(),
            SandboxStage::Stopped | SandboxStage::Failed | SandboxStage::Recoverable if !self.clean => {
                self.spawn_forget(self.place())
            }
            SandboxStage::Stopped => self.spawn_resume_if_due(),
            SandboxStage::Deleting => self.spawn_remove(),
            SandboxStage::Ready
            | SandboxStage::Stopping
            | SandboxStage::Failed
            | SandboxStage::Recoverable
            | SandboxStage::Deleted => {}
        }
        Ok(())
    }

    pub(super) async fn task_finished(&mut self, finished: TaskOutcome) -> Result<(), ActorStopped> {
        match finished {
            TaskOutcome::Start(started) => {
                self.busy = false;
                self.starting = None;
                self.restart = RestartState::Never;
                self.started(started).await
            }
            TaskOutcome::Adopt(adopted) => {
                self.busy = false;
                self.adopted(adopted).await
            }
            TaskOutcome::Stop(stopped) => {
                self.busy = false;
                self.stopped(stopped).await
            }
            TaskOutcome::Forget(forgotten) => {
                self.busy = false;
                if forgotten.is_ok() && self.leftover.take().is_none() {
                    self.clean = true;
                }
                self.update_retry(forgotten.is_ok());
                self.warn_if_failed("the leftovers of an incarnation could not be removed", forgotten.err().as_ref());
                Ok(())
            }
            TaskOutcome::Remove(removed) => {
                self.busy = false;
                self.removed(removed).await
            }
            TaskOutcome::Exec(exec, Err(error)) => self.exec_failed(&exec, &error).await,
            TaskOutcome::Exec(exec, Ok(())) => {
                // A cancel that arrived before the exec found nothing to kill.
                if self.execs.get(&exec).is_some_and(|exec| exec.cancelling) {
                    self.spawn_cancel(exec);
                }
                Ok(())
            }
            TaskOutcome::Cancel(exec, waited, Err(error)) => {
                tracing::warn!(sandbox = %self.sandbox.id, %exec, %error, "an exec could not be cancelled; retrying");
                // The cancel was accepted, so it is retried.
                if self.stage() == SandboxStage::Ready || self.execs.contains_key(&exec) {
                    self.spawn_cancel_in((waited * 2).clamp(PROVIDER_RETRY.0, PROVIDER_RETRY.1), exec);
                }
                Ok(())
            }
            TaskOutcome::Command(attempt, started) => {
                self.command_started(attempt, started);
                Ok(())
            }
            TaskOutcome::Service(report) => self.service_reported(report).await,
            TaskOutcome::Resume(permit) => {
                self.resume_after_boot(permit).await;
                Ok(())
            }
            TaskOutcome::Pause(done) => {
                self.pause_done(done);
                Ok(())
            }
            TaskOutcome::Active(since, active) => self.activity_checked(since, active).await,
            TaskOutcome::Cancel(_, _, Ok(())) | TaskOutcome::Nothing => Ok(()),
        }
    }

    async fn started(&mut self, started: Result<(), ProviderError>) -> Result<(), ActorStopped> {
        let input = if started.is_ok() { StageInput::Started } else { StageInput::StartFailed };
        let first = self.stage() == SandboxStage::Creating;
        let StageTransition::Enter(next, event) = transition(self.stage(), input) else { return Ok(()) };
        let mut edit = self.edit();
        match started {
            Ok(()) => {
                self.incarnation.runs = true;
                self.clean = false;
                self.facts = Some(self.shared.provider.watch(&self.place(), self.sandbox.journal));
                self.idle.since = Instant::now();
                edit.sandbox().active_at = edit.now();
                self.command.since = edit.now();
                edit.enter(next, event, EventDetails::None);
                self.persist(edit, FailpointStep::Ready).await?;
                self.start_services();
                Ok(())
            }
            Err(error) => {
                self.clean = false;
                let code = if first { error_code::CREATE_FAILED } else { error_code::RESUME_FAILED };
                edit.fail(next, error.code.unwrap_or(code), &error.message);
                self.persist(edit, FailpointStep::Failed).await
            }
        }
    }

    /// Handles the result of adopting a sandbox that ran before this daemon. Its facts continue where the last daemon
    /// stopped; one that is not running reports its end.
    async fn adopted(&mut self, adopted: Result<bool, ProviderError>) -> Result<(), ActorStopped> {
        self.warn_if_failed("a sandbox could not be adopted", adopted.as_ref().err());
        self.incarnation.runs = adopted.is_ok();
        if matches!(adopted, Ok(true)) {
            self.restart = RestartState::Never;
        }
        self.update_retry(adopted.is_ok());
        self.facts = Some(self.shared.provider.watch(&self.place(), self.sandbox.journal));
        if !matches!(adopted, Ok(true)) {
            return Ok(());
        }
        for exec in self.execs.values().map(Arc::clone).collect::<Vec<_>>() {
            // The last daemon may not have passed the exec to the sandbox. Passing it twice runs it once.
            self.spawn_exec(&exec);
            if exec.cancelling {
                self.spawn_cancel(exec.id.clone());
            }
        }
        self.restore_services().await;
        self.start_services();
        Ok(())
    }

    async fn stopped(&mut self, stopped: Result<(), ProviderError>) -> Result<(), ActorStopped> {
        self.drain_facts().await?;
        match stopped {
            Ok(()) => {
                self.incarnation.stopped = true;
                self.incarnation.settled_at = Some(Instant::now() + END_TIMEOUT);
                Ok(())
            }
            // The incarnation has ended anyway.
            Err(_) if self.incarnation.end.is_some() => {
                self.incarnation.stopped = true;
                Ok(())
            }
            Err(error) => {
                let StageTransition::Enter(next, _) = transition(self.stage(), StageInput::StopFailed) else {
                    return Ok(());
                };
                let mut edit = self.edit();
                self.end_execs(&mut edit);
                edit.fail(next, error.code.unwrap_or(error_code::STOP_FAILED), &error.message);
                self.persist(edit, FailpointStep::Failed).await
            }
        }
    }

    async fn removed(&mut self, removed: Result<(), ProviderError>) -> Result<(), ActorStopped> {
        // Facts that precede the removal are recorded before it.
        self.drain_facts().await?;
        let input = if removed.is_ok() { StageInput::Removed } else { StageInput::RemoveFailed };
        let StageTransition::Enter(next, event) = transition(self.stage(), input) else { return Ok(()) };
        let mut edit = self.edit();
        self.end_execs(&mut edit);
        match removed {
            Ok(()) => {
                self.facts = None;
                self.clean = true;
                let reason = self.sandbox.reason.clone();
                edit.enter_because(next, event, &reason);
                self.persist(edit, FailpointStep::Deleted).await
            }
            Err(error) => {
                self.clean = false;
                edit.fail(next, error.code.unwrap_or(error_code::DELETE_FAILED), &error.message);
                self.persist(edit, FailpointStep::Failed).await
            }
        }
    }

    /// Schedules a retry if the task of the stage failed.
    fn update_retry(&mut self, done: bool) {
        if done {
            self.retry = ProviderRetry::default();
        } else {
            self.retry.back_off();
        }
    }

    /// Fails an exec that could not be passed to the sandbox.
    async fn exec_failed(&mut self, id: &ExecId, error: &ProviderError) -> Result<(), ActorStopped> {
        let Some(exec) = self.execs.get(id).map(Arc::clone) else { return Ok(()) };
        // The sandbox may have received it nevertheless; it must not continue unnoticed.
        self.spawn_cancel(id.clone());
        self.idle.since = Instant::now();
        let mut edit = self.edit();
        edit.sandbox().active_at = edit.now();
        edit.end_exec(&exec, &How::NeverRan(126, error.message.clone()), edit.now());
        self.persist(edit, FailpointStep::ExecEnded).await
    }

    fn spawn_start(&mut self) {
        self.busy = true;
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        let starting = self.tasks.spawn(async move {
            FailpointStep::Start.begin();
            let mut started = provider.start(&place, &spec).await;
            if started.is_ok() && !spec.command.is_empty() {
                started = provider.command(&place, &spec, 0).await;
            }
            FailpointStep::Start.end();
            TaskOutcome::Start(started)
        });
        self.starting = Some(starting);
    }

    fn spawn_adopt(&mut self) {
        self.busy = true;
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        self.tasks.spawn(async move { TaskOutcome::Adopt(provider.adopt(&place, &spec).await) });
    }

    fn spawn_stop(&mut self) {
        if self.facts.is_none() && self.incarnation.end.is_none() {
            self.facts = Some(self.shared.provider.watch(&self.place(), self.sandbox.journal));
        }
        self.busy = true;
        let (provider, place, grace) = (Arc::clone(&self.shared.provider), self.place(), self.shared.settings().grace);
        self.tasks.spawn(async move {
            FailpointStep::Stop.begin();
            let stopped = provider.stop(&place, grace).await;
            FailpointStep::Stop.end();
            TaskOutcome::Stop(stopped)
        });
    }

    fn spawn_forget(&mut self, place: Place) {
        self.busy = true;
        let provider = Arc::clone(&self.shared.provider);
        self.tasks.spawn(async move {
            FailpointStep::Forget.begin();
            // A failed sandbox may still run, and so may the services of one that exited.
            let stopped = provider.stop(&place, Duration::ZERO).await;
            let forgotten = provider.forget(&place).await;
            FailpointStep::Forget.end();
            TaskOutcome::Forget(stopped.and(forgotten))
        });
    }

    fn spawn_remove(&mut self) {
        self.busy = true;
        let (provider, place) = (Arc::clone(&self.shared.provider), self.place());
        self.tasks.spawn(async move {
            FailpointStep::Remove.begin();
            let removed = provider.remove(&place).await;
            FailpointStep::Remove.end();
            TaskOutcome::Remove(removed)
        });
    }

    /// Passes an exec to the sandbox. It is idempotent.
    pub(super) fn spawn_exec(&mut self, exec: &Exec) {
        let mut env = self.spec.envs.clone();
        env.extend(exec.env.clone());
        let start = ExecStart {
            id: exec.id.clone(),
            command: exec.command.clone(),
            cwd: exec.cwd.clone(),
            env,
            // This program wrote the options, so they can be parsed.
            options: serde_json::from_str(&exec.options).unwrap_or_default(),
        };
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        self.tasks.spawn(async move {
            FailpointStep::ExecStart.begin();
            let mut accepted = provider.exec(&place, &spec, &start).await;
            for _ in 1..EXEC_ATTEMPTS {
                if accepted.is_ok() {
                    break;
                }
                tokio::time::sleep(EXEC_RETRY_DELAY).await;
                accepted = provider.exec(&place, &spec, &start).await;
            }
            FailpointStep::ExecStart.end();
            TaskOutcome::Exec(start.id, accepted)
        });
    }

    pub(super) fn spawn_cancel(&mut self, exec: ExecId) {
        self.spawn_cancel_in(Duration::ZERO, exec);
    }

    fn spawn_cancel_in(&mut self, delay: Duration, exec: ExecId) {
        let (provider, place) = (Arc::clone(&self.shared.provider), self.place());
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            FailpointStep::Cancel.begin();
            let cancelled = provider.cancel(&place, &exec).await;
            FailpointStep::Cancel.end();
            TaskOutcome::Cancel(exec, delay, cancelled)
        });
    }

    pub(super) fn spawn_command(&mut self, attempt: u32) {
        let (provider, place, spec) = (Arc::clone(&self.shared.provider), self.place(), Arc::clone(&self.spec));
        self.tasks.spawn(async move { TaskOutcome::Command(attempt, provider.command(&place, &spec, attempt).await) });
    }

    pub(super) fn spawn_activity_check(&mut self) {
        self.idle.checking = true;
        let (provider, place, since) = (Arc::clone(&self.shared.provider), self.place(), self.idle.since);
        self.tasks.spawn(async move { TaskOutcome::Active(since, provider.is_active(&place).await) });
    }

    pub(super) fn spawn_pause(&mut self, paused: bool, answer: oneshot::Sender<Result<Acceptance, Refusal>>) {
        let (provider, place) = (Arc::clone(&self.shared.provider), self.place());
        self.tasks.spawn(async move {
            let done = provider.pause(&place, paused).await;
            TaskOutcome::Pause(PauseResult { incarnation: place.incarnation, paused, done, answer })
        });
    }

    /// Answers a pause request. Later requests see the new state before the supervisor reports it.
    fn pause_done(&mut self, PauseResult { incarnation, paused, done, answer }: PauseResult) {
        if done.is_ok() && incarnation == self.sandbox.incarnation {
            let pause = PauseCauseRecord::new(PauseCause::User, String::new());
            self.pause = if paused { PauseState::Paused(pause) } else { PauseState::Unpaused };
        }
        let _left = answer.send(done.map(|()| Acceptance::Changed).map_err(|error| provider_failed(&error)));
    }

    fn warn_if_failed(&self, what: &'static str, error: Option<&ProviderError>) {
        if let Some(error) = error {
            tracing::warn!(sandbox = %self.sandbox.id, %error, "{what}");
        }
    }
}
