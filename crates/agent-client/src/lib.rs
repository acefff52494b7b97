//! The host side of the runtime protocol.
//!
//! An [`AgentClient`] talks to the agent inside a sandbox, through its relay or directly. It negotiates a generation
//! when it connects, rejects locally what the agent does not support, and offers each operation in two forms: typed
//! ([`AgentClient::exec`], [`AgentClient::files`], [`AgentClient::tcp`], [`AgentClient::tree`]) and raw
//! ([`AgentClient::request_raw`], [`AgentClient::stream_raw`], [`AgentClient::send_raw`]).
//!
//! **Dropping cancels.** Dropping a future or stream cancels its operation in the sandbox: the process group is killed,
//! the transfer cancelled, the connection closed. Frames that still arrive for it are ignored.
//!
//! **Memory is bounded.** All input is untrusted. Bytes of files and connections (from generation 8) and command output
//! (from generation 10) are bounded by credit that is granted as the caller consumes. Streams without credit (older
//! generations, raw streams, trees) have their own queue; when that is full, the client stops reading the connection
//! until the queue's owner reads or is dropped. So do not await one such stream while another of the same client is
//! full.

#![warn(missing_docs)]

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
pub use self::error::{
    AgentClientError, ConnectError, ConnectionLost, FileError, ProtocolViolation, UnsupportedOperation,
};
pub use self::exec::{Exec, ExecEvent, ExecInput, ExecOutput};
pub use self::files::{Directory, File, Files, ReadStream, WriteStream};
pub use self::options::ConnectOptions;
pub use self::path::{PathError, sandbox_directory, socket_path};
pub use self::raw::{RawFrame, RawStream};
pub use self::tcp::{GuestTcpStream, TcpReader, TcpWriter};
pub use self::tree::{TreeClient, TreeStream};
