//! One operation: its id, what arrives for it, and how it is cancelled when its owner leaves.

use std::fmt;
use std::sync::Arc;

use crate::cancel::Cancel;
use crate::connection::Connection;
use crate::error::Error;
use crate::inbox::Inbox;
use crate::link::{Link, Sink};
use crate::raw::RawFrame;

/// An operation that its owner waits for. Dropped before its last frame arrived, it is cancelled.
pub(crate) struct Session<S: Sink = Inbox> {
    connection: Arc<Connection>,
    id: u32,
    sink: Arc<S>,
    cancel: Cancel,
}

// === impl Session ===

impl<S: Sink> Session<S> {
    pub(crate) fn new(connection: Arc<Connection>, id: u32, sink: Arc<S>, cancel: Cancel) -> Self {
        Self { connection, id, sink, cancel }
    }

    /// Sends the opening message; if that fails there is nothing to cancel.
    pub(crate) fn start(mut self, send: impl FnOnce(&Link) -> Result<(), Error>) -> Result<Self, Error> {
        let started = send(&self.connection.link);
        if started.is_err() {
            self.cancel = Cancel::Nothing;
        }
        started.map(|()| self)
    }

    /// The next frame of this id.
    pub(crate) async fn next(&self) -> Result<RawFrame, Error> {
        self.sink.inbox().pop().await
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.connection.link
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn sink(&self) -> &Arc<S> {
        &self.sink
    }

    /// Changes how the operation is cancelled from now on.
    pub(crate) fn cancel_by(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }
}

impl<S: Sink> Drop for Session<S> {
    fn drop(&mut self) {
        let link = self.link();
        if link.abandon(self.id) {
            self.cancel.send(link, self.id);
        }
    }
}

impl<S: Sink> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
