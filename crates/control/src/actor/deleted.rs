//! Requests to a deleted sandbox. It has no actor any more, so they are answered from its row.

use carrel_store::{Sandbox, StoreError};

use super::edit::SandboxEdit;
use super::requests::{not_cancellable, not_resumable, not_stoppable};
use super::{Acceptance, ActorRequest};
use crate::control::{ControlInner, not_ready, sandbox_gone, store_failed};
use crate::refusal::Refusal;

// === impl ControlInner ===

impl ControlInner {
    /// Answers a request as the actor of a deleted sandbox would.
    pub(crate) async fn answer_for_deleted(
        &self,
        sandbox: &Sandbox,
        request: ActorRequest,
    ) -> Result<Acceptance, Refusal> {
        match request {
            ActorRequest::Delete => Ok(Acceptance::Unchanged),
            ActorRequest::Stop(_) => Err(not_stoppable(sandbox)),
            ActorRequest::Resume | ActorRequest::Adopt(_) => Err(not_resumable(sandbox)),
            ActorRequest::Exec(..) | ActorRequest::Pause(_) => Err(not_ready(sandbox)),
            ActorRequest::Cancel(exec) => Err(not_cancellable(&self.store, &exec).await),
            ActorRequest::SetIdle(idle) => {
                let edit = SandboxEdit::new(sandbox, self.settings().clock.now()).synced().idle(idle);
                match self.store.commit(edit.change).await {
                    Ok(_) => Ok(Acceptance::Changed),
                    Err(StoreError::Unknown) => Err(sandbox_gone(&sandbox.id)),
                    Err(error) => Err(store_failed(&error)),
                }
            }
        }
    }
}
