//! What time does to a sandbox.

use std::time::Duration;

use tokio::time::Instant;

use super::facts::untold;
use super::{Actor, Gone};
use crate::machine::{Input, Stage};
use crate::words::cause;

/// How long to wait before something is tried again that time demanded and that failed.
const LATER: Duration = Duration::from_secs(60);

// === impl Actor ===

impl Actor {
    /// When something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = [self.again_at(), self.idle_at(), self.command_at(), self.settled_at(), self.kept_until()];
        due.into_iter().flatten().min()
    }

    /// Does what is due.
    pub(super) async fn time(&mut self) -> Result<(), Gone> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.settled_at()) {
            self.machine.settled_at = None;
            self.facts = None;
            self.is_over(untold()).await?;
        }
        if is_due(self.command_at()) {
            self.command.again_at = None;
            // The sequence of its exit is unique, so that no two starts are taken for one.
            if let Some(attempt) = self.command.ended.and_then(|ended| u32::try_from(ended).ok()) {
                self.spawn_command(attempt);
            }
        }
        if is_due(self.idle_at()) {
            self.spawn_active();
        }
        if self.kept_for() == Some(Duration::ZERO) && self.not_before.is_none_or(|at| at <= now) {
            self.clean_up().await;
        }
        Ok(())
    }

    /// When what the stage demands is tried again.
    fn again_at(&self) -> Option<Instant> {
        self.again.at.filter(|at| !self.busy && *at > Instant::now())
    }

    /// When it has been idle for as long as it may be.
    fn idle_at(&self) -> Option<Instant> {
        let settings = self.shared.settings();
        let most = self.sandbox.idle_ms.map_or(settings.idle_ttl, Duration::from_millis);
        let counts = self.stage() == Stage::Ready && self.machine.runs && self.execs.is_empty() && !self.idle.asking;
        if counts && !most.is_zero() { self.idle.since.checked_add(most) } else { None }
    }

    fn command_at(&self) -> Option<Instant> {
        self.command.again_at.filter(|_| self.stage() == Stage::Ready)
    }

    fn settled_at(&self) -> Option<Instant> {
        self.machine.settled_at.filter(|_| self.stage() == Stage::Stopping && self.machine.over.is_none())
    }

    /// How much longer it is kept.
    fn kept_for(&self) -> Option<Duration> {
        let most = self.shared.settings().cleanup_ttl;
        let counts = matches!(self.stage(), Stage::Stopped | Stage::Failed | Stage::Recoverable) && !self.busy;
        let left = || most.saturating_sub(self.shared.settings().clock.since(self.sandbox.state_changed_at));
        (counts && !most.is_zero()).then(left)
    }

    fn kept_until(&self) -> Option<Instant> {
        let until = Instant::now().checked_add(self.kept_for()?)?;
        Some(self.not_before.map_or(until, |not_before| until.max(not_before)))
    }

    async fn clean_up(&mut self) {
        if let Err(refusal) = self.delete(Input::Cleanup, cause::CLEANUP).await {
            tracing::warn!(sandbox = %self.sandbox.id, error = refusal.message, "an old sandbox could not be removed");
            self.not_before = Some(Instant::now() + LATER);
        }
    }
}
