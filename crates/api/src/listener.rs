//! Where clients connect, and how they become connections.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::Caller;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::connection::{Connection, Peer};
use crate::key::ApiKey;
use crate::tls::Tls;

/// How long somebody may take to show who they are.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many may be at that at a time.
const HANDSHAKES: usize = 256;
/// How many connections wait to be served.
const BACKLOG: usize = 16;
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
        tls: Option<Tls>,
        /// The key that has to come with every request.
        key: Option<ApiKey>,
    },
}

/// What becomes of those who connect over TCP.
#[derive(Clone)]
struct Remote {
    tls: Option<Tls>,
    peer: Peer,
    shaking: Arc<Semaphore>,
}

// === impl Listener ===

impl Listener {
    /// Whether nobody gets in without a word.
    pub(crate) fn is_guarded(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { tls, key, .. } => key.is_some() || tls.as_ref().is_some_and(Tls::asks_clients),
        }
    }

    /// Accepts until nobody takes the connections any more.
    pub(crate) async fn accept(self, connections: mpsc::Sender<Connection>) {
        match self {
            Self::Unix(listener) => accept_local(&listener, &connections).await,
            Self::Tcp { listener, tls, key } => {
                let shaking = Arc::new(Semaphore::new(HANDSHAKES));
                let remote = Remote { tls, peer: Peer::Remote(key.map(Arc::new)), shaking };
                remote.accept(&listener, &connections).await;
            }
        }
    }
}

/// Where accepted connections are taken from.
pub(crate) fn queue() -> (mpsc::Sender<Connection>, mpsc::Receiver<Connection>) {
    mpsc::channel(BACKLOG)
}

async fn accept_local(listener: &UnixListener, connections: &mpsc::Sender<Connection>) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        // One who is gone already cannot be asked.
        let Ok(credentials) = stream.peer_cred() else { continue };
        let caller = Caller { user: credentials.uid(), trusted: credentials.uid() == own };
        if connections.send(Connection::new(stream, Peer::Local(caller))).await.is_err() {
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
                let connection = timeout(HANDSHAKE, remote.shake_hands(stream)).await;
                drop(turn);
                match connection {
                    Ok(Ok(connection)) => drop(connections.send(connection).await),
                    Ok(Err(error)) => tracing::debug!(%error, "a client was not let in"),
                    Err(_) => tracing::debug!("a client did not say who it is"),
                }
            });
        }
    }

    async fn shake_hands(self, stream: TcpStream) -> std::io::Result<Connection> {
        stream.set_nodelay(true)?;
        match self.tls {
            None => Ok(Connection::new(stream, self.peer)),
            Some(tls) => Ok(Connection::new(tls.acceptor().accept(stream).await?, self.peer)),
        }
    }
}
