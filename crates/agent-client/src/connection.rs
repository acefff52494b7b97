//! A connection, which is closed when its last user drops it.

use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::cancel::CancelMessage;
use crate::error::{AgentClientError, ConnectError, ConnectionLost};
use crate::handshake::{HandshakeMode, shake_hands};
use crate::inbox::FrameInbox;
use crate::link::{AgentLink, FrameHandler};
use crate::options::ConnectOptions;
use crate::outbox::FrameOutbox;
use crate::reader::FrameReader;
use crate::session::ProtocolSession;

/// A connection to an agent, closed on drop.
#[derive(Debug)]
pub(crate) struct AgentConnection {
    pub(crate) link: Arc<AgentLink>,
}

/// The kernel's send buffer of the connection.
const SEND_BUFFER: usize = 1024 * 1024;

/// Enlarges the send buffer. The kernel wakes a sender when three quarters of its buffer are empty: with the default
/// size, the reader would be idle by the time the sender runs.
fn enlarge_send_buffer(stream: &UnixStream) {
    let forced = rustix::net::sockopt::set_socket_send_buffer_size_force(stream, SEND_BUFFER);
    // Without privileges, the system-wide maximum applies.
    let _most = forced.or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER));
}

// === impl AgentConnection ===

impl AgentConnection {
    /// Connects to a socket and performs the handshake.
    pub(crate) async fn connect(path: &Path, options: &ConnectOptions) -> Result<Arc<Self>, ConnectError> {
        crate::path::check(path)?;
        let attempt = async {
            let stream = UnixStream::connect(path).await;
            let stream = stream.map_err(|source| ConnectError::Socket { path: path.to_owned(), source })?;
            enlarge_send_buffer(&stream);
            let (reader, writer) = stream.into_split();
            Self::begin(reader, writer, HandshakeMode::Prologue, options).await
        };
        timeout(options.timeout, attempt).await.unwrap_or(Err(ConnectError::TimedOut(options.timeout)))
    }

    /// Performs the handshake on a stream.
    pub(crate) async fn over(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        mode: HandshakeMode,
        options: &ConnectOptions,
    ) -> Result<Arc<Self>, ConnectError> {
        let attempt = Self::begin(reader, writer, mode, options);
        timeout(options.timeout, attempt).await.unwrap_or(Err(ConnectError::TimedOut(options.timeout)))
    }

    async fn begin(
        reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
        mode: HandshakeMode,
        options: &ConnectOptions,
    ) -> Result<Arc<Self>, ConnectError> {
        let mut frames = FrameReader::new(reader);
        let negotiated = shake_hands(&mut frames, &mut writer, mode, options).await?;
        let link = AgentLink::spawn(negotiated, frames, FrameOutbox::new(Box::new(writer)));
        Ok(Arc::new(Self { link }))
    }

    /// Ids reserved for operations that cannot move to another connection, such as those on open files.
    pub(crate) fn reserve(&self) -> u32 {
        let ids = self.link.ids();
        ((ids.end() - ids.start()) / 2).min(1 << 16)
    }

    /// A new id for an operation on this connection.
    pub(crate) fn pinned_id(&self) -> Result<u32, AgentClientError> {
        self.link.allocate(0).ok_or(AgentClientError::IdsExhausted)
    }

    /// Opens an operation with a typed message.
    pub(crate) async fn open<'b, S: FrameHandler, P: carrel_protocol::Payload<'b>>(
        self: &Arc<Self>,
        id: u32,
        handler: S,
        payload: &P,
        cancel: CancelMessage,
    ) -> Result<ProtocolSession<S>, AgentClientError> {
        self.link.ensure(P::TYPE)?;
        let session = self.session(id, handler, cancel).await?;
        session.start(|link| link.send(id, payload))
    }

    /// Sends a request with a single response on this connection.
    pub(crate) async fn open_pinned<'b, P: carrel_protocol::Payload<'b>>(
        self: &Arc<Self>,
        budget: usize,
        payload: &P,
        cancel: CancelMessage,
    ) -> Result<ProtocolSession, AgentClientError> {
        self.link.ensure(P::TYPE)?;
        self.open(self.pinned_id()?, FrameInbox::new(budget), payload, cancel).await
    }

    /// Waits until it may send, and for frames of this id.
    pub(crate) async fn session<S: FrameHandler>(
        self: &Arc<Self>,
        id: u32,
        handler: S,
        cancel: CancelMessage,
    ) -> Result<ProtocolSession<S>, AgentClientError> {
        self.link.outbox.room().await;
        let handler = Arc::new(handler);
        self.link.register(id, Arc::<S>::clone(&handler))?;
        Ok(ProtocolSession::new(Arc::clone(self), id, handler, cancel))
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.link.fail(ConnectionLost::Closed);
    }
}
