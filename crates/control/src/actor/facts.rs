//! What happens to a sandbox, as it is told by whoever makes it run.

use std::time::Duration;

use carrel_store::Timestamp;
use tokio::time::Instant;

use super::edit::Edit;
use super::pause::Pause;
use super::{Actor, Command, Gone, Over};
use crate::control::place;
use crate::failpoint::Step;
use crate::machine::{Input, Stage, Verdict, verdict};
use crate::provider::{EndCause, Fact, How, Noted, ProviderError};
use crate::words::{cause, error_code};

/// How many facts are written down together.
const TOGETHER: usize = 256;
/// A command that ran for so long has begun well.
const WELL: Duration = Duration::from_secs(10);
/// How often in a row a command may exit before that and is restarted.
const CRASHES: u32 = 5;
/// What a command ends with that is not there.
const NOT_FOUND: i32 = 127;
/// How long to wait until it is run again, at first.
const AGAIN: Duration = Duration::from_millis(100);

/// What becomes of a sandbox that exited.
enum Exit {
    /// It stops, and can be resumed.
    Stops,
    /// It fails, with a message: there is no disk to resume from.
    Loses(String),
}

// === impl Actor ===

impl Actor {
    /// Hears facts, and those that are there already.
    pub(super) async fn hear(&mut self, first: Option<Vec<Noted>>) -> Result<(), Gone> {
        let Some(mut noted) = first else {
            self.facts = None;
            // What a supervisor writes down is not synced: a host that loses power may lose it.
            let is_before_boot = self.shared.settings().clock.is_before_boot(self.sandbox.state_changed_at);
            let (cause, message) = if is_before_boot {
                (EndCause::HostRestarted, "the host restarted while it ran")
            } else {
                (EndCause::SupervisorLost, "nothing is left that could tell how it ended")
            };
            return self.is_over(Over { cause, message: message.to_owned() }).await;
        };
        while noted.len() < TOGETHER
            && let Some(next) = self.facts.as_mut().and_then(|facts| facts.try_recv().ok())
        {
            noted.extend(next);
        }
        let over = noted.iter().find_map(|noted| match &noted.fact {
            Fact::Ended { cause, message } => Some(Over { cause: *cause, message: message.clone() }),
            _ => None,
        });
        if noted.iter().any(|noted| matches!(noted.fact, Fact::Paused { .. } | Fact::Unpaused)) {
            self.recall_pause().await;
        }
        let (mut edit, is_ready) = (self.edit(), self.stage() == Stage::Ready);
        // That it stops is told before the ends of what ran in it, in the same change.
        let exit = match &over {
            Some(over) if is_ready => Some(self.exit(&mut edit, over).await),
            _ => None,
        };
        for Noted { sequence, at, fact } in noted {
            // That it is over is told by the change of its stage, and heard again until that is written down.
            if !matches!(fact, Fact::Ended { .. }) {
                edit.sandbox().journal = edit.sandbox().journal.max(sequence);
            }
            match fact {
                // It is told with the end of the sandbox, which follows.
                Fact::ExecEnded { how: How::SandboxEnded, .. } if is_ready && over.is_none() => {}
                Fact::ExecEnded { exec, how } => {
                    // One that is known to have ended is told again after a crash.
                    if let Some(exec) = self.execs.get(&exec).filter(|exec| !edit.ends(exec)) {
                        edit.end_exec(exec, &how, at);
                        self.idle.since = Instant::now();
                        edit.sandbox().active_at = edit.now();
                    }
                }
                Fact::CommandEnded { attempt, how } => self.command_ended(sequence, at, attempt, &how),
                Fact::Paused { cause, message } => {
                    self.pause_changed(&mut edit, at, Some(Pause::new(cause, message)), is_ready && over.is_none());
                }
                Fact::Unpaused => self.pause_changed(&mut edit, at, None, is_ready && over.is_none()),
                Fact::Ended { .. } | Fact::OutOfMemory | Fact::Other => {}
            }
        }
        if over.is_some() {
            self.facts = None;
            self.machine.over.clone_from(&over);
        }
        if let (Some(exit), Some(over)) = (exit, &over) {
            return self.exited(edit, exit, over).await;
        }
        if let Some(ended) = self.command.ended {
            // Until it runs again, the next daemon has to hear of it too.
            let journal = &mut edit.sandbox().journal;
            *journal = (*journal).min(ended.saturating_sub(1));
        }
        if edit.is_told() {
            self.persist(edit, Step::ExecEnded).await?;
        }
        if let Some(message) = self.command_failure() {
            return self.crashed(&message).await;
        }
        match over {
            Some(over) => self.is_over(over).await,
            None => Ok(()),
        }
    }

    /// Hears what is there already.
    pub(super) async fn drain(&mut self) -> Result<(), Gone> {
        while let Some(noted) = self.facts.as_mut().and_then(|facts| facts.try_recv().ok()) {
            self.hear(Some(noted)).await?;
        }
        Ok(())
    }

    /// Nothing of this incarnation runs any more, and nothing more is told of it.
    pub(super) async fn is_over(&mut self, over: Over) -> Result<(), Gone> {
        self.machine.over = Some(over);
        match self.stage() {
            Stage::Ready => self.has_ended().await,
            // Otherwise whoever ends it says when nothing of it is left.
            Stage::Stopping if self.machine.stopped => self.has_ended().await,
            _ => Ok(()),
        }
    }

    /// Tells the end of a sandbox that was ready.
    pub(super) async fn has_ended(&mut self) -> Result<(), Gone> {
        let Some(over) = self.machine.over.clone() else { return Ok(()) };
        let mut edit = self.edit();
        let exit = match self.stage() {
            Stage::Ready => self.exit(&mut edit, &over).await,
            _ => Exit::Stops,
        };
        self.exited(edit, exit, &over).await
    }

    /// Begins the end of one that exited although the daemon did not stop it: it stops if there is a disk to resume from.
    async fn exit(&self, edit: &mut Edit, over: &Over) -> Exit {
        let lost = match self.shared.provider.has_disk(&place(&self.sandbox)).await {
            Ok(true) => None,
            Ok(false) => Some(format!("{}; its disk is missing", over.message)),
            Err(error) => Some(format!("{}; its disk cannot be read: {error}", over.message)),
        };
        if let Some(message) = lost {
            return Exit::Loses(message);
        }
        if let Verdict::Go(stopping, event) = verdict(self.stage(), Input::Exited) {
            edit.go_because(stopping, event, over.cause.reason());
        }
        Exit::Stops
    }

    /// Writes down that nothing of a sandbox runs any more, after what it ran.
    async fn exited(&mut self, mut edit: Edit, exit: Exit, over: &Over) -> Result<(), Gone> {
        self.end_execs(&mut edit);
        let input = match exit {
            Exit::Stops => Input::Ended,
            Exit::Loses(_) => Input::Lost,
        };
        let Verdict::Go(next, _) = verdict(Stage::of(edit.sandbox()), input) else { return Ok(()) };
        self.clean = false;
        match exit {
            Exit::Loses(message) => {
                edit.fail(next, over.cause.error_code().unwrap_or(error_code::NOT_RUNNING), &message);
                self.persist(edit, Step::Failed).await
            }
            Exit::Stops => {
                // One that was asked to stop has no error, however it ended.
                let is_cause = edit.sandbox().reason == over.cause.reason();
                let code = over.cause.error_code().filter(|_| is_cause);
                edit.stop(next, code.map(|code| (code, over.message.as_str())));
                self.persist(edit, Step::Stopped).await
            }
        }
    }

    /// Ends commands of which nobody told an end.
    pub(super) fn end_execs(&self, edit: &mut Edit) {
        for exec in self.execs.values() {
            if !edit.ends(exec) {
                edit.end_exec(exec, &How::SandboxEnded, edit.now());
            }
        }
    }

    /// What it runs by itself has ended, and is run again: later and later, and not for ever.
    fn command_ended(&mut self, sequence: u64, at: Timestamp, attempt: u32, how: &How) {
        if self.stage() != Stage::Ready || sequence <= self.command.heard {
            return;
        }
        tracing::info!(sandbox = %self.sandbox.id, ?how, "what the sandbox runs has ended");
        // By what was written down, not by our clock: an end of long ago may be told to a daemon that has just begun.
        let ran = at.0.saturating_sub(self.command.since.0);
        let is_soon = u64::try_from(ran).map_or(true, |ran| Duration::from_nanos(ran) < WELL);
        self.command.soon = if is_soon { self.command.soon + 1 } else { 0 };
        (self.command.since, self.command.heard) = (at, sequence);
        self.command.ended = Some(sequence);
        let restarts = self.command.soon.clamp(1, CRASHES) - 1;
        self.command.again_at = Some(Instant::now() + AGAIN * 2u32.saturating_pow(restarts));
        self.command.last = match how {
            How::Exited(code) => format!("exit code {code}"),
            How::Signalled(signal) => format!("signal {signal}"),
            How::OutOfMemory => "out of memory".to_owned(),
            How::NeverRan(_, why) => why.clone(),
            How::TimedOut | How::Cancelled | How::SandboxEnded => "it was ended".to_owned(),
        };
        // What is not there at first does not appear by itself.
        self.command.missing = attempt == 0 && matches!(how, How::NeverRan(NOT_FOUND, _));
    }

    /// Why the command is not restarted any more, if it is not.
    fn command_failure(&self) -> Option<String> {
        let Command { soon, missing, last, .. } = &self.command;
        if *missing {
            return Some(format!("the command cannot be started: {last}"));
        }
        let within = WELL.as_secs();
        (*soon > CRASHES)
            .then(|| format!("the command exited {soon} times in a row within {within} s of its start: {last}"))
    }

    pub(super) fn command_begun(&mut self, attempt: u32, begun: Result<(), ProviderError>) {
        match begun {
            // It may have exited again before its start was reported: that exit is another one.
            Ok(()) => {
                self.command.ended.take_if(|ended| *ended == u64::from(attempt));
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "what the sandbox runs could not be run again");
                self.command.again_at = Some(Instant::now() + WELL);
            }
        }
    }

    async fn crashed(&mut self, message: &str) -> Result<(), Gone> {
        let Verdict::Go(next, _) = verdict(self.stage(), Input::CrashLoop) else { return Ok(()) };
        let mut edit = self.edit();
        self.end_execs(&mut edit);
        self.clean = false;
        self.command.again_at = None;
        edit.fail(next, error_code::CRASH_LOOP, message);
        self.persist(edit, Step::Failed).await
    }

    /// Whether it is used, as somebody found who was asked when it seemed idle.
    pub(super) async fn is_active(&mut self, since: Instant, active: Result<bool, ProviderError>) -> Result<(), Gone> {
        self.idle.asking = false;
        if since != self.idle.since || !self.execs.is_empty() {
            return Ok(());
        }
        // Of one that does not answer more is heard soon.
        if !matches!(active, Ok(false)) {
            self.idle.since = Instant::now();
            return Ok(());
        }
        let Verdict::Go(next, event) = verdict(self.stage(), Input::Idle) else { return Ok(()) };
        let mut edit = self.edit().synced();
        edit.go_because(next, event, cause::IDLE);
        self.persist(edit, Step::StopAccepted).await
    }
}

/// The end of an incarnation that nobody told.
pub(super) fn untold() -> Over {
    Over { cause: EndCause::Stopped, message: "it was ended".to_owned() }
}
