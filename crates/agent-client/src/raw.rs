//! Frames whose bodies the caller encodes and decodes.

use bytes::Bytes;
use carrel_protocol::Flags;

use crate::cancel::CancelMessage;
use crate::client::AgentClient;
use crate::error::AgentClientError;
use crate::inbox::{FrameInbox, UNCREDITED};
use crate::session::ProtocolSession;

/// A frame as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// The correlation id.
    pub id: u32,
    /// The flag byte.
    pub flags: Flags,
    /// The encoded envelope or, with [`Flags::BULK`], a bulk record.
    pub body: Bytes,
}

/// The frames of one id.
///
/// Dropping it before the last frame cancels the operation according to its opening message; if the protocol has no
/// cancel message for it, late frames are ignored.
#[derive(Debug)]
pub struct RawStream {
    session: ProtocolSession,
    over: bool,
}

// === impl AgentClient ===

impl AgentClient {
    /// Sends a frame with a new id and returns the first frame of the response, whatever its flags.
    ///
    /// `body` is a whole envelope. Its message type is not checked against the generation.
    pub async fn request_raw(&self, flags: Flags, body: impl Into<Bytes>) -> Result<RawFrame, AgentClientError> {
        let mut stream = self.stream_raw(flags, body).await?;
        let frame = stream.session.next().await?;
        // After the first response, the operation is no longer owned by this call.
        stream.session.cancel_by(CancelMessage::Nothing);
        Ok(frame)
    }

    /// Sends a frame with a new id and returns all frames of the response.
    pub async fn stream_raw(&self, flags: Flags, body: impl Into<Bytes>) -> Result<RawStream, AgentClientError> {
        let body = body.into();
        let (connection, id) = self.reserve().await?;
        let session = connection.session(id, FrameInbox::new(UNCREDITED), CancelMessage::of_body(&body)).await?;
        let session = session.start(|link| link.send_raw(id, flags, body))?;
        Ok(RawStream { session, over: false })
    }

    /// Sends another frame with an id of this client, or an uncorrelated one with id 0.
    pub async fn send_raw(&self, id: u32, flags: Flags, body: impl Into<Bytes>) -> Result<(), AgentClientError> {
        let connection = self.owner_of(id);
        connection.link.outbox.room().await;
        connection.link.send_raw(id, flags, body.into())
    }
}

// === impl RawStream ===

impl RawStream {
    /// The id to pass to [`AgentClient::send_raw`].
    pub fn id(&self) -> u32 {
        self.session.id()
    }

    /// The next frame; `None` after the one with [`Flags::TERMINAL`].
    pub async fn next(&mut self) -> Result<Option<RawFrame>, AgentClientError> {
        if self.over {
            return Ok(None);
        }
        let frame = self.session.next().await?;
        self.over = frame.is_terminal();
        Ok(Some(frame))
    }

    /// Sends another frame of this id.
    pub async fn send(&self, flags: Flags, body: impl Into<Bytes>) -> Result<(), AgentClientError> {
        self.session.link().outbox.room().await;
        self.session.link().send_raw(self.id(), flags, body.into())
    }

    /// Releases the stream, like drop.
    pub fn close(self) {}
}
