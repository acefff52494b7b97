//! Errors of the client.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::frame::InvalidFrameLength;
use carrel_protocol::{DecodeError, EncodeError};

use crate::link::{LinkError, SendError};
use crate::messages::{FailureCode, SandboxEnd, ShimFailure};

/// Why a shim could not be reached, or a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ShimError {
    /// Nothing listens on the socket.
    #[error("connect to {}: {source}", socket.display())]
    Connect {
        socket: PathBuf,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// The file name of the socket is too long for an address.
    #[error("socket path {} is too long", .0.display())]
    PathTooLong(PathBuf),
    /// The peer did not send its hello.
    #[error("handshake with the shim timed out after {0:?}")]
    Silent(Duration),
    /// The shim rejected the request.
    #[error("{}", .0.message)]
    Failed(ShimFailure),
    /// The sandbox has ended.
    #[error("sandbox has ended: {}", .0.message)]
    Ended(SandboxEnd),
    /// The shim closed the connection.
    #[error("connection closed by the shim")]
    Gone,
    /// The shim is too old for the request. Nothing was sent.
    #[error(
        "{message} requires version {since}, but the connection has version {spoken}; restart the sandbox to get the current shim"
    )]
    Unsupported {
        /// The message that cannot be sent.
        message: &'static str,
        /// The version that introduced it.
        since: u8,
        /// The version of the connection.
        spoken: u8,
    },
    /// A message of the shim cannot be decoded.
    #[error("protocol violation by the shim: {0}")]
    Unreadable(#[from] DecodeError),
    /// The shim sent an invalid frame length.
    #[error("protocol violation by the shim: {0}")]
    Broken(#[from] InvalidFrameLength),
    /// The response exceeds the size limit.
    #[error("response of the shim exceeds {max} bytes")]
    TooLarge {
        /// The limit.
        max: usize,
    },
    /// The message cannot be encoded.
    #[error(transparent)]
    Encode(Arc<EncodeError>),
    /// The connection to the shim failed.
    #[error("connection to the shim failed: {0}")]
    Io(Arc<io::Error>),
}

// === impl ShimError ===

impl ShimError {
    /// The failure code, if the shim sent one.
    pub fn code(&self) -> Option<FailureCode> {
        match self {
            Self::Failed(failed) => Some(failed.code),
            _ => None,
        }
    }
}

impl From<io::Error> for ShimError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<EncodeError> for ShimError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(Arc::new(error))
    }
}

impl From<LinkError> for ShimError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed => Self::Gone,
            LinkError::Broken(broken) => broken.into(),
            LinkError::Io(error) => error.into(),
        }
    }
}

impl From<SendError> for ShimError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Encode(error) => error.into(),
            SendError::Io(error) => error.into(),
        }
    }
}
