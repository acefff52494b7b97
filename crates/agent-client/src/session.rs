//! One operation on a connection: its id, its handler, and its cancel message.

use std::fmt;
use std::sync::Arc;

use crate::cancel::CancelMessage;
use crate::connection::AgentConnection;
use crate::error::AgentClientError;
use crate::inbox::FrameInbox;
use crate::link::{AgentLink, FrameHandler};
use crate::raw::RawFrame;

/// An operation. If dropped before its last frame arrived, it is cancelled.
pub(crate) struct ProtocolSession<S: FrameHandler = FrameInbox> {
    connection: Arc<AgentConnection>,
    id: u32,
    handler: Arc<S>,
    cancel: CancelMessage,
}

// === impl ProtocolSession ===

impl<S: FrameHandler> ProtocolSession<S> {
    pub(crate) fn new(connection: Arc<AgentConnection>, id: u32, handler: Arc<S>, cancel: CancelMessage) -> Self {
        Self { connection, id, handler, cancel }
    }

    /// Sends the opening message; if that fails, there is nothing to cancel.
    pub(crate) fn start(
        mut self,
        send: impl FnOnce(&AgentLink) -> Result<(), AgentClientError>,
    ) -> Result<Self, AgentClientError> {
        let started = send(&self.connection.link);
        if started.is_err() {
            self.cancel = CancelMessage::Nothing;
        }
        started.map(|()| self)
    }

    /// The next frame of this id.
    pub(crate) async fn next(&self) -> Result<RawFrame, AgentClientError> {
        self.handler.inbox().pop().await
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn link(&self) -> &Arc<AgentLink> {
        &self.connection.link
    }

    pub(crate) fn connection(&self) -> &Arc<AgentConnection> {
        &self.connection
    }

    pub(crate) fn handler(&self) -> &Arc<S> {
        &self.handler
    }

    /// Changes the cancel message.
    pub(crate) fn cancel_by(&mut self, cancel: CancelMessage) {
        self.cancel = cancel;
    }
}

impl<S: FrameHandler> Drop for ProtocolSession<S> {
    fn drop(&mut self) {
        let link = self.link();
        if link.abandon(self.id) {
            self.cancel.send(link, self.id);
        }
    }
}

impl<S: FrameHandler> fmt::Debug for ProtocolSession<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtocolSession").field("id", &self.id).finish_non_exhaustive()
    }
}
