//! What is asked of a sandbox that is gone: answered from its row, since it has no actor any more.

use carrel_store::{Sandbox, StoreError};

use super::edit::Edit;
use super::requests::{not_cancellable, not_resumable, not_stoppable};
use super::{Accepted, Request};
use crate::control::{Shared, not_ready, sandbox_gone, store_failed};
use crate::refusal::Refusal;

// === impl Shared ===

impl Shared {
    /// Answers as an actor would, whose sandbox is deleted.
    pub(crate) async fn answer_for_deleted(&self, sandbox: &Sandbox, request: Request) -> Result<Accepted, Refusal> {
        match request {
            Request::Delete => Ok(Accepted::Already),
            Request::Stop(_) => Err(not_stoppable(sandbox)),
            Request::Resume => Err(not_resumable(sandbox)),
            Request::Exec(..) | Request::Pause(_) => Err(not_ready(sandbox)),
            Request::Cancel(exec) => Err(not_cancellable(&self.store, &exec).await),
            Request::SetIdle(idle) => {
                let edit = Edit::new(sandbox, self.settings().clock.now()).synced().idle(idle);
                match self.store.commit(edit.change).await {
                    Ok(_) => Ok(Accepted::Changed),
                    Err(StoreError::Unknown) => Err(sandbox_gone(&sandbox.id)),
                    Err(error) => Err(store_failed(&error)),
                }
            }
        }
    }
}
