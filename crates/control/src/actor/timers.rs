//! The timers of a sandbox.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::facts::unreported_end;
use super::{Actor, ActorStopped};
use crate::codes::cause;
use crate::stage::{SandboxStage, StageInput};

/// The delay before a cleanup is retried that came before the store was compared with what runs.
const COMPARISON_RETRY: Duration = Duration::from_millis(100);
/// The delay before a failed cleanup is retried.
const CLEANUP_RETRY: Duration = Duration::from_secs(60);

// === impl Actor ===

impl Actor {
    /// When the next timer is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = [self.retry_at(), self.idle_at(), self.command_at(), self.settled_at(), self.retained_until()];
        due.into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub(super) async fn run_timers(&mut self) -> Result<(), ActorStopped> {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.settled_at()) {
            self.incarnation.settled_at = None;
            self.facts = None;
            self.incarnation_ended(unreported_end()).await?;
        }
        if is_due(self.command_at()) {
            self.command.restart_at = None;
            // The sequence of the exit is unique, so no two starts have the same attempt number.
            if let Some(attempt) = self.command.pending_exit.and_then(|exit| u32::try_from(exit).ok()) {
                self.spawn_command(attempt);
            }
        }
        if is_due(self.idle_at()) {
            self.spawn_activity_check();
        }
        if self.retained_for() == Some(Duration::ZERO) && self.cleanup_not_before.is_none_or(|at| at <= now) {
            self.clean_up().await;
        }
        Ok(())
    }

    /// When the task of the stage is retried.
    fn retry_at(&self) -> Option<Instant> {
        self.retry.at.filter(|at| !self.busy && *at > Instant::now())
    }

    /// When the sandbox has been idle for as long as it may be.
    fn idle_at(&self) -> Option<Instant> {
        let settings = self.shared.settings();
        let most = self.sandbox.idle_ms.map_or(settings.idle_ttl, Duration::from_millis);
        let counts = self.stage() == SandboxStage::Ready
            && self.incarnation.runs
            && self.execs.is_empty()
            && !self.idle.checking;
        if counts && !most.is_zero() { self.idle.since.checked_add(most) } else { None }
    }

    fn command_at(&self) -> Option<Instant> {
        self.command.restart_at.filter(|_| self.stage() == SandboxStage::Ready)
    }

    fn settled_at(&self) -> Option<Instant> {
        self.incarnation.settled_at.filter(|_| self.stage() == SandboxStage::Stopping && self.incarnation.end.is_none())
    }

    /// How much longer the sandbox is retained.
    fn retained_for(&self) -> Option<Duration> {
        let most = self.shared.settings().cleanup_ttl;
        let counts = matches!(self.stage(), SandboxStage::Stopped | SandboxStage::Failed | SandboxStage::Recoverable)
            && !self.busy;
        let left = || most.saturating_sub(self.shared.settings().clock.since(self.sandbox.state_changed_at));
        (counts && !most.is_zero()).then(left)
    }

    fn retained_until(&self) -> Option<Instant> {
        let until = Instant::now().checked_add(self.retained_for()?)?;
        Some(self.cleanup_not_before.map_or(until, |cleanup_not_before| until.max(cleanup_not_before)))
    }

    async fn clean_up(&mut self) {
        if !self.shared.is_compared.load(Ordering::Acquire) {
            self.cleanup_not_before = Some(Instant::now() + COMPARISON_RETRY);
            return;
        }
        if let Err(refusal) = self.delete(StageInput::Cleanup, cause::CLEANUP).await {
            tracing::warn!(sandbox = %self.sandbox.id, error = refusal.message, "a sandbox that exceeds its retention could not be deleted; retrying");
            self.cleanup_not_before = Some(Instant::now() + CLEANUP_RETRY);
        }
    }
}
