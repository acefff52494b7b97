//! The guest side of the runtime protocol: commands, files and connections, served by one thread.
//!
//! One event loop polls descriptors, reads frames from peers and runs sessions. Sessions never block, and no message of
//! a peer can terminate the loop.

mod agent;
pub mod args;
mod backlog;
mod connection;
mod defaults;
mod dispatch;
mod errno;
mod exec;
mod files;
mod io;
mod listen;
mod poll;
mod protect;
mod session;
mod shares;
mod signals;
mod small;
mod sys;
mod tcp;
mod tree;
mod users;

pub use self::agent::{ServeError, serve};
