//! Where clients connect, and how they become connections.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use carrel_control::{Caller, DescriptorUse, Descriptors};
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::connection::{Connection, ConnectionPlace, HANDSHAKE, Peer};
use crate::key::ApiKey;
use crate::local_connections::{self, LocalConnections};
use crate::memory::RequestMemory;
use crate::tls::Tls;

/// How many may show who they are at a time.
const HANDSHAKES: usize = 256;
/// How many connections wait to be served.
const BACKLOG: usize = 16;
/// How many connections a listener for others than this machine has at a time. Who has not shown a key yet has one, too.
const REMOTE: usize = 1024;
/// The fewest that one for this machine has.
const LEAST: usize = 16;
/// How long to leave a listener alone that has no room for one more: the kernel does not tell when it has.
const BUSY: Duration = Duration::from_millis(50);

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// Clients of this machine: the kernel says who they are.
    Unix(UnixListener),
    /// Clients from elsewhere, who have to show a certificate or a key.
    Tcp {
        /// The listener.
        listener: TcpListener,
        /// What it shows, and asks for.
        credentials: ListenerCredentials,
    },
}

/// What a listener shows and asks for, which can be replaced while it listens. Clones are the same.
#[derive(Clone, Debug)]
pub struct ListenerCredentials(Arc<RwLock<Credentials>>);

/// What a connection shows and asks for.
#[derive(Clone, Debug)]
struct Credentials {
    tls: Option<Tls>,
    /// The key that has to come with every request.
    key: Option<Arc<ApiKey>>,
}

/// What becomes of those who connect over TCP.
#[derive(Clone)]
struct Remote {
    credentials: ListenerCredentials,
    shaking: Arc<Semaphore>,
    room: ListenerRoom,
    memory: RequestMemory,
}

/// How many connections a listener for others than this machine may have.
#[derive(Clone)]
struct ListenerRoom {
    places: Arc<Semaphore>,
    descriptors: Descriptors,
}

// === impl ListenerRoom ===

impl ListenerRoom {
    /// A place for one more, as soon as there is one.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        wait_for_descriptors(&self.descriptors).await;
        Some(place)
    }
}

/// Returns when there is a descriptor for one more connection.
async fn wait_for_descriptors(descriptors: &Descriptors) {
    if !descriptors.has_room(DescriptorUse::Connection) {
        tracing::warn!("there are too few file descriptors: new connections wait until some are closed");
        while !descriptors.has_room(DescriptorUse::Connection) {
            tokio::time::sleep(BUSY).await;
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Whether nobody gets in without a word.
    pub(crate) fn is_guarded(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { credentials, .. } => {
                let Credentials { tls, key } = credentials.current();
                key.is_some() || tls.as_ref().is_some_and(Tls::asks_clients)
            }
        }
    }

    /// How many connections it has at a time, as one of so many. Those of this machine have half of the files that may be
    /// open at most: the other half is for sandboxes.
    pub(crate) fn most(&self, listeners: usize) -> usize {
        match self {
            Self::Unix(_) => local_connections::MOST.min(share(getrlimit(Resource::Nofile).current, listeners)),
            Self::Tcp { .. } => REMOTE.min(share(getrlimit(Resource::Nofile).current, 2)),
        }
    }

    /// Accepts until nobody takes the connections any more, at most so many at a time, and none while there are too few
    /// descriptors: whoever comes then waits. A user of this machine who has too many is refused at once.
    pub(crate) async fn accept(
        self,
        most: usize,
        descriptors: Descriptors,
        memory: RequestMemory,
        connections: mpsc::Sender<Connection>,
    ) {
        match self {
            Self::Unix(listener) => {
                accept_local(&listener, LocalConnections::new(most), &descriptors, &memory, &connections).await;
            }
            Self::Tcp { listener, credentials } => {
                let room = ListenerRoom { places: Arc::new(Semaphore::new(most)), descriptors };
                let shaking = Arc::new(Semaphore::new(HANDSHAKES));
                let remote = Remote { credentials, shaking, room, memory };
                remote.accept(&listener, &connections).await;
            }
        }
    }
}

// === impl ListenerCredentials ===

impl ListenerCredentials {
    /// What a listener shows and asks for.
    pub fn new(tls: Option<Tls>, key: Option<ApiKey>) -> Self {
        Self(Arc::new(RwLock::new(Credentials { tls, key: key.map(Arc::new) })))
    }

    /// Replaces it, for connections from now on.
    pub fn replace(&self, tls: Option<Tls>, key: Option<ApiKey>) {
        let new = Credentials { tls, key: key.map(Arc::new) };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn current(&self) -> Credentials {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where accepted connections are taken from.
pub(crate) fn queue() -> (mpsc::Sender<Connection>, mpsc::Receiver<Connection>) {
    mpsc::channel(BACKLOG)
}

fn share(files: Option<u64>, listeners: usize) -> usize {
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files / 2 / listeners.max(1)).clamp(LEAST, Semaphore::MAX_PERMITS)
}

async fn accept_local(
    listener: &UnixListener,
    mut places: LocalConnections,
    descriptors: &Descriptors,
    memory: &RequestMemory,
    connections: &mpsc::Sender<Connection>,
) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        wait_for_descriptors(descriptors).await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        // One who is gone already cannot be asked.
        let Ok(credentials) = stream.peer_cred() else { continue };
        let (user, group) = (credentials.uid(), credentials.gid());
        let caller = Caller { user, group, trusted: user == own };
        // One for whom there is no place is closed at once, and does not wait for an answer.
        let Some(permit) = places.admit(&caller) else { continue };
        let place = ConnectionPlace::Local { _permit: permit };
        if connections.send(Connection::new(stream, Peer::Local(caller), place, memory)).await.is_err() {
            return;
        }
    }
}

async fn pause(error: &std::io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(BUSY).await;
}

// === impl Remote ===

impl Remote {
    async fn accept(&self, listener: &TcpListener, connections: &mpsc::Sender<Connection>) {
        while !connections.is_closed() {
            let Some(place) = self.room.place().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    pause(&error).await;
                    continue;
                }
            };
            let Ok(turn) = Arc::clone(&self.shaking).acquire_owned().await else { return };
            let (remote, connections) = (self.clone(), connections.clone());
            // Whoever is slow to show who they are keeps nobody waiting.
            tokio::spawn(async move {
                let connection = timeout(HANDSHAKE, remote.shake_hands(stream, place)).await;
                drop(turn);
                match connection {
                    Ok(Ok(connection)) => drop(connections.send(connection).await),
                    Ok(Err(error)) => tracing::debug!(%error, "a client was not let in"),
                    Err(_) => tracing::debug!("a client did not say who it is"),
                }
            });
        }
    }

    async fn shake_hands(self, stream: TcpStream, permit: OwnedSemaphorePermit) -> std::io::Result<Connection> {
        stream.set_nodelay(true)?;
        let Credentials { tls, key } = self.credentials.current();
        let (peer, place) = (Peer::Remote(key), ConnectionPlace::Remote { _permit: permit });
        match tls {
            None => Ok(Connection::new(stream, peer, place, &self.memory)),
            Some(tls) => Ok(Connection::new(tls.acceptor().accept(stream).await?, peer, place, &self.memory)),
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
    async fn a_port_has_as_many_connections_as_it_has_room_and_others_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener::Tcp { listener, credentials: ListenerCredentials::new(None, None) };
        let connect = || StdTcp::connect(address).unwrap();
        let _clients = [connect(), connect(), connect()];
        let (give, mut connections) = queue();
        tokio::spawn(listener.accept(2, Descriptors::default(), memory(), give));
        let served = [connections.recv().await, connections.recv().await];
        assert!(served.iter().all(Option::is_some));
        assert!(timeout(LONG, connections.recv()).await.is_err(), "there is no room for a third");
        drop(served);
        assert!(connections.recv().await.is_some());
    }

    #[tokio::test]
    async fn a_socket_closes_connections_that_it_has_no_room_for_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let (give, mut connections) = queue();
        tokio::spawn(listener.accept(2, Descriptors::default(), memory(), give));
        let clients = [(); 2].map(|()| StdUnix::connect(&path).unwrap());
        let served = [connections.recv().await.unwrap(), connections.recv().await.unwrap()];
        let mut refused = tokio::net::UnixStream::connect(&path).await.unwrap();
        assert_eq!(refused.read(&mut [0; 1]).await.unwrap(), 0);
        drop((clients, served));
        let _client = StdUnix::connect(&path).unwrap();
        assert!(connections.recv().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_leaves_clients_waiting_while_descriptors_are_short() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let open = Arc::new(AtomicU64::new(1024));
        let counted = Arc::clone(&open);
        let descriptors = Descriptors::new(|| 1024, move || counted.load(Ordering::Relaxed));
        let (give, mut connections) = queue();
        tokio::spawn(listener.accept(2, descriptors, memory(), give));
        let _client = StdUnix::connect(&path).unwrap();
        assert!(timeout(Duration::from_secs(1), connections.recv()).await.is_err(), "there is no descriptor for it");
        open.store(0, Ordering::Relaxed);
        assert!(connections.recv().await.is_some());
    }

    #[test]
    fn half_of_the_files_that_may_be_open_are_left_for_others() {
        assert_eq!((share(Some(4096), 2), share(Some(4096), 1)), (1024, 2048));
        assert_eq!((share(Some(8), 3), share(None, 1)), (LEAST, Semaphore::MAX_PERMITS));
    }
}
