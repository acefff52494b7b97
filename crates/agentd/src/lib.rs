//! The guest side of the runtime protocol: commands, files and connections, served by one thread.
//!
//! One loop waits for readiness, takes frames from peers and gives sessions turns. Nothing it does may wait for
//! anything but that loop, and nothing a peer sends may end it.

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
