//! Connects to a daemon on this host.

use std::path::{Path, PathBuf};

use tonic::transport::{Channel, Endpoint};

/// Why the client cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum DaemonConnectError {
    /// The path is not a valid URI.
    #[error("{} is no path for a socket that gRPC can name", .0.display())]
    Path(PathBuf),
    /// The daemon is not reachable.
    #[error("connect to the daemon at {}: {source}", socket.display())]
    Transport { socket: PathBuf, source: tonic::transport::Error },
}

/// Connects to the daemon at a socket.
pub async fn connect(socket: &Path) -> Result<Channel, DaemonConnectError> {
    let failed = |source| DaemonConnectError::Transport { socket: socket.to_owned(), source };
    let path = socket.to_str().ok_or_else(|| DaemonConnectError::Path(socket.to_owned()))?;
    let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}
