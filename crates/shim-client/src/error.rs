//! What can go wrong with a supervisor that is talked to.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::frame::InvalidFrameLength;
use carrel_protocol::{DecodeError, EncodeError};

use crate::link::{LinkError, SendError};
use crate::messages::{Ended, Failed, FailureCode};

/// Why a supervisor could not be reached, or did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ShimError {
    /// Nobody listens there.
    #[error("connect to {}: {source}", socket.display())]
    Connect {
        /// The path of the socket.
        socket: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A socket whose own name is too long for an address.
    #[error("{} is too long for the path of a socket", .0.display())]
    PathTooLong(PathBuf),
    /// Whoever listens there did not say who they are.
    #[error("the supervisor did not greet within {0:?}")]
    Silent(Duration),
    /// The supervisor says why not.
    #[error("{}", .0.message)]
    Failed(Failed),
    /// The sandbox has ended.
    #[error("the sandbox has ended: {}", .0.message)]
    Ended(Ended),
    /// The supervisor is gone without a word.
    #[error("the supervisor closed the connection")]
    Gone,
    /// The supervisor is too old for the request. Nothing was sent.
    #[error("{message} needs version {since}, and the supervisor of this sandbox agreed on {spoken}")]
    Unsupported {
        /// The message that cannot be sent.
        message: &'static str,
        /// The version that introduced it.
        since: u8,
        /// The version of the connection.
        spoken: u8,
    },
    /// A message of the supervisor cannot be understood.
    #[error("the supervisor cannot be understood: {0}")]
    Unreadable(#[from] DecodeError),
    /// The supervisor sent a length that leaves no way to find the next message.
    #[error("the supervisor cannot be understood: {0}")]
    Broken(#[from] InvalidFrameLength),
    /// The answer of the supervisor does not end where an answer should.
    #[error("the supervisor answers with more than {max} bytes")]
    TooLarge {
        /// How many are taken.
        max: usize,
    },
    /// A message that cannot be sent.
    #[error(transparent)]
    Encode(Arc<EncodeError>),
    /// The connection to the supervisor failed.
    #[error("the connection to the supervisor: {0}")]
    Io(Arc<io::Error>),
}

// === impl ShimError ===

impl ShimError {
    /// What kind of failure it is, if the supervisor said so.
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
