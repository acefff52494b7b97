//! A connection as its users hold it: it lives as long as one of them does.

use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::cancel::Cancel;
use crate::error::{ConnectError, ConnectionLost, Error};
use crate::handshake::{Opening, shake_hands};
use crate::inbox::Inbox;
use crate::link::{Link, Sink};
use crate::options::ConnectOptions;
use crate::outbox::Outbox;
use crate::reader::FrameReader;
use crate::session::Session;

/// A connection; dropped by its last user, it is closed.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
}

/// How much may wait in the kernel for the agent to read it.
const SEND_BUFFER: usize = 1024 * 1024;

/// Makes room for what waits. A sender is woken when three quarters of its buffer are empty: with the usual size the
/// reader has nothing left to do by the time the sender runs.
fn widen(stream: &UnixStream) {
    let forced = rustix::net::sockopt::set_socket_send_buffer_size_force(stream, SEND_BUFFER);
    // Without the privilege, as much as the system allows everyone.
    let _most = forced.or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER));
}

// === impl Connection ===

impl Connection {
    /// Connects to a socket and shakes hands.
    pub(crate) async fn connect(path: &Path, options: &ConnectOptions) -> Result<Arc<Self>, ConnectError> {
        crate::path::check(path)?;
        let attempt = async {
            let stream = UnixStream::connect(path).await;
            let stream = stream.map_err(|source| ConnectError::Socket { path: path.to_owned(), source })?;
            widen(&stream);
            let (reader, writer) = stream.into_split();
            Self::begin(reader, writer, Opening::Prologue, options).await
        };
        timeout(options.timeout, attempt).await.unwrap_or(Err(ConnectError::TimedOut(options.timeout)))
    }

    /// Shakes hands on a stream.
    pub(crate) async fn over(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        opening: Opening,
        options: &ConnectOptions,
    ) -> Result<Arc<Self>, ConnectError> {
        let attempt = Self::begin(reader, writer, opening, options);
        timeout(options.timeout, attempt).await.unwrap_or(Err(ConnectError::TimedOut(options.timeout)))
    }

    async fn begin(
        reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
        opening: Opening,
        options: &ConnectOptions,
    ) -> Result<Arc<Self>, ConnectError> {
        let mut frames = FrameReader::new(reader);
        let agreement = shake_hands(&mut frames, &mut writer, opening, options).await?;
        let link = Link::spawn(agreement, frames, Outbox::new(Box::new(writer)));
        Ok(Arc::new(Self { link }))
    }

    /// How many ids are kept for operations that cannot move to another connection, such as those on open files.
    pub(crate) fn reserve(&self) -> u32 {
        let ids = self.link.ids();
        ((ids.end() - ids.start()) / 2).min(1 << 16)
    }

    /// An id for an operation that belongs to this connection.
    pub(crate) fn pinned_id(&self) -> Result<u32, Error> {
        self.link.allocate(0).ok_or(Error::IdsExhausted)
    }

    /// Opens an operation with a typed message.
    pub(crate) async fn open<'b, S: Sink, P: carrel_protocol::Payload<'b>>(
        self: &Arc<Self>,
        id: u32,
        sink: S,
        payload: &P,
        cancel: Cancel,
    ) -> Result<Session<S>, Error> {
        self.link.ensure(P::TYPE)?;
        let session = self.session(id, sink, cancel).await?;
        session.start(|link| link.send(id, payload))
    }

    /// Opens an operation with one answer on this very connection.
    pub(crate) async fn open_pinned<'b, P: carrel_protocol::Payload<'b>>(
        self: &Arc<Self>,
        budget: usize,
        payload: &P,
        cancel: Cancel,
    ) -> Result<Session, Error> {
        self.link.ensure(P::TYPE)?;
        self.open(self.pinned_id()?, Inbox::new(budget), payload, cancel).await
    }

    /// Waits for the turn to send and for frames of this id.
    pub(crate) async fn session<S: Sink>(
        self: &Arc<Self>,
        id: u32,
        sink: S,
        cancel: Cancel,
    ) -> Result<Session<S>, Error> {
        self.link.outbox.room().await;
        let sink = Arc::new(sink);
        self.link.register(id, Arc::<S>::clone(&sink))?;
        Ok(Session::new(Arc::clone(self), id, sink, cancel))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.link.lose(ConnectionLost::Closed);
    }
}
