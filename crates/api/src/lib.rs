//! The gRPC face: `agbox.v1` as published clients speak it, and `carrel.v1` beside it.
//!
//! [`serve`] answers on every listener that it is given. A request passes the door, which finds out who asks; then it is
//! turned into what the control plane understands, and what that says is turned back. Nothing is decided here.

mod answer_body;
mod authority;
mod client;
mod connection;
mod convert;
mod door;
mod feed;
mod fields;
mod generated;
mod key;
mod list_answer;
mod listener;
mod local_connections;
mod memory;
mod open_streams;
mod request_body;
mod request_log;
mod sandboxes;
mod serve;
mod service;
mod status;
mod subscription;
mod tls;

pub use self::client::{ConnectError, connect};
pub use self::generated::DESCRIPTORS;
pub use self::key::{ApiKey, BadKey};
pub use self::listener::{Listener, ListenerCredentials};
pub use self::memory::MemoryLimits;
pub use self::serve::{ApiError, Tuning, serve, serve_tuned};
pub use self::tls::{Tls, TlsError, TlsPart};

pub mod agbox {
    //! The published package.
    pub use crate::generated::agbox::v1;
}

pub mod carrel {
    //! Our own package.
    pub use crate::generated::carrel::v1;
}
