//! Port forwarding in this process, for sandboxes whose shim is of a release that does not serve ports.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use carrel_agent_client::{AgentClient, AgentClientError, TcpReader, TcpWriter};
use carrel_control::provider::ProviderError;
use carrel_control::spec::Port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use crate::failed;

/// The limit of connections per sandbox: below the agent's limit for a client. Further ones wait.
const MOST: usize = 256;
/// The size of a read.
const PIECE: usize = 64 * 1024;
/// How long an agent may take to answer a ping.
const ANSWER: Duration = Duration::from_secs(1);
/// How long to wait before accepting again when the system is out of resources.
const FULL: Duration = Duration::from_millis(100);

/// The connection to the agent of a sandbox, which all forwarded ports share.
#[derive(Debug)]
pub(crate) struct AgentConnection {
    socket: PathBuf,
    /// Connected on first use.
    client: Mutex<Option<AgentClient>>,
    connections: AtomicUsize,
    room: Arc<Semaphore>,
}

/// Forwarded ports. Dropping closes them and all connections soon.
#[derive(Debug)]
pub(crate) struct PortForwards {
    ports: Vec<Port>,
    listening: JoinSet<()>,
}

/// Counts a connection until it is dropped.
struct CountedConnection(Arc<AgentConnection>);

// === impl AgentConnection ===

impl AgentConnection {
    pub(crate) fn new(socket: PathBuf) -> Self {
        let (client, connections) = (Mutex::default(), AtomicUsize::new(0));
        Self { socket, client, connections, room: Arc::new(Semaphore::new(MOST)) }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Whether the agent counts this process as a client.
    pub(crate) async fn is_connected(&self) -> bool {
        let mut kept = self.client.lock().await;
        let Some(client) = kept.as_ref() else { return false };
        // An agent that does not answer may be paused, and still has the connection.
        let is_lost = matches!(tokio::time::timeout(ANSWER, client.ping()).await, Ok(Err(_)));
        if is_lost {
            *kept = None;
        }
        !is_lost
    }

    async fn client(&self) -> Result<AgentClient, ProviderError> {
        let mut kept = self.client.lock().await;
        match kept.as_ref() {
            Some(client) => Ok(client.clone()),
            None => Ok(kept.insert(AgentClient::connect(&self.socket).await.map_err(failed)?).clone()),
        }
    }

    /// Connects to a port inside, on either loopback address.
    async fn reach(&self, port: u16) -> Result<carrel_agent_client::GuestTcpStream, ProviderError> {
        let client = self.client().await?;
        let reached = match client.tcp("127.0.0.1", port).await {
            Err(AgentClientError::Tcp(_)) => client.tcp("::1", port).await,
            reached => reached,
        };
        if let Err(AgentClientError::Lost(_)) = &reached {
            // The next connection reconnects.
            *self.client.lock().await = None;
        }
        reached.map_err(failed)
    }
}

// === impl PortForwards ===

impl PortForwards {
    /// Forwards bound ports to those of a sandbox.
    pub(crate) fn serve(bound: Vec<(Port, TcpListener)>, agent: &Arc<AgentConnection>) -> Self {
        let (ports, mut listening) = (bound.iter().map(|(port, _)| *port).collect(), JoinSet::new());
        for (port, listener) in bound {
            listening.spawn(accept(listener, port.inside, Arc::clone(agent)));
        }
        Self { ports, listening }
    }

    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Closes them: when this returns, they can be bound again.
    pub(crate) async fn close(mut self) {
        self.listening.shutdown().await;
    }
}

/// Accepts connections up to the limit; dropping the future closes them.
async fn accept(listener: TcpListener, inside: u16, agent: Arc<AgentConnection>) {
    let mut joined = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(room) = Arc::clone(&agent.room).acquire_owned().await else { return };
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_over) = joined.join_next() => {}
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let counted = CountedConnection::new(&agent);
                joined.spawn(async move {
                    join(stream, inside, &counted.0).await;
                    drop((counted, room));
                });
            }
            // The peer disconnected, or there are no descriptors.
            Err(_) => tokio::time::sleep(FULL).await,
        }
    }
}

/// Forwards in both directions until both sides are shut down. If one side is reset, so is the other.
async fn join(mut outside: TcpStream, port: u16, agent: &AgentConnection) {
    let joined = async {
        let inside = agent.reach(port).await?;
        // Small messages are not to be delayed.
        let _at_once = outside.set_nodelay(true);
        let (from_outside, to_outside) = outside.split();
        let (from_inside, to_inside) = inside.into_split();
        tokio::try_join!(inward(from_outside, to_inside), outward(from_inside, to_outside)).map(drop)
    };
    if joined.await.is_err() {
        // The peer sees a reset instead of an end of stream.
        let _broken = rustix::net::sockopt::set_socket_linger(&outside, Some(Duration::ZERO));
    }
}

async fn inward(mut from: ReadHalf<'_>, mut to: TcpWriter) -> Result<(), ProviderError> {
    loop {
        let mut piece = BytesMut::with_capacity(PIECE);
        if from.read_buf(&mut piece).await.map_err(failed)? == 0 {
            return finished(to.shutdown().await);
        }
        match to.write(piece.freeze()).await {
            Ok(()) => {}
            // The other side reads no more, but may still write.
            Err(AgentClientError::InputClosed) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
    }
}

async fn outward(mut from: TcpReader, mut to: WriteHalf<'_>) -> Result<(), ProviderError> {
    while let Some(piece) = from.read().await.map_err(failed)? {
        to.write_all(&piece).await.map_err(failed)?;
    }
    to.shutdown().await.map_err(failed)
}

fn finished(outcome: Result<(), AgentClientError>) -> Result<(), ProviderError> {
    match outcome {
        Ok(()) | Err(AgentClientError::InputClosed) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

// === impl CountedConnection ===

impl CountedConnection {
    fn new(agent: &Arc<AgentConnection>) -> Self {
        agent.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(agent))
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
