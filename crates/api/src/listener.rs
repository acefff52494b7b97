//! Listens for clients, and accepts their connections.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use carrel_control::{Caller, DescriptorUse, Descriptors};
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::connection::{ApiConnection, ConnectionPeer, ConnectionPermit, HANDSHAKE};
use crate::key::ApiKey;
use crate::local_connections::{self, LocalConnections};
use crate::memory::RequestMemory;
use crate::tls::TlsConfig;

/// How many clients may be in their handshake at a time.
const MAX_HANDSHAKES: usize = 256;
/// How many accepted connections are queued.
const BACKLOG: usize = 16;
/// The maximum number of connections of a TCP listener, including those that are not authenticated yet.
const MAX_REMOTE_CONNECTIONS: usize = 1024;
/// The minimum number of connections of a listener.
const MIN_CONNECTIONS: usize = 16;
/// The delay before a full listener accepts again, since the kernel does not notify.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Accepts clients.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket: the kernel authenticates its clients.
    Unix(UnixListener),
    /// A TCP port, whose clients need a certificate or a key.
    Tcp { listener: TcpListener, credentials: ListenerCredentials },
}

/// The TLS settings and the key of a listener, which can be replaced at run time. Clones share them.
#[derive(Clone, Debug)]
pub struct ListenerCredentials(Arc<RwLock<ConnectionCredentials>>);

/// The credentials that apply to a new connection.
#[derive(Clone, Debug)]
struct ConnectionCredentials {
    tls: Option<TlsConfig>,
    /// The key that every request must contain.
    key: Option<Arc<ApiKey>>,
}

/// Accepts TCP connections.
#[derive(Clone)]
struct RemoteAcceptor {
    credentials: ListenerCredentials,
    handshakes: Arc<Semaphore>,
    capacity: ListenerCapacity,
    memory: RequestMemory,
}

/// The capacity of a TCP listener.
#[derive(Clone)]
struct ListenerCapacity {
    permits: Arc<Semaphore>,
    descriptors: Descriptors,
}

// === impl ListenerCapacity ===

impl ListenerCapacity {
    /// Waits for a permit for one more connection.
    async fn reserve(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        wait_for_descriptors(&self.descriptors).await;
        Some(permit)
    }
}

/// Returns when there is a descriptor for one more connection.
async fn wait_for_descriptors(descriptors: &Descriptors) {
    if !descriptors.has_room(DescriptorUse::Connection) {
        tracing::warn!("too few file descriptors; new connections wait until some are closed");
        while !descriptors.has_room(DescriptorUse::Connection) {
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Whether all clients are authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { credentials, .. } => {
                let ConnectionCredentials { tls, key } = credentials.current();
                key.is_some() || tls.as_ref().is_some_and(TlsConfig::requires_client_certificate)
            }
        }
    }

    /// The maximum number of connections, for one of this many listeners. Local listeners use at most half of the
    /// descriptors, and leave the rest to sandboxes.
    pub(crate) fn max_connections(&self, listeners: usize) -> usize {
        match self {
            Self::Unix(_) => {
                local_connections::MAX_CONNECTIONS.min(share(getrlimit(Resource::Nofile).current, listeners))
            }
            Self::Tcp { .. } => MAX_REMOTE_CONNECTIONS.min(share(getrlimit(Resource::Nofile).current, 2)),
        }
    }

    /// Accepts connections until the receiver is dropped. Clients wait while the limit is reached or there are too few
    /// descriptors. A local user with too many connections is refused at once.
    pub(crate) async fn accept(
        self,
        max: usize,
        descriptors: Descriptors,
        memory: RequestMemory,
        connections: mpsc::Sender<ApiConnection>,
    ) {
        match self {
            Self::Unix(listener) => {
                accept_local(&listener, LocalConnections::new(max), &descriptors, &memory, &connections).await;
            }
            Self::Tcp { listener, credentials } => {
                let capacity = ListenerCapacity { permits: Arc::new(Semaphore::new(max)), descriptors };
                let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
                let remote = RemoteAcceptor { credentials, handshakes, capacity, memory };
                remote.accept(&listener, &connections).await;
            }
        }
    }
}

// === impl ListenerCredentials ===

impl ListenerCredentials {
    /// Creates the credentials of a listener.
    pub fn new(tls: Option<TlsConfig>, key: Option<ApiKey>) -> Self {
        Self(Arc::new(RwLock::new(ConnectionCredentials { tls, key: key.map(Arc::new) })))
    }

    /// Replaces the credentials for new connections.
    pub fn replace(&self, tls: Option<TlsConfig>, key: Option<ApiKey>) {
        let new = ConnectionCredentials { tls, key: key.map(Arc::new) };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn current(&self) -> ConnectionCredentials {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A queue of accepted connections.
pub(crate) fn queue() -> (mpsc::Sender<ApiConnection>, mpsc::Receiver<ApiConnection>) {
    mpsc::channel(BACKLOG)
}

fn share(files: Option<u64>, listeners: usize) -> usize {
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files / 2 / listeners.max(1)).clamp(MIN_CONNECTIONS, Semaphore::MAX_PERMITS)
}

async fn accept_local(
    listener: &UnixListener,
    mut permits: LocalConnections,
    descriptors: &Descriptors,
    memory: &RequestMemory,
    connections: &mpsc::Sender<ApiConnection>,
) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        wait_for_descriptors(descriptors).await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                back_off(&error).await;
                continue;
            }
        };
        // The credentials of a client that disconnected are not available.
        let Ok(credentials) = stream.peer_cred() else { continue };
        let (user, group) = (credentials.uid(), credentials.gid());
        let caller = Caller { user, group, trusted: user == own };
        // A connection beyond the limit is closed at once.
        let Some(permit) = permits.admit(&caller) else { continue };
        let permit = ConnectionPermit::Local { _permit: permit };
        if connections.send(ApiConnection::new(stream, ConnectionPeer::Local(caller), permit, memory)).await.is_err() {
            return;
        }
    }
}

async fn back_off(error: &std::io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(RETRY_DELAY).await;
}

// === impl RemoteAcceptor ===

impl RemoteAcceptor {
    async fn accept(&self, listener: &TcpListener, connections: &mpsc::Sender<ApiConnection>) {
        while !connections.is_closed() {
            let Some(permit) = self.capacity.reserve().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    back_off(&error).await;
                    continue;
                }
            };
            let Ok(handshake_permit) = Arc::clone(&self.handshakes).acquire_owned().await else { return };
            let (remote, connections) = (self.clone(), connections.clone());
            // A slow handshake does not block other clients.
            tokio::spawn(async move {
                let connection = timeout(HANDSHAKE, remote.handshake(stream, permit)).await;
                drop(handshake_permit);
                match connection {
                    Ok(Ok(connection)) => drop(connections.send(connection).await),
                    Ok(Err(error)) => tracing::debug!(%error, "a client was rejected"),
                    Err(_) => tracing::debug!("a client did not complete its handshake in time"),
                }
            });
        }
    }

    async fn handshake(self, stream: TcpStream, permit: OwnedSemaphorePermit) -> std::io::Result<ApiConnection> {
        stream.set_nodelay(true)?;
        let ConnectionCredentials { tls, key } = self.credentials.current();
        let (peer, permit) = (ConnectionPeer::Remote(key), ConnectionPermit::Remote { _permit: permit });
        match tls {
            None => Ok(ApiConnection::new(stream, peer, permit, &self.memory)),
            Some(tls) => Ok(ApiConnection::new(tls.acceptor().accept(stream).await?, peer, permit, &self.memory)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream as StdTcp;
    use std::os::unix::net::UnixStream as StdUnix;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::memory::MemoryLimits;

    const LONG: Duration = Duration::from_secs(3600);

    fn memory() -> RequestMemory {
        RequestMemory::new(MemoryLimits::default())
    }

    #[tokio::test(start_paused = true)]
    async fn connections_beyond_the_limit_of_a_port_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener::Tcp { listener, credentials: ListenerCredentials::new(None, None) };
        let connect = || StdTcp::connect(address).unwrap();
        let _clients = [connect(), connect(), connect()];
        let (sender, mut connections) = queue();
        tokio::spawn(listener.accept(2, Descriptors::default(), memory(), sender));
        let served = [connections.recv().await, connections.recv().await];
        assert!(served.iter().all(Option::is_some));
        assert!(timeout(LONG, connections.recv()).await.is_err(), "there is no capacity for a third");
        drop(served);
        assert!(connections.recv().await.is_some());
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_of_a_socket_are_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let (sender, mut connections) = queue();
        tokio::spawn(listener.accept(2, Descriptors::default(), memory(), sender));
        let clients = [(); 2].map(|()| StdUnix::connect(&path).unwrap());
        let served = [connections.recv().await.unwrap(), connections.recv().await.unwrap()];
        let mut refused = tokio::net::UnixStream::connect(&path).await.unwrap();
        assert_eq!(refused.read(&mut [0; 1]).await.unwrap(), 0);
        drop((clients, served));
        let _client = StdUnix::connect(&path).unwrap();
        assert!(connections.recv().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_wait_while_there_are_too_few_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let open = Arc::new(AtomicU64::new(1024));
        let counted = Arc::clone(&open);
        let descriptors = Descriptors::new(|| 1024, move || counted.load(Ordering::Relaxed));
        let (sender, mut connections) = queue();
        tokio::spawn(listener.accept(2, descriptors, memory(), sender));
        let _client = StdUnix::connect(&path).unwrap();
        assert!(timeout(Duration::from_secs(1), connections.recv()).await.is_err(), "there is no descriptor for it");
        open.store(0, Ordering::Relaxed);
        assert!(connections.recv().await.is_some());
    }

    #[test]
    fn half_of_the_descriptors_are_left_for_sandboxes() {
        assert_eq!((share(Some(4096), 2), share(Some(4096), 1)), (1024, 2048));
        assert_eq!((share(Some(8), 3), share(None, 1)), (MIN_CONNECTIONS, Semaphore::MAX_PERMITS));
    }
}
