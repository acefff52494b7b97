//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::bulk::BulkError;
use carrel_protocol::frame::{BodyTooLarge, BrokenLength};
use carrel_protocol::payload::{CoreError, ExecFailed, ExecStdinError, TcpFailed};
use carrel_protocol::{DecodeError, EmptyRange, EncodeError, Generation, MessageType};

use crate::path::PathError;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The sandbox has no usable socket path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Nobody listens there.
    #[error("connect to {}: {source}", .path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The handshake took too long.
    #[error("the agent did not finish the handshake within {0:?}")]
    TimedOut(Duration),
    /// The connection ended first.
    #[error("during the handshake, {0}")]
    Lost(#[from] ConnectionLost),
    /// The peer assigned no ids.
    #[error(transparent)]
    EmptyRange(#[from] EmptyRange),
    /// The first message was not what an agent says when it is ready.
    #[error("the peer is not a ready agent: {0}")]
    NotReady(ProtocolViolation),
    /// The agent says that it cannot start.
    #[error("the agent could not start: {0}")]
    InitializationFailed(String),
    /// The agent is older than what this client still speaks.
    #[error(
        "the agent speaks generation {peer}, and this client needs at least {horizon}; restart the sandbox, so that \
         it is provisioned with the current agent"
    )]
    BelowHorizon {
        /// What the agent speaks.
        peer: Generation,
        /// The oldest generation that is accepted.
        horizon: Generation,
    },
}

/// Why a connection is gone. Every call that waited on it ends with this.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionLost {
    /// [`AgentClient::close`](crate::AgentClient::close) was called.
    #[error("the client was closed")]
    Closed,
    /// The peer closed it.
    #[error("the agent closed the connection")]
    Ended,
    /// The system reports an error.
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The peer sent a length that leaves no way to find the next frame.
    #[error("the agent broke the framing: {0}")]
    Broken(#[from] BrokenLength),
    /// The peer has not read for so long that what is owed to it exceeds every bound.
    #[error("the agent does not read what is sent to it")]
    Unread,
}

/// An operation that the agent is too old for. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{feature} needs generation {required}, and the agent of this sandbox agreed on {negotiated}; restart the sandbox, \
     so that it is provisioned with the current agent"
)]
pub struct UnsupportedOperation {
    /// The message that cannot be sent.
    pub feature: MessageType,
    /// The generation that introduced it.
    pub required: Generation,
    /// The generation of the connection.
    pub negotiated: Generation,
}

/// A message that breaks the rules of the protocol.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolViolation {
    /// It cannot be read.
    #[error("unreadable message: {0}")]
    Unreadable(#[from] DecodeError),
    /// It may not stand here.
    #[error("{found} where {expected} was due")]
    Unexpected {
        /// What was due.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// It breaks the rules of bulk transfers.
    #[error("bulk transfer: {0}")]
    Bulk(#[from] BulkError),
}

/// A file operation that failed in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct FileError {
    /// The operation, as the protocol names it.
    pub operation: &'static str,
    /// What happened, for people.
    pub message: String,
    /// The name of the error number (`ENOENT`), where the agent tells it.
    pub errno_name: Option<String>,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent is too old for it.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedOperation),
    /// The connection is gone.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
    /// Every id of the connection was used, and it cannot be made again.
    #[error("every id of this connection is used; connect again")]
    IdsExhausted,
    /// Every id of the connection was used, and the next one could not be made.
    #[error("reconnect for fresh ids: {0}")]
    Reconnect(Box<ConnectError>),
    /// The agent refused the message.
    #[error("the agent refused: {} ({})", .0.message, .0.kind.as_str())]
    Refused(Box<CoreError>),
    /// The command never ran.
    #[error("the command did not start: {} ({})", .0.message, .0.kind.as_str())]
    ExecFailed(Box<ExecFailed>),
    /// The command takes no more input.
    #[error("input: {}", .0.message)]
    Stdin(Box<ExecStdinError>),
    /// Input after the end of input, or after the command's own end.
    #[error("input is closed")]
    InputClosed,
    /// The agent followed symbolic links although it was asked not to: it does not know how.
    #[error(
        "the agent of this sandbox is too old to follow no symbolic link; restart the sandbox, so that it is provisioned \
         with the current agent"
    )]
    FollowsSymlinks,
    /// The file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The connection inside the sandbox failed.
    #[error("connection: {}", .0.error)]
    Tcp(TcpFailed),
    /// The agent broke the rules.
    #[error("the agent broke the protocol: {0}")]
    Protocol(#[from] ProtocolViolation),
    /// The message does not fit into a frame.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The caller's own reader or writer failed.
    #[error("local stream: {0}")]
    Local(#[source] io::Error),
}

// === impl ConnectionLost ===

impl From<io::Error> for ConnectionLost {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

// === impl ProtocolViolation ===

impl ProtocolViolation {
    pub(crate) fn unexpected(expected: &'static str, found: impl ToString) -> Self {
        Self::Unexpected { expected, found: found.to_string() }
    }
}

// === impl Error ===

impl Error {
    /// The name of the error number inside the sandbox, where one is known.
    pub fn errno_name(&self) -> Option<&str> {
        match self {
            Self::ExecFailed(failed) => failed.errno_name.as_deref(),
            Self::Stdin(error) => error.errno_name.as_deref(),
            Self::File(error) => error.errno_name.as_deref(),
            Self::Tcp(failed) => failed.errno_name.as_deref(),
            _ => None,
        }
    }
}

impl From<BodyTooLarge> for Error {
    fn from(error: BodyTooLarge) -> Self {
        Self::Encode(error.into())
    }
}

impl From<BulkError> for Error {
    fn from(error: BulkError) -> Self {
        Self::Protocol(error.into())
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.into())
    }
}
