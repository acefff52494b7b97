//! Handles the facts that a provider reports about a sandbox.

use std::time::Duration;

use carrel_store::Timestamp;
use tokio::time::Instant;

use super::edit::SandboxEdit;
use super::pause::PauseCauseRecord;
use super::{Actor, ActorStopped, CommandState, IncarnationEnd};
use crate::codes::{cause, error_code};
use crate::control::place;
use crate::failpoint::FailpointStep;
use crate::provider::{EndCause, Fact, How, Noted, ProviderError};
use crate::stage::{SandboxStage, StageInput, StageTransition, transition};

/// How many facts are committed together at most.
const MAX_BATCH: usize = 256;
/// A command that runs for at least this long has started successfully.
const HEALTHY_RUN: Duration = Duration::from_secs(10);
/// How many early exits in a row are followed by a restart.
const MAX_EARLY_EXITS: u32 = 5;
/// The exit code for a program that does not exist.
const NOT_FOUND: i32 = 127;
/// The delay before the first restart of the command; it doubles with each early exit.
const RESTART_DELAY: Duration = Duration::from_millis(100);

/// What happens to a sandbox that exited.
enum ExitOutcome {
    /// It stops and can be resumed.
    Stop,
    /// It fails with this message, because there is no disk to resume from.
    Fail(String),
}

// === impl Actor ===

impl Actor {
    /// Handles facts together with those that are already queued. `None` means that the provider reports no more.
    pub(super) async fn handle_facts(&mut self, first: Option<Vec<Noted>>) -> Result<(), ActorStopped> {
        let Some(mut noted) = first else {
            self.facts = None;
            // The journal of a supervisor is not fsynced, so a power loss may lose its end.
            let is_before_boot = self.shared.settings().clock.is_before_boot(self.sandbox.state_changed_at);
            let (cause, message) = if is_before_boot {
                (EndCause::HostRestarted, "the host restarted while it was running")
            } else {
                (EndCause::SupervisorLost, "its supervisor exited without recording an exit status")
            };
            return self.incarnation_ended(IncarnationEnd { cause, message: message.to_owned() }).await;
        };
        while noted.len() < MAX_BATCH
            && let Some(next) = self.facts.as_mut().and_then(|facts| facts.try_recv().ok())
        {
            noted.extend(next);
        }
        let end = noted.iter().find_map(|noted| match &noted.fact {
            Fact::Ended { cause, message } => Some(IncarnationEnd { cause: *cause, message: message.clone() }),
            _ => None,
        });
        if noted.iter().any(|noted| matches!(noted.fact, Fact::Paused { .. } | Fact::Unpaused)) {
            self.restore_pause().await;
        }
        let (mut edit, is_ready) = (self.edit(), self.stage() == SandboxStage::Ready);
        // The stop event precedes the end events of the execs, in the same commit.
        let exit = match &end {
            Some(end) if is_ready => Some(self.begin_exit(&mut edit, end).await),
            _ => None,
        };
        for Noted { sequence, at, fact } in noted {
            // The end of the sandbox is recorded by its change of stage, and is replayed until that is committed.
            if !matches!(fact, Fact::Ended { .. }) {
                edit.sandbox().journal = edit.sandbox().journal.max(sequence);
            }
            match fact {
                // The end of the sandbox, which follows, reports this one.
                Fact::ExecEnded { how: How::SandboxEnded, .. } if is_ready && end.is_none() => {}
                Fact::ExecEnded { exec, how } => {
                    // After a crash, the end of an exec is replayed.
                    if let Some(exec) = self.execs.get(&exec).filter(|exec| !edit.records_end_of(exec)) {
                        edit.end_exec(exec, &how, at);
                        self.idle.since = Instant::now();
                        edit.sandbox().active_at = edit.now();
                    }
                }
                Fact::CommandEnded { attempt, how } => self.command_ended(sequence, at, attempt, &how),
                Fact::Paused { cause, message } => {
                    self.pause_changed(
                        &mut edit,
                        at,
                        Some(PauseCauseRecord::new(cause, message)),
                        is_ready && end.is_none(),
                    );
                }
                Fact::Unpaused => self.pause_changed(&mut edit, at, None, is_ready && end.is_none()),
                Fact::Ended { .. } | Fact::OutOfMemory | Fact::Other => {}
            }
        }
        if end.is_some() {
            self.facts = None;
            self.incarnation.end.clone_from(&end);
        }
        if let (Some(exit), Some(end)) = (exit, &end) {
            return self.finish_exit(edit, exit, end).await;
        }
        if let Some(ended) = self.command.pending_exit {
            // Until the command runs again, the next daemon must see its exit too.
            let journal = &mut edit.sandbox().journal;
            *journal = (*journal).min(ended.saturating_sub(1));
        }
        if edit.has_events() {
            self.persist(edit, FailpointStep::ExecEnded).await?;
        }
        if let Some(message) = self.command_failure() {
            return self.crashed(&message).await;
        }
        match end {
            Some(end) => self.incarnation_ended(end).await,
            None => Ok(()),
        }
    }

    /// Handles all queued facts.
    pub(super) async fn drain_facts(&mut self) -> Result<(), ActorStopped> {
        while let Some(noted) = self.facts.as_mut().and_then(|facts| facts.try_recv().ok()) {
            self.handle_facts(Some(noted)).await?;
        }
        Ok(())
    }

    /// Handles the end of this incarnation: nothing of it runs, and no more facts follow.
    pub(super) async fn incarnation_ended(&mut self, end: IncarnationEnd) -> Result<(), ActorStopped> {
        self.incarnation.end = Some(end);
        match self.stage() {
            SandboxStage::Ready => self.record_exit().await,
            // In other stages, the task that stops or removes the sandbox completes the transition.
            SandboxStage::Stopping if self.incarnation.stopped => self.record_exit().await,
            _ => Ok(()),
        }
    }

    /// Records the end of an incarnation whose sandbox was ready or stopping.
    pub(super) async fn record_exit(&mut self) -> Result<(), ActorStopped> {
        let Some(end) = self.incarnation.end.clone() else { return Ok(()) };
        let mut edit = self.edit();
        let exit = match self.stage() {
            SandboxStage::Ready => self.begin_exit(&mut edit, &end).await,
            _ => ExitOutcome::Stop,
        };
        self.finish_exit(edit, exit, &end).await
    }

    /// Starts the transition of a sandbox that exited although the daemon did not stop it. It stops if there is a disk
    /// to resume from.
    async fn begin_exit(&self, edit: &mut SandboxEdit, end: &IncarnationEnd) -> ExitOutcome {
        let lost = match self.shared.provider.has_disk(&place(&self.sandbox)).await {
            Ok(true) => None,
            Ok(false) => Some(format!("{}; its disk is missing", end.message)),
            Err(error) => Some(format!("{}; its disk cannot be read: {error}", end.message)),
        };
        if let Some(message) = lost {
            return ExitOutcome::Fail(message);
        }
        if let StageTransition::Enter(stopping, event) = transition(self.stage(), StageInput::Exited) {
            edit.enter_because(stopping, event, end.cause.reason());
        }
        ExitOutcome::Stop
    }

    /// Commits that the sandbox has stopped or failed, after the ends of its execs.
    async fn finish_exit(
        &mut self,
        mut edit: SandboxEdit,
        exit: ExitOutcome,
        end: &IncarnationEnd,
    ) -> Result<(), ActorStopped> {
        self.end_execs(&mut edit);
        let input = match exit {
            ExitOutcome::Stop => StageInput::Ended,
            ExitOutcome::Fail(_) => StageInput::Lost,
        };
        let StageTransition::Enter(next, _) = transition(SandboxStage::of(edit.sandbox()), input) else {
            return Ok(());
        };
        self.clean = false;
        match exit {
            ExitOutcome::Fail(message) => {
                edit.fail(next, end.cause.error_code().unwrap_or(error_code::NOT_RUNNING), &message);
                self.persist(edit, FailpointStep::Failed).await
            }
            ExitOutcome::Stop => {
                // A sandbox that was asked to stop has no error, however it ended.
                let is_cause = edit.sandbox().reason == end.cause.reason();
                let code = end.cause.error_code().filter(|_| is_cause);
                edit.stop(next, code.map(|code| (code, end.message.as_str())));
                self.persist(edit, FailpointStep::Stopped).await
            }
        }
    }

    /// Ends the execs whose end was not reported.
    pub(super) fn end_execs(&self, edit: &mut SandboxEdit) {
        for exec in self.execs.values() {
            if !edit.records_end_of(exec) {
                edit.end_exec(exec, &How::SandboxEnded, edit.now());
            }
        }
    }

    /// Schedules a restart of the sandbox's command after its exit, with exponential backoff.
    fn command_ended(&mut self, sequence: u64, at: Timestamp, attempt: u32, how: &How) {
        if self.stage() != SandboxStage::Ready || sequence <= self.command.last_exit {
            return;
        }
        tracing::info!(sandbox = %self.sandbox.id, ?how, "the command of the sandbox exited");
        // Uses the journal's timestamps, because a new daemon may replay an exit of long ago.
        let ran = at.0.saturating_sub(self.command.since.0);
        let is_early = u64::try_from(ran).map_or(true, |ran| Duration::from_nanos(ran) < HEALTHY_RUN);
        self.command.early_exits = if is_early { self.command.early_exits + 1 } else { 0 };
        (self.command.since, self.command.last_exit) = (at, sequence);
        self.command.pending_exit = Some(sequence);
        let restarts = self.command.early_exits.clamp(1, MAX_EARLY_EXITS) - 1;
        self.command.restart_at = Some(Instant::now() + RESTART_DELAY * 2u32.saturating_pow(restarts));
        self.command.last_status = match how {
            How::Exited(code) => format!("exit code {code}"),
            How::Signalled(signal) => format!("signal {signal}"),
            How::OutOfMemory => "out of memory".to_owned(),
            How::NeverRan(_, why) => why.clone(),
            How::TimedOut | How::Cancelled | How::SandboxEnded => "killed".to_owned(),
        };
        // A program that is missing at the first start does not appear later.
        self.command.missing = attempt == 0 && matches!(how, How::NeverRan(NOT_FOUND, _));
    }

    /// Why the command is not restarted any more; `None` if it is.
    fn command_failure(&self) -> Option<String> {
        let CommandState { early_exits, missing, last_status, .. } = &self.command;
        if *missing {
            return Some(format!("the command cannot be started: {last_status}"));
        }
        let within = HEALTHY_RUN.as_secs();
        (*early_exits > MAX_EARLY_EXITS).then(|| {
            format!("the command exited {early_exits} times in a row within {within} s of its start: {last_status}")
        })
    }

    pub(super) fn command_started(&mut self, attempt: u32, started: Result<(), ProviderError>) {
        match started {
            // It may have exited again before its start was reported: that is another exit.
            Ok(()) => {
                self.command.pending_exit.take_if(|exit| *exit == u64::from(attempt));
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "the command of the sandbox could not be restarted");
                self.command.restart_at = Some(Instant::now() + HEALTHY_RUN);
            }
        }
    }

    async fn crashed(&mut self, message: &str) -> Result<(), ActorStopped> {
        let StageTransition::Enter(next, _) = transition(self.stage(), StageInput::CrashLoop) else { return Ok(()) };
        let mut edit = self.edit();
        self.end_execs(&mut edit);
        self.clean = false;
        self.command.restart_at = None;
        edit.fail(next, error_code::CRASH_LOOP, message);
        self.persist(edit, FailpointStep::Failed).await
    }

    /// Handles the provider's answer whether an apparently idle sandbox is in use.
    pub(super) async fn activity_checked(
        &mut self,
        since: Instant,
        active: Result<bool, ProviderError>,
    ) -> Result<(), ActorStopped> {
        self.idle.checking = false;
        if since != self.idle.since || !self.execs.is_empty() {
            return Ok(());
        }
        // If the provider cannot answer, the end of the sandbox is reported soon.
        if !matches!(active, Ok(false)) {
            self.idle.since = Instant::now();
            return Ok(());
        }
        let StageTransition::Enter(next, event) = transition(self.stage(), StageInput::Idle) else { return Ok(()) };
        let mut edit = self.edit().synced();
        edit.enter_because(next, event, cause::IDLE);
        self.persist(edit, FailpointStep::StopAccepted).await
    }
}

/// The end of an incarnation that no fact reported.
pub(super) fn unreported_end() -> IncarnationEnd {
    IncarnationEnd { cause: EndCause::Stopped, message: "it was stopped".to_owned() }
}
