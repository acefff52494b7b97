//! What happens to a sandbox, as it is told by whoever makes it run.

use std::time::Duration;

use carrel_store::{EventType, Timestamp};
use tokio::time::Instant;

use super::edit::Edit;
use super::{Actor, Gone, Over};
use crate::failpoint::Step;
use crate::machine::{Input, Stage, Verdict, verdict};
use crate::provider::{Fact, How, Noted, ProviderError};
use crate::words::{cause, error_code};

/// How many facts are written down together.
const TOGETHER: usize = 256;
/// A command that ran for so long has begun well.
const WELL: Duration = Duration::from_secs(10);
/// How often in a row a command may end before that.
const CRASHES: u32 = 5;
/// How long to wait until it is run again, at first.
const AGAIN: Duration = Duration::from_millis(100);

// === impl Actor ===

impl Actor {
    /// Hears a fact, and those that are there already.
    pub(super) async fn hear(&mut self, first: Option<Noted>) -> Result<(), Gone> {
        let Some(first) = first else {
            self.facts = None;
            let message = "nothing is left that could tell how it ended".to_owned();
            return self.is_over(Over { asked: false, out_of_memory: false, message }).await;
        };
        let mut noted = vec![first];
        while let Some(next) = self.facts.as_mut().and_then(|facts| facts.try_recv().ok()) {
            noted.push(next);
            if noted.len() == TOGETHER {
                break;
            }
        }
        let (mut edit, mut over) = (self.edit(), None);
        for Noted { sequence, at, fact } in noted {
            // That it is over is told by the change of its stage, and heard again until that is written down.
            if !matches!(fact, Fact::Ended { .. }) {
                edit.sandbox().journal = edit.sandbox().journal.max(sequence);
            }
            match fact {
                Fact::ExecEnded { exec, how } => {
                    // One that is known to have ended is told again after a crash.
                    if let Some(exec) = self.execs.get(&exec).filter(|exec| !edit.ends(exec)) {
                        edit.end_exec(exec, &how, at);
                        self.idle.since = Instant::now();
                        edit.sandbox().active_at = edit.now();
                    }
                }
                Fact::CommandEnded { how, .. } => self.command_ended(sequence, at, &how),
                Fact::Ended { asked, out_of_memory, message } => over = Some(Over { asked, out_of_memory, message }),
                Fact::OutOfMemory | Fact::Other => {}
            }
        }
        if let Some(ended) = self.command.ended {
            // Until it runs again, the next daemon has to hear of it too.
            let journal = &mut edit.sandbox().journal;
            *journal = (*journal).min(ended.saturating_sub(1));
        }
        if edit.is_told() {
            self.persist(edit, Step::ExecEnded).await?;
        }
        if self.command.soon > CRASHES {
            return self.crashed().await;
        }
        match over {
            Some(over) => {
                self.facts = None;
                self.is_over(over).await
            }
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
        self.end_execs(&mut edit);
        let mut stage = self.stage();
        if over.asked
            && let Verdict::Go(stopping, event) = verdict(stage, Input::ShutDown)
        {
            edit.go_because(stopping, event, cause::SHUT_DOWN);
            stage = stopping;
        }
        let Verdict::Go(next, event) = verdict(stage, Input::Ended) else { return Ok(()) };
        self.clean = false;
        match event {
            EventType::SandboxFailed => {
                let code = if over.out_of_memory { error_code::OUT_OF_MEMORY } else { error_code::NOT_RUNNING };
                edit.fail(code, &over.message);
                self.persist(edit, Step::Failed).await
            }
            _ => {
                let reason = edit.sandbox().reason.clone();
                edit.go_because(next, event, &reason);
                self.persist(edit, Step::Stopped).await
            }
        }
    }

    /// Ends commands of which nobody told an end.
    pub(super) fn end_execs(&self, edit: &mut Edit) {
        for exec in self.execs.values() {
            edit.end_exec(exec, &How::SandboxEnded, edit.now());
        }
    }

    /// What it runs by itself has ended, and is run again: later and later, and not for ever.
    fn command_ended(&mut self, sequence: u64, at: Timestamp, how: &How) {
        if self.stage() != Stage::Ready || sequence <= self.command.heard {
            return;
        }
        tracing::info!(sandbox = %self.sandbox.id, ?how, "what the sandbox runs has ended");
        // By what was written down, not by our clock: an end of long ago may be told to a daemon that has just begun.
        let ran = at.0.saturating_sub(self.command.since.0);
        if u64::try_from(ran).is_ok_and(|ran| Duration::from_nanos(ran) >= WELL) {
            self.command.soon = 0;
        }
        (self.command.since, self.command.heard) = (at, sequence);
        self.command.soon += 1;
        self.command.ended = Some(sequence);
        self.command.again_at = Some(Instant::now() + AGAIN * 2u32.saturating_pow(self.command.soon.min(CRASHES) - 1));
    }

    pub(super) fn command_begun(&mut self, begun: Result<(), ProviderError>) {
        match begun {
            Ok(()) => {
                self.command.ended = None;
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "what the sandbox runs could not be run again");
                self.command.again_at = Some(Instant::now() + WELL);
            }
        }
    }

    async fn crashed(&mut self) -> Result<(), Gone> {
        let Verdict::Go(..) = verdict(self.stage(), Input::Ended) else { return Ok(()) };
        let mut edit = self.edit();
        self.end_execs(&mut edit);
        self.clean = false;
        self.command.again_at = None;
        let words = format!("its command ended {CRASHES} times in a row soon after it began");
        edit.fail(error_code::CRASH_LOOP, &words);
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
    Over { asked: true, out_of_memory: false, message: "it was ended".to_owned() }
}
