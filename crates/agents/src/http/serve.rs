//! Listens, and speaks HTTP with whoever connects.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::watch,
};

use super::sse::LAST_WORDS;

/// How long a client may take to say what it wants.
const HEADERS: Duration = Duration::from_secs(30);

/// Where the server listens.
pub enum Listener {
    /// On an address.
    Tcp(TcpListener),
    /// On a socket of this machine, which goes with the server.
    Unix(UnixListener, PathBuf),
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// It.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The socket.
    #[error("cannot listen on {}: {source}", .path.display())]
    Socket {
        /// It.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

// === impl Listener ===

impl Listener {
    /// Listens on an address; port 0 is a free one.
    pub async fn tcp(host: &str, port: u16) -> Result<Self, ServeError> {
        let address = format!("{host}:{port}");
        let failed = |source| ServeError::Address { address: address.clone(), source };
        // Names are not looked up: a static program has no resolver of the system, and needs none to listen.
        let host = if host == "localhost" { "127.0.0.1" } else { host };
        let ip = host.trim_matches(['[', ']']).parse().map_err(|_| {
            failed(io::Error::new(io::ErrorKind::InvalidInput, "the host has to be an address of this machine"))
        })?;
        TcpListener::bind(SocketAddr::new(ip, port)).await.map(Self::Tcp).map_err(failed)
    }

    /// Listens on a socket. One that a server left behind is replaced; one that a server listens on is not.
    pub fn unix(path: PathBuf) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Socket { path: path.clone(), source };
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(failed(io::ErrorKind::AddrInUse.into()));
        }
        match std::fs::symlink_metadata(&path) {
            Ok(found) if std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
                std::fs::remove_file(&path).map_err(failed)?;
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        // Whoever may write here may use the server.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(failed)?;
        Ok(Self::Unix(listener, path))
    }

    /// Whether a browser can connect: it can to an address, and not to a Unix socket.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Whether other machines can connect.
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|address| !address.ip().is_loopback()),
            Self::Unix(..) => false,
        }
    }

    /// Where it listens, for people and for programs that read it.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}"),
                Err(_) => "http://?".into(),
            },
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _gone_already = std::fs::remove_file(path);
        }
    }
}

/// Serves until it is told to stop; then connections have this long to finish after the last words of their sessions.
pub async fn serve(listener: Listener, router: Router, mut stopping: watch::Receiver<bool>, patience: Duration) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok(stream) => converse(stream, router.clone(), &graceful),
            Err(error) => {
                // Too many descriptors, most often: others must be closed before this goes better.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let _too_slow = tokio::time::timeout(LAST_WORDS + patience, graceful.shutdown()).await;
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn accept(listener: &Listener) -> io::Result<Box<dyn Stream>> {
    Ok(match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Events are small and want to go at once.
            let _slower_then = stream.set_nodelay(true);
            Box::new(stream)
        }
        Listener::Unix(listener, _) => Box::new(listener.accept().await?.0),
    })
}

fn converse(stream: Box<dyn Stream>, router: Router, graceful: &GracefulShutdown) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended badly");
        }
    });
}
