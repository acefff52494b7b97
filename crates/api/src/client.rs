//! The way to a daemon on this machine.

use std::path::{Path, PathBuf};

use tonic::transport::{Channel, Endpoint};

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The path cannot be written down.
    #[error("{} is no path for a socket that gRPC can name", .0.display())]
    Path(PathBuf),
    /// Nobody is there.
    #[error("connect to the daemon at {}: {source}", socket.display())]
    Transport {
        /// Its socket.
        socket: PathBuf,
        /// Why not.
        source: tonic::transport::Error,
    },
}

/// Connects to the daemon at a socket.
pub async fn connect(socket: &Path) -> Result<Channel, ConnectError> {
    let failed = |source| ConnectError::Transport { socket: socket.to_owned(), source };
    let path = socket.to_str().ok_or_else(|| ConnectError::Path(socket.to_owned()))?;
    let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}
