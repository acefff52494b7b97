//! The one thread that writes: it takes all that is queued and commits it at once.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::backend::{Applied, Backend, Range};
use crate::shared::Shared;
use crate::{Change, Committed, ExecId, SandboxId, Sequence, StoreError};

/// What the writer is asked for.
#[derive(Debug)]
pub(crate) enum Request {
    /// To make a change true.
    Commit(Box<Change>, Reply),
    /// To remove a sandbox.
    Purge(SandboxId, oneshot::Sender<Result<(), StoreError>>),
    /// To remove the oldest events of a sandbox up to a sequence, a bounded number at once.
    TrimEvents(SandboxId, Sequence, oneshot::Sender<Result<usize, StoreError>>),
    /// To remove execs of a sandbox that have ended.
    TrimExecs(SandboxId, Vec<ExecId>, oneshot::Sender<Result<usize, StoreError>>),
    /// To finish.
    Close(oneshot::Sender<()>),
}

/// How many rows retention removes in one transaction, so that no commit waits for long.
pub(crate) const TRIM: usize = 500;

/// How many bytes of changes are gathered into one transaction: the log of the database has to stay small enough for the
/// reserve.
const MOST_BYTES: usize = 4 << 20;

pub(crate) struct Writer {
    backend: Box<dyn Backend>,
    queue: mpsc::Receiver<Request>,
    shared: Arc<Shared>,
    /// How many changes are committed at once.
    most: usize,
}

type Reply = oneshot::Sender<Result<Committed, StoreError>>;

// === impl Writer ===

impl Writer {
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        queue: mpsc::Receiver<Request>,
        shared: Arc<Shared>,
        most: usize,
    ) -> Self {
        Self { backend, queue, shared, most }
    }

    /// Writes until nobody is left to ask, or somebody asks to finish.
    pub(crate) fn run(mut self) {
        let mut held = None;
        let mut closing = Vec::new();
        while let Some(request) = held.take().or_else(|| self.queue.blocking_recv()) {
            match request {
                Request::Commit(change, reply) => held = self.gather(change, reply),
                Request::Purge(sandbox, reply) => {
                    let purged = self.backend.purge(&sandbox);
                    if purged.is_ok() {
                        self.shared.forget(&sandbox);
                    }
                    // Nobody waits for the answer when the caller was called off.
                    let _ = reply.send(purged);
                }
                Request::TrimEvents(sandbox, through, reply) => {
                    let _ = reply.send(self.trim_events(&sandbox, through));
                }
                Request::TrimExecs(sandbox, execs, reply) => {
                    let _ = reply.send(self.backend.trim_execs(&sandbox, &execs));
                }
                Request::Close(reply) => {
                    // What is queued is still received.
                    self.queue.close();
                    closing.push(reply);
                }
            }
        }
        self.shared.end();
        // What was committed is committed: only the next start has more to do.
        let _ = self.backend.close();
        drop(self.backend);
        for reply in closing {
            let _ = reply.send(());
        }
    }

    fn trim_events(&mut self, sandbox: &SandboxId, through: Sequence) -> Result<usize, StoreError> {
        let (shared, before) = (&self.shared, self.shared.trimmed(sandbox));
        let range = Range { after: before, until: through, most: TRIM };
        let trimmed = self.backend.trim_events(sandbox, range, &mut |through| shared.set_trimmed(sandbox, through));
        if trimmed.is_err() {
            shared.set_trimmed(sandbox, before);
        }
        trimmed
    }

    /// Commits a change, and with it those that wait behind it. Returns what is no change.
    fn gather(&mut self, first: Box<Change>, reply: Reply) -> Option<Request> {
        let mut bytes = first.bytes();
        let mut changes = vec![*first];
        let mut replies = vec![reply];
        let mut other = None;
        while changes.len() < self.most && bytes < MOST_BYTES {
            match self.queue.try_recv() {
                Ok(Request::Commit(change, reply)) => {
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
                    let _ = reply.send(change.map(Committed::from));
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

impl From<Applied> for Committed {
    fn from(applied: Applied) -> Self {
        Self { sandbox: applied.sandbox, events: applied.events }
    }
}
