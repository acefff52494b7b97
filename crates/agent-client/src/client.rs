//! The client, and the connections below it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use carrel_protocol::payload::{Ping, Pong, Ready, Shutdown, Touch, Touched};
use carrel_protocol::{Generation, MessageType, Payload};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cancel::Cancel;
use crate::connection::Connection;
use crate::error::{ConnectError, ConnectionLost, Error, UnsupportedOperation};
use crate::handshake::Opening;
use crate::inbox::{Inbox, UNCREDITED};
use crate::link::Sink;
use crate::options::ConnectOptions;
use crate::path::socket_path;
use crate::reply::Message;
use crate::session::Session;

/// A client of the agent in one sandbox. Clones share the connection.
///
/// Ids are never used twice on a connection. A client that was given a path connects again before they run out: new
/// operations go to the fresh connection, while those under way end on theirs. A connection that is lost stays lost.
#[derive(Clone, Debug)]
pub struct AgentClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where to connect again.
    endpoint: Option<(PathBuf, ConnectOptions)>,
    connections: Mutex<Connections>,
    reconnecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Connections {
    current: Arc<Connection>,
    /// Those that ran out of ids and are kept only by what still runs on them.
    earlier: Vec<Weak<Connection>>,
    closed: bool,
}

// === impl AgentClient ===

impl AgentClient {
    /// Connects to the socket at `path`.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        Self::connect_with(path, ConnectOptions::default()).await
    }

    /// Connects to the socket at `path`.
    pub async fn connect_with(path: impl AsRef<Path>, options: ConnectOptions) -> Result<Self, ConnectError> {
        let path = path.as_ref();
        let connection = Connection::connect(path, &options).await?;
        Ok(Self::new(connection, Some((path.to_owned(), options))))
    }

    /// Connects to the sandbox `name` below `home`; see [`socket_path`].
    pub async fn connect_sandbox(
        home: impl AsRef<Path>,
        name: &str,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        Self::connect_with(socket_path(home.as_ref(), name)?, options).await
    }

    /// Shakes hands on a stream that begins with an id range, as a relay's does.
    ///
    /// It cannot be made again: when its ids run out, operations fail with [`Error::IdsExhausted`].
    pub async fn connect_stream<S>(stream: S, options: ConnectOptions) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self::new(Connection::over(reader, writer, Opening::Prologue, &options).await?, None))
    }

    /// Shakes hands on an agent's own channel, which begins with `core.ready` and whose ids all belong to this client.
    pub async fn connect_channel<S>(stream: S, options: ConnectOptions) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self::new(Connection::over(reader, writer, Opening::Ready, &options).await?, None))
    }

    fn new(connection: Arc<Connection>, endpoint: Option<(PathBuf, ConnectOptions)>) -> Self {
        let connections = Connections { current: connection, earlier: Vec::new(), closed: false };
        let (connections, reconnecting) = (Mutex::new(connections), tokio::sync::Mutex::default());
        Self { inner: Arc::new(Inner { endpoint, connections, reconnecting }) }
    }

    /// The generation that this connection agreed on.
    pub fn generation(&self) -> Generation {
        self.current().link.generation()
    }

    /// Whether the agent is new enough for a message.
    pub fn supports(&self, feature: MessageType) -> bool {
        self.ensure_version_compat(feature).is_ok()
    }

    /// Refuses a message that the agent is too old for. Every typed call asks this before it sends.
    pub fn ensure_version_compat(&self, feature: MessageType) -> Result<(), UnsupportedOperation> {
        self.current().link.ensure(feature)
    }

    /// What the agent said when the client connected.
    pub fn ready(&self) -> Ready {
        self.current().link.agreement.ready.clone()
    }

    /// The body of the `core.ready` frame, as it came when the client connected.
    pub fn ready_bytes(&self) -> Bytes {
        self.current().link.agreement.ready_bytes.clone()
    }

    /// Asks whether the agent is there.
    pub async fn ping(&self) -> Result<(), Error> {
        self.ask::<Pong, _>(&Ping {}).await.map(drop)
    }

    /// Counts as activity; returns how many activities the agent has counted.
    pub async fn touch(&self) -> Result<u64, Error> {
        self.ask::<Touched, _>(&Touch {}).await.map(|touched| touched.activity_seq)
    }

    /// Shuts the sandbox down. There is no answer but the end of the connection.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let connection = self.current();
        connection.link.outbox.room().await;
        connection.link.send(0, &Shutdown)
    }

    /// Closes the connection and ends every operation. Calling it again changes nothing.
    pub fn close(&self) {
        let mut connections = self.lock();
        connections.closed = true;
        let all = std::iter::once(Arc::clone(&connections.current));
        let all: Vec<_> = all.chain(connections.earlier.drain(..).filter_map(|earlier| earlier.upgrade())).collect();
        drop(connections);
        all.iter().for_each(|connection| connection.link.lose(ConnectionLost::Closed));
    }

    /// Opens an operation on a connection that still has ids for it.
    pub(crate) async fn open<'b, S: Sink, P: Payload<'b>>(
        &self,
        sink: S,
        payload: &P,
        cancel: Cancel,
    ) -> Result<Session<S>, Error> {
        self.ensure_version_compat(P::TYPE)?;
        let (connection, id) = self.reserve().await?;
        connection.open(id, sink, payload, cancel).await
    }

    async fn ask<'b, A: for<'p> Payload<'p>, Q: Payload<'b>>(&self, question: &Q) -> Result<A, Error> {
        let session = self.open(Inbox::new(UNCREDITED), question, Cancel::Nothing).await?;
        let frame = session.next().await?;
        Message::parse(&frame)?.expect()
    }

    /// An id that was never used, and the connection it belongs to.
    pub(crate) async fn reserve(&self) -> Result<(Arc<Connection>, u32), Error> {
        loop {
            let connection = self.current();
            connection.link.check()?;
            let Some((path, options)) = &self.inner.endpoint else {
                let id = connection.pinned_id()?;
                return Ok((connection, id));
            };
            if let Some(id) = connection.link.allocate(connection.reserve()) {
                return Ok((connection, id));
            }
            let _turn = self.inner.reconnecting.lock().await;
            if !Arc::ptr_eq(&connection, &self.current()) {
                continue;
            }
            let fresh = Connection::connect(path, options).await.map_err(|error| Error::Reconnect(Box::new(error)))?;
            let id = fresh.link.allocate(fresh.reserve()).ok_or(Error::IdsExhausted)?;
            self.replace(&fresh)?;
            return Ok((fresh, id));
        }
    }

    /// The connection whose ids `id` is one of; for none, the current one.
    pub(crate) fn owner_of(&self, id: u32) -> Arc<Connection> {
        let connections = self.lock();
        let earlier = connections.earlier.iter().rev().filter_map(Weak::upgrade);
        let mut all = std::iter::once(Arc::clone(&connections.current)).chain(earlier);
        all.find(|connection| connection.link.ids().contains(id)).unwrap_or_else(|| Arc::clone(&connections.current))
    }

    pub(crate) fn current(&self) -> Arc<Connection> {
        Arc::clone(&self.lock().current)
    }

    fn replace(&self, fresh: &Arc<Connection>) -> Result<(), Error> {
        let mut connections = self.lock();
        if connections.closed {
            return Err(ConnectionLost::Closed.into());
        }
        let used_up = std::mem::replace(&mut connections.current, Arc::clone(fresh));
        connections.earlier.retain(|earlier| earlier.strong_count() > 0);
        connections.earlier.push(Arc::downgrade(&used_up));
        drop(connections);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.inner.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
