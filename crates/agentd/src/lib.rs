//! The guest side of the runtime protocol: commands, files and connections, served by one thread.
//!
//! One event loop polls descriptors, reads frames from peers and runs sessions. Sessions never block, and no message of
//! a peer can terminate the loop.

pub mod args;
mod backlog;
mod connection;
mod defaults;
mod dispatch;
mod errno;
mod event_loop;
mod exec;
mod files;
mod image_file;
mod listen;
mod poll;
mod protect;
mod relay_clients;
mod session;
mod shared_state;
mod signals;
mod sys;
mod tcp;
mod tree;
mod users;

pub use self::event_loop::{EventLoopError, serve};
