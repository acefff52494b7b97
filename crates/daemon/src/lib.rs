//! `carrel serve`: configuration, sockets, locks, and the order of beginning and ending.

mod address;
mod config;
mod descriptors;
mod error;
mod home;
mod home_lock;
mod identity;
mod key;
mod listen;
mod lock;
mod log;
mod notify;
mod ready;
mod reload;
mod serve;
mod socket;
mod store;
mod succession;

pub use self::address::{Address, BadAddress};
pub use self::config::{
    Config, ConfigError, FileError, Limits, LogConfig, LogFormat, LogLevel, Registries, RetentionConfig,
};
pub use self::error::ServeError;
pub use self::home::{lock_file, log_file, socket_file, store_file, store_mark_file};
pub use self::home_lock::HomeLock;
pub use self::identity::claim_home;
pub use self::ready::Ready;
pub use self::serve::{Options, ServeFailure, serve};
pub use self::store::{UnfitBackup, unfit_backup, verify_store};
