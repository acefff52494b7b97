//! Resumes sandboxes with the restart policy `on-boot` after the host stopped them.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::tasks::TaskOutcome;
use super::{Actor, PROVIDER_RETRY, RestartState};
use crate::codes::cause;

/// The permit to resume a sandbox at boot. There are few, so that a booting host is not overloaded.
pub(super) struct ResumePermit(OwnedSemaphorePermit);

// === impl Actor ===

impl Actor {
    /// Waits for a permit, if the host stopped the sandbox and it is due.
    pub(super) fn spawn_resume_if_due(&mut self) {
        let by_host = matches!(self.sandbox.reason.as_str(), cause::HOST_SHUTDOWN | cause::HOST_RESTARTED);
        let RestartState::Due { after } = self.restart else { return };
        if !by_host {
            return;
        }
        self.restart = RestartState::Waiting { after };
        let permits = Arc::clone(&self.shared.resume_permits);
        self.tasks.spawn(async move {
            tokio::time::sleep(after).await;
            match permits.acquire_owned().await {
                Ok(permit) => TaskOutcome::Resume(ResumePermit(permit)),
                // The semaphore is never closed.
                Err(_) => TaskOutcome::Nothing,
            }
        });
    }

    pub(super) async fn resume_after_boot(&mut self, ResumePermit(permit): ResumePermit) {
        // A client may have made another request meanwhile.
        let RestartState::Waiting { after } = self.restart else { return };
        match self.resume().await {
            Ok(_) => {
                tracing::info!(sandbox = %self.sandbox.id, "resuming a sandbox that was running when the host stopped");
                self.restart = RestartState::Running { _permit: permit };
            }
            // The resume is retried when there is disk space, without a request.
            Err(error) if error.is_disk_limit() => {
                if after.is_zero() {
                    tracing::warn!(
                        sandbox = %self.sandbox.id, %error,
                        "a sandbox cannot be resumed at boot until there is disk space; retrying"
                    );
                }
                self.restart = RestartState::Due { after: (after * 2).clamp(PROVIDER_RETRY.0, PROVIDER_RETRY.1) };
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.sandbox.id, %error, "a sandbox could not be resumed at boot");
                self.restart = RestartState::Never;
            }
        }
    }
}
