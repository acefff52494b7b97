//! Accepts connections and serves HTTP.

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

use super::sse::DRAIN_TIMEOUT;

/// How long a client may take to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A listening socket.
pub enum ServerListener {
    Tcp(TcpListener),
    /// A Unix socket, which is removed when the server exits.
    Unix(UnixListener, PathBuf),
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum HttpServeError {
    /// TCP failed.
    #[error("cannot listen on {address}: {source}")]
    Address {
        address: String,
        /// The system error.
        source: io::Error,
    },
    /// The Unix socket failed.
    #[error("cannot listen on {}: {source}", .path.display())]
    Socket {
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
}

// === impl ServerListener ===

impl ServerListener {
    /// Listens on an address; port 0 picks a free one.
    pub async fn tcp(host: &str, port: u16) -> Result<Self, HttpServeError> {
        let address = format!("{host}:{port}");
        let failed = |source| HttpServeError::Address { address: address.clone(), source };
        // Names are not resolved: a static binary has no NSS.
        let host = if host == "localhost" { "127.0.0.1" } else { host };
        let ip = host.trim_matches(['[', ']']).parse().map_err(|_| {
            failed(io::Error::new(io::ErrorKind::InvalidInput, "the host has to be an address of this machine"))
        })?;
        TcpListener::bind(SocketAddr::new(ip, port)).await.map(Self::Tcp).map_err(failed)
    }

    /// Listens on a Unix socket. A stale one is replaced; one that is in use is not.
    pub fn unix(path: PathBuf) -> Result<Self, HttpServeError> {
        let failed = |source| HttpServeError::Socket { path: path.clone(), source };
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
        // Write permission on the socket is access to the server.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(failed)?;
        Ok(Self::Unix(listener, path))
    }

    /// Whether a browser can connect: not to a Unix socket.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Whether other hosts can connect.
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|address| !address.ip().is_loopback()),
            Self::Unix(..) => false,
        }
    }

    /// The address, for messages.
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

impl Drop for ServerListener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _gone_already = std::fs::remove_file(path);
        }
    }
}

/// Serves until shutdown; then connections have a grace period after the last events of their sessions.
pub async fn serve(
    listener: ServerListener,
    router: Router,
    mut shutting_down: watch::Receiver<bool>,
    grace: Duration,
) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = shutting_down.wait_for(|shutting_down| *shutting_down) => break,
        };
        match accepted {
            Ok(stream) => serve_connection(stream, router.clone(), &graceful),
            Err(error) => {
                // Usually the descriptor limit: wait until other connections close.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let _too_slow = tokio::time::timeout(DRAIN_TIMEOUT + grace, graceful.shutdown()).await;
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

async fn accept(listener: &ServerListener) -> io::Result<Box<dyn ByteStream>> {
    Ok(match listener {
        ServerListener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Events are small and must not be delayed.
            let _slower_then = stream.set_nodelay(true);
            Box::new(stream)
        }
        ServerListener::Unix(listener, _) => Box::new(listener.accept().await?.0),
    })
}

fn serve_connection(stream: Box<dyn ByteStream>, router: Router, graceful: &GracefulShutdown) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection failed");
        }
    });
}
