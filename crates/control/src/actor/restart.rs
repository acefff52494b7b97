//! Sandboxes that the host stopped, resumed by the next daemon if their restart policy says so.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::work::Finished;
use super::{Actor, LATER, Restart};
use crate::words::cause;

/// The right to resume a sandbox now: one of few, so that a host that boots is not flooded.
pub(super) struct Turn(OwnedSemaphorePermit);

// === impl Actor ===

impl Actor {
    /// Waits for its turn, if nothing else keeps it from being resumed.
    pub(super) fn spawn_turn_if_due(&mut self) {
        let by_host = matches!(self.sandbox.reason.as_str(), cause::HOST_SHUTDOWN | cause::HOST_RESTARTED);
        let Restart::Due { after } = self.restart else { return };
        if !by_host {
            return;
        }
        self.restart = Restart::Waiting { after };
        let turns = Arc::clone(&self.shared.restarts);
        self.tasks.spawn(async move {
            tokio::time::sleep(after).await;
            match turns.acquire_owned().await {
                Ok(permit) => Finished::Turn(Turn(permit)),
                // It is never closed.
                Err(_) => Finished::Nothing,
            }
        });
    }

    pub(super) async fn restart(&mut self, Turn(permit): Turn) {
        // A client may have asked for something else meanwhile.
        let Restart::Waiting { after } = self.restart else { return };
        match self.resume().await {
            Ok(_) => {
                tracing::info!(sandbox = %self.sandbox.id, "a sandbox that ran before the host stopped is resumed");
                self.restart = Restart::Running { _turn: permit };
            }
            // Whoever frees space does not know what waits for it.
            Err(error) if error.is_disk_limit() => {
                if after.is_zero() {
                    tracing::warn!(
                        sandbox = %self.sandbox.id, %error,
                        "a sandbox cannot be resumed at boot until the disk has room again"
                    );
                }
                self.restart = Restart::Due { after: (after * 2).clamp(LATER.0, LATER.1) };
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "a sandbox could not be resumed at boot");
                self.restart = Restart::Never;
            }
        }
    }
}
