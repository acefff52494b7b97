//! Frames whose bodies the caller encodes and decodes.

use bytes::Bytes;
use carrel_protocol::Flags;

use crate::cancel::Cancel;
use crate::client::AgentClient;
use crate::error::Error;
use crate::inbox::{Inbox, UNCREDITED};
use crate::session::Session;

/// A frame as it stood on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// The correlation id.
    pub id: u32,
    /// The flag byte.
    pub flags: Flags,
    /// The whole envelope, encoded; with [`Flags::BULK`], a bulk record.
    pub body: Bytes,
}

/// The frames of one id.
///
/// Dropping it before the last frame cancels the operation as its opening message demands; where the protocol has no
/// message for that, late frames are only ignored.
#[derive(Debug)]
pub struct RawStream {
    session: Session,
    over: bool,
}

// === impl AgentClient ===

impl AgentClient {
    /// Sends a frame under an id of its own and returns the first frame that answers it, whatever its flags.
    ///
    /// `body` is a whole envelope. The send gate does not look into it.
    pub async fn request_raw(&self, flags: Flags, body: impl Into<Bytes>) -> Result<RawFrame, Error> {
        let mut stream = self.stream_raw(flags, body).await?;
        let frame = stream.session.next().await?;
        // Answered: what the operation does from now on is no longer this call's.
        stream.session.cancel_by(Cancel::Nothing);
        Ok(frame)
    }

    /// Sends a frame under an id of its own and returns all frames that answer it.
    pub async fn stream_raw(&self, flags: Flags, body: impl Into<Bytes>) -> Result<RawStream, Error> {
        let body = body.into();
        let (connection, id) = self.reserve().await?;
        let session = connection.session(id, Inbox::new(UNCREDITED), Cancel::of_body(&body)).await?;
        let session = session.start(|link| link.send_raw(id, flags, body))?;
        Ok(RawStream { session, over: false })
    }

    /// Sends a further frame under an id of this client, or one without correlation under id 0.
    pub async fn send_raw(&self, id: u32, flags: Flags, body: impl Into<Bytes>) -> Result<(), Error> {
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
    pub async fn next(&mut self) -> Result<Option<RawFrame>, Error> {
        if self.over {
            return Ok(None);
        }
        let frame = self.session.next().await?;
        self.over = frame.is_terminal();
        Ok(Some(frame))
    }

    /// Sends a further frame of this id.
    pub async fn send(&self, flags: Flags, body: impl Into<Bytes>) -> Result<(), Error> {
        self.session.link().outbox.room().await;
        self.session.link().send_raw(self.id(), flags, body.into())
    }

    /// Releases the stream, as dropping it does.
    pub fn close(self) {}
}
