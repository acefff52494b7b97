//! The host side of the runtime protocol.
//!
//! An [`AgentClient`] speaks to the agent inside a sandbox, through its relay or directly. It agrees on a generation
//! when it connects, refuses locally what the agent is too old for, and offers each operation twice: typed
//! ([`AgentClient::exec`], [`AgentClient::files`], [`AgentClient::tcp`], [`AgentClient::tree`]) and raw
//! ([`AgentClient::request_raw`], [`AgentClient::stream_raw`], [`AgentClient::send_raw`]).
//!
//! **Dropping cancels.** A future or stream that is dropped ends its operation in the sandbox: the process group is
//! killed, the transfer cancelled, the connection closed. What the agent still sends for it is ignored.
//!
//! **Memory is bounded.** Whatever arrives is treated as written by an attacker. File and connection bytes of
//! generation 8 and command output of generation 10 are bounded by credit that is granted as the caller consumes. What
//! has no credit (older generations, raw streams, trees) waits in a queue of its own; when that is full, the client
//! stops reading the connection until its owner takes something or drops it. So do not await one such stream while
//! another of the same client is left full.

mod bulk;
mod cancel;
mod client;
mod connection;
mod error;
mod exec;
mod files;
mod handshake;
mod inbox;
mod link;
mod options;
mod outbox;
mod path;
mod pool;
mod raw;
mod reader;
mod reply;
mod session;
mod stdin;
mod tcp;
mod tree;

pub use carrel_protocol as protocol;
pub use carrel_protocol::payload::ExecRequest;
pub use carrel_protocol::{Flags, Generation, MessageType};

pub use self::client::AgentClient;
pub use self::error::{ConnectError, ConnectionLost, Error, FileError, ProtocolViolation, UnsupportedOperation};
pub use self::exec::{Exec, ExecEvent, ExecInput, Output};
pub use self::files::{Directory, File, Files, ReadStream, WriteStream};
pub use self::options::ConnectOptions;
pub use self::path::{PathError, sandbox_directory, socket_path};
pub use self::raw::{RawFrame, RawStream};
pub use self::tcp::{TcpReader, TcpStream, TcpWriter};
pub use self::tree::{Tree, TreeStream};
