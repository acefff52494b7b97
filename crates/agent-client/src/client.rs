//! The client and its connections.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use carrel_protocol::payload::{Ping, Pong, Ready, Shutdown, Touch, Touched};
use carrel_protocol::{Generation, MessageType, Payload};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cancel::CancelMessage;
use crate::connection::AgentConnection;
use crate::error::{AgentClientError, ConnectError, ConnectionLost, UnsupportedOperation};
use crate::handshake::HandshakeMode;
use crate::inbox::{FrameInbox, UNCREDITED};
use crate::link::FrameHandler;
use crate::options::ConnectOptions;
use crate::path::socket_path;
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// A client of the agent in one sandbox. Clones share the connection.
///
/// Ids are never reused on a connection. A client with a path reconnects before they run out: new operations use the
/// new connection, while running ones finish on theirs. A lost connection is not reestablished.
///
/// ```no_run
/// use carrel_agent_client::{AgentClient, ConnectOptions, ExecEvent, ExecRequest};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = AgentClient::connect_sandbox("/var/lib/carrel", "demo", ConnectOptions::default()).await?;
/// client.files().write_all("/tmp/note", "hello\n").await?;
///
/// let request = ExecRequest { cmd: "cat".into(), args: vec!["/tmp/note".into()], ..ExecRequest::default() };
/// let mut exec = client.exec(request).await?;
/// while let Some(event) = exec.next().await? {
///     match event {
///         ExecEvent::Stdout(data) => print!("{}", String::from_utf8_lossy(&data)),
///         ExecEvent::Exited { code, .. } => assert_eq!(code, 0),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AgentClient {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    /// The socket to reconnect to.
    endpoint: Option<(PathBuf, ConnectOptions)>,
    connections: Mutex<ConnectionSet>,
    reconnecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct ConnectionSet {
    current: Arc<AgentConnection>,
    /// Connections that ran out of ids and are only kept alive by running operations.
    earlier: Vec<Weak<AgentConnection>>,
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
        let connection = AgentConnection::connect(path, &options).await?;
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

    /// Performs the handshake on a stream that begins with an id range, such as a relay's.
    ///
    /// The client cannot reconnect: when its ids run out, operations fail with [`AgentClientError::IdsExhausted`].
    pub async fn connect_stream<S>(stream: S, options: ConnectOptions) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self::new(AgentConnection::over(reader, writer, HandshakeMode::Prologue, &options).await?, None))
    }

    /// Performs the handshake on an agent's own channel, which begins with `core.ready` and whose ids all belong to
    /// this client.
    pub async fn connect_channel<S>(stream: S, options: ConnectOptions) -> Result<Self, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self::new(AgentConnection::over(reader, writer, HandshakeMode::Ready, &options).await?, None))
    }

    fn new(connection: Arc<AgentConnection>, endpoint: Option<(PathBuf, ConnectOptions)>) -> Self {
        let connections = ConnectionSet { current: connection, earlier: Vec::new(), closed: false };
        let (connections, reconnecting) = (Mutex::new(connections), tokio::sync::Mutex::default());
        Self { inner: Arc::new(ClientInner { endpoint, connections, reconnecting }) }
    }

    /// The negotiated generation of the connection.
    pub fn generation(&self) -> Generation {
        self.current().link.generation()
    }

    /// Whether the agent supports a message type.
    pub fn supports(&self, feature: MessageType) -> bool {
        self.ensure_version_compat(feature).is_ok()
    }

    /// Returns an error for a message type that the agent does not support. Every typed call checks this before it
    /// sends.
    pub fn ensure_version_compat(&self, feature: MessageType) -> Result<(), UnsupportedOperation> {
        self.current().link.ensure(feature)
    }

    /// The `core.ready` of the agent.
    pub fn ready(&self) -> Ready {
        self.current().link.negotiated.ready.clone()
    }

    /// The encoded body of the `core.ready` frame.
    pub fn ready_bytes(&self) -> Bytes {
        self.current().link.negotiated.ready_bytes.clone()
    }

    /// Checks that the agent responds.
    pub async fn ping(&self) -> Result<(), AgentClientError> {
        self.call::<Pong, _>(&Ping {}).await.map(drop)
    }

    /// Reports activity; returns the number of activities that the agent has recorded.
    pub async fn touch(&self) -> Result<u64, AgentClientError> {
        self.call::<Touched, _>(&Touch {}).await.map(|touched| touched.activity_seq)
    }

    /// Shuts the sandbox down. The only response is the end of the connection.
    pub async fn shutdown(&self) -> Result<(), AgentClientError> {
        let connection = self.current();
        connection.link.outbox.room().await;
        connection.link.send(0, &Shutdown)
    }

    /// Closes the connection and terminates every operation. Idempotent.
    pub fn close(&self) {
        let mut connections = self.lock();
        connections.closed = true;
        let all = std::iter::once(Arc::clone(&connections.current));
        let all: Vec<_> = all.chain(connections.earlier.drain(..).filter_map(|earlier| earlier.upgrade())).collect();
        drop(connections);
        all.iter().for_each(|connection| connection.link.fail(ConnectionLost::Closed));
    }

    /// Opens an operation on a connection that has ids left.
    pub(crate) async fn open<'b, S: FrameHandler, P: Payload<'b>>(
        &self,
        handler: S,
        payload: &P,
        cancel: CancelMessage,
    ) -> Result<ProtocolSession<S>, AgentClientError> {
        self.ensure_version_compat(P::TYPE)?;
        let (connection, id) = self.reserve().await?;
        connection.open(id, handler, payload, cancel).await
    }

    async fn call<'b, A: for<'p> Payload<'p>, Q: Payload<'b>>(&self, question: &Q) -> Result<A, AgentClientError> {
        let session = self.open(FrameInbox::new(UNCREDITED), question, CancelMessage::Nothing).await?;
        let frame = session.next().await?;
        ParsedFrame::parse(&frame)?.expect()
    }

    /// A new id and its connection.
    pub(crate) async fn reserve(&self) -> Result<(Arc<AgentConnection>, u32), AgentClientError> {
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
            let fresh = AgentConnection::connect(path, options)
                .await
                .map_err(|error| AgentClientError::Reconnect(Box::new(error)))?;
            let id = fresh.link.allocate(fresh.reserve()).ok_or(AgentClientError::IdsExhausted)?;
            self.replace(&fresh)?;
            return Ok((fresh, id));
        }
    }

    /// The connection whose range contains `id`; otherwise the current one.
    pub(crate) fn owner_of(&self, id: u32) -> Arc<AgentConnection> {
        let connections = self.lock();
        let earlier = connections.earlier.iter().rev().filter_map(Weak::upgrade);
        let mut all = std::iter::once(Arc::clone(&connections.current)).chain(earlier);
        all.find(|connection| connection.link.ids().contains(id)).unwrap_or_else(|| Arc::clone(&connections.current))
    }

    pub(crate) fn current(&self) -> Arc<AgentConnection> {
        Arc::clone(&self.lock().current)
    }

    fn replace(&self, fresh: &Arc<AgentConnection>) -> Result<(), AgentClientError> {
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

    fn lock(&self) -> MutexGuard<'_, ConnectionSet> {
        self.inner.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
