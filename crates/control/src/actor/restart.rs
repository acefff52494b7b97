//! Sandboxes that the host stopped, resumed by the next daemon if their restart policy says so.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::work::Finished;
use super::{Actor, Restart};
use crate::machine::Stage;
use crate::words::cause;

/// The right to resume a sandbox now: one of few, so that a host that boots is not flooded.
pub(super) struct Turn(OwnedSemaphorePermit);

// === impl Actor ===

impl Actor {
    /// Whether it waits for nothing but its turn to be resumed.
    pub(super) fn restart_is_due(&self) -> bool {
        let by_host = matches!(self.sandbox.reason.as_str(), cause::HOST_SHUTDOWN | cause::HOST_RESTARTED);
        matches!(self.restart, Restart::Due) && self.stage() == Stage::Stopped && by_host
    }

    pub(super) fn spawn_turn(&mut self) {
        self.restart = Restart::Waiting;
        let turns = Arc::clone(&self.shared.restarts);
        self.tasks.spawn(async move {
            match turns.acquire_owned().await {
                Ok(permit) => Finished::Turn(Turn(permit)),
                // It is never closed.
                Err(_) => Finished::Nothing,
            }
        });
    }

    pub(super) async fn restart(&mut self, Turn(permit): Turn) {
        // A client may have asked for something else meanwhile.
        if !matches!(self.restart, Restart::Waiting) {
            return;
        }
        match self.resume().await {
            Ok(_) => {
                tracing::info!(sandbox = %self.sandbox.id, "a sandbox that ran before the host stopped is resumed");
                self.restart = Restart::Running { _turn: permit };
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "a sandbox could not be resumed at boot");
                self.restart = Restart::Never;
            }
        }
    }
}
