//! The gRPC API: `agbox.v1` for published clients, and `carrel.v1`.
//!
//! [`serve`] serves the API on all listeners. The middleware authenticates a request; then it is converted for the
//! control plane, and the result is converted back. Nothing is decided here.

mod answer_body;
mod authority;
mod client;
mod connection;
mod convert;
mod feed;
mod fields;
mod generated;
mod key;
mod list_answer;
mod listener;
mod local_connections;
mod memory;
mod middleware;
mod open_streams;
mod request_body;
mod request_log;
mod sandboxes;
mod serve;
mod service;
mod status;
mod subscription;
mod tls;

pub use self::client::{DaemonConnectError, connect};
pub use self::generated::DESCRIPTORS;
pub use self::key::{ApiKey, InvalidApiKey};
pub use self::listener::{Listener, ListenerCredentials};
pub use self::memory::MemoryLimits;
pub use self::serve::{ApiError, ServerOptions, serve, serve_tuned};
pub use self::tls::{TlsConfig, TlsError, TlsFile};

pub mod agbox {
    //! The published package.
    pub use crate::generated::agbox::v1;
}

pub mod carrel {
    //! Carrel's own package.
    pub use crate::generated::carrel::v1;
}
