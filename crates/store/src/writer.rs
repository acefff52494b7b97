//! The writer thread: it commits all queued changes as one batch.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::backend::{AppliedChange, Backend, EventRange};
use crate::shared::SharedState;
use crate::{Change, CommittedChange, ExecId, SandboxId, Sequence, StoreError};

/// A request to the writer thread.
#[derive(Debug)]
pub(crate) enum WriteRequest {
    /// Commits a change.
    Commit(Box<Change>, Reply),
    /// Removes a sandbox.
    Purge(SandboxId, oneshot::Sender<Result<(), StoreError>>),
    /// Removes the oldest events of a sandbox up to a sequence, a bounded number at once.
    TrimEvents(SandboxId, Sequence, oneshot::Sender<Result<usize, StoreError>>),
    /// Removes ended execs of a sandbox.
    TrimExecs(SandboxId, Vec<ExecId>, oneshot::Sender<Result<usize, StoreError>>),
    /// Finishes.
    Close(oneshot::Sender<()>),
}

/// How many rows retention removes in one transaction, so that no commit waits for long.
pub(crate) const TRIM: usize = 500;

/// How many bytes of changes a batch may have: the write-ahead log has to stay small enough for the reserve.
const MAX_BYTES: usize = 4 << 20;

pub(crate) struct StoreWriter {
    backend: Box<dyn Backend>,
    queue: mpsc::Receiver<WriteRequest>,
    shared: Arc<SharedState>,
    /// The maximum number of changes in a batch.
    most: usize,
}

type Reply = oneshot::Sender<Result<CommittedChange, StoreError>>;

// === impl StoreWriter ===

impl StoreWriter {
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        queue: mpsc::Receiver<WriteRequest>,
        shared: Arc<SharedState>,
        most: usize,
    ) -> Self {
        Self { backend, queue, shared, most }
    }

    /// Runs until all senders are dropped or a close is requested.
    pub(crate) fn run(mut self) {
        let mut held = None;
        let mut closing = Vec::new();
        while let Some(request) = held.take().or_else(|| self.queue.blocking_recv()) {
            match request {
                WriteRequest::Commit(change, reply) => held = self.commit_with_queued(change, reply),
                WriteRequest::Purge(sandbox, reply) => {
                    let purged = self.backend.purge(&sandbox);
                    if purged.is_ok() {
                        self.shared.remove(&sandbox);
                    }
                    // The receiver is dropped when the caller was cancelled.
                    let _ = reply.send(purged);
                }
                WriteRequest::TrimEvents(sandbox, through, reply) => {
                    let _ = reply.send(self.trim_events(&sandbox, through));
                }
                WriteRequest::TrimExecs(sandbox, execs, reply) => {
                    let _ = reply.send(self.backend.trim_execs(&sandbox, &execs));
                }
                WriteRequest::Close(reply) => {
                    // Queued requests are still received.
                    self.queue.close();
                    closing.push(reply);
                }
            }
        }
        self.shared.close();
        // Committed changes are safe: a failed close only costs the next start more time.
        let _ = self.backend.close();
        drop(self.backend);
        for reply in closing {
            let _ = reply.send(());
        }
    }

    fn trim_events(&mut self, sandbox: &SandboxId, through: Sequence) -> Result<usize, StoreError> {
        let (shared, before) = (&self.shared, self.shared.trimmed(sandbox));
        let range = EventRange { after: before, until: through, most: TRIM };
        let trimmed = self.backend.trim_events(sandbox, range, &mut |through| shared.set_trimmed(sandbox, through));
        if trimmed.is_err() {
            shared.set_trimmed(sandbox, before);
        }
        trimmed
    }

    /// Commits a change together with the changes queued behind it. Returns the first request that is not a change.
    fn commit_with_queued(&mut self, first: Box<Change>, reply: Reply) -> Option<WriteRequest> {
        let mut bytes = first.bytes();
        let mut changes = vec![*first];
        let mut replies = vec![reply];
        let mut other = None;
        while changes.len() < self.most && bytes < MAX_BYTES {
            match self.queue.try_recv() {
                Ok(WriteRequest::Commit(change, reply)) => {
                    bytes += change.bytes();
                    changes.push(*change);
                    replies.push(reply);
                }
                Ok(request) => {
                    other = Some(request);
                    break;
                }
                Err(_) => break,
            }
        }
        self.commit(changes, replies);
        other
    }

    fn commit(&mut self, changes: Vec<Change>, replies: Vec<Reply>) {
        match self.backend.commit(changes) {
            Ok(batch) => {
                self.shared.publish(&batch);
                for (change, reply) in batch.changes.into_iter().zip(replies) {
                    let _ = reply.send(change.map(CommittedChange::from));
                }
            }
            Err(error) => {
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }
}

impl From<AppliedChange> for CommittedChange {
    fn from(applied: AppliedChange) -> Self {
        Self { sandbox: applied.sandbox, events: applied.events }
    }
}
