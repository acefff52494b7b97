//! The errors of the client.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrel_protocol::bulk::BulkError;
use carrel_protocol::frame::{BodyTooLarge, InvalidFrameLength};
use carrel_protocol::payload::{CoreError, ExecFailed, ExecStdinError, TcpFailed};
use carrel_protocol::{DecodeError, EmptyCorrelationIdRange, EncodeError, Generation, MessageType};

use crate::path::PathError;

/// Why the client could not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The sandbox has no usable socket path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Nothing listens on the socket.
    #[error("connect to {}: {source}", .path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The handshake took too long.
    #[error("handshake with the agent timed out after {0:?}")]
    TimedOut(Duration),
    /// The connection was lost during the handshake.
    #[error("handshake failed: {0}")]
    Lost(#[from] ConnectionLost),
    /// The peer assigned no ids.
    #[error(transparent)]
    EmptyCorrelationIdRange(#[from] EmptyCorrelationIdRange),
    /// The first message was not a valid `core.ready`.
    #[error("peer did not send a valid core.ready: {0}")]
    NotReady(ProtocolViolation),
    /// The agent reports that it could not start.
    #[error("agent failed to start: {0}")]
    InitializationFailed(String),
    /// The agent's generation is no longer supported.
    #[error(
        "agent has protocol generation {peer}, but this client requires at least {horizon}; restart the sandbox to get \
         the current agent"
    )]
    BelowHorizon {
        /// The agent's generation.
        peer: Generation,
        /// The oldest supported generation.
        horizon: Generation,
    },
}

/// Why a connection was lost. Every pending call returns it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionLost {
    /// [`AgentClient::close`](crate::AgentClient::close) was called.
    #[error("client is closed")]
    Closed,
    /// The peer closed the connection.
    #[error("connection closed by the agent")]
    Ended,
    /// An I/O error.
    #[error("connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The peer sent an invalid frame length.
    #[error("protocol violation by the agent: {0}")]
    Broken(#[from] InvalidFrameLength),
    /// The peer did not read for so long that the send queue exceeded its limit.
    #[error("agent does not read from the connection")]
    Unread,
}

/// The agent is too old for an operation. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{feature} requires protocol generation {required}, but the connection has {negotiated}; restart the sandbox to get \
     the current agent"
)]
pub struct UnsupportedOperation {
    /// The message type that cannot be sent.
    pub feature: MessageType,
    /// The generation that introduced it.
    pub required: Generation,
    /// The generation of the connection.
    pub negotiated: Generation,
}

/// A message that violates the protocol.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolViolation {
    /// The message cannot be decoded.
    #[error("malformed message: {0}")]
    Unreadable(#[from] DecodeError),
    /// An unexpected message.
    #[error("unexpected message: {found}, expected {expected}")]
    Unexpected {
        /// The expected message.
        expected: &'static str,
        /// The received message.
        found: String,
    },
    /// A violation of the rules for bulk transfers.
    #[error("bulk transfer: {0}")]
    Bulk(#[from] BulkError),
}

/// A file operation that failed in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct FileError {
    /// The operation, as the protocol names it.
    pub operation: &'static str,
    /// A human-readable message.
    pub message: String,
    /// The symbolic name of the error number (`ENOENT`), if known.
    pub errno_name: Option<String>,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentClientError {
    /// The agent is too old for it.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedOperation),
    /// The connection was lost.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
    /// The connection has no ids left, and the client cannot reconnect.
    #[error("connection has no ids left; open a new one")]
    IdsExhausted,
    /// The connection has no ids left, and reconnecting failed.
    #[error("reconnect failed: {0}")]
    Reconnect(Box<ConnectError>),
    /// The agent rejected the message.
    #[error("agent rejected the request: {} ({})", .0.message, .0.kind.as_str())]
    Refused(Box<CoreError>),
    /// The command could not be started.
    #[error("command could not be started: {} ({})", .0.message, .0.kind.as_str())]
    ExecFailed(Box<ExecFailed>),
    /// Input could not be delivered to the command.
    #[error("input: {}", .0.message)]
    Stdin(Box<ExecStdinError>),
    /// Input after the end of input, or after the command exited.
    #[error("input is closed")]
    InputClosed,
    /// The agent does not support `no_symlinks` and may have followed symlinks.
    #[error("agent is too old to reject symbolic links; restart the sandbox to get the current agent")]
    FollowsSymlinks,
    /// The file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The connection inside the sandbox failed.
    #[error("connection: {}", .0.error)]
    Tcp(TcpFailed),
    /// The agent violated the protocol.
    #[error("protocol violation by the agent: {0}")]
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

impl AgentClientError {
    /// The symbolic name of the error number inside the sandbox, if known.
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

impl From<BodyTooLarge> for AgentClientError {
    fn from(error: BodyTooLarge) -> Self {
        Self::Encode(error.into())
    }
}

impl From<BulkError> for AgentClientError {
    fn from(error: BulkError) -> Self {
        Self::Protocol(error.into())
    }
}

impl From<DecodeError> for AgentClientError {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.into())
    }
}
