//! `carrel serve`: configuration, sockets, locks, and the order of start and stop.

mod address;
mod config;
mod descriptors;
mod error;
mod handover;
mod home;
mod home_binding;
mod home_lock;
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

pub use self::address::{Address, InvalidAddress};
pub use self::config::{
    Config, ConfigError, ConfigFileError, LimitsConfig, LogConfig, LogFormat, LogLevel, Registries, RetentionConfig,
};
pub use self::error::ServeError;
pub use self::home::{lock_file, log_file, socket_file, store_file, store_marker_file};
pub use self::home_binding::claim_home;
pub use self::home_lock::HomeLock;
pub use self::ready::ReadyLine;
pub use self::serve::{ServeFailure, ServeOptions, serve};
pub use self::store::{UnfitBackup, unfit_backup, verify_store};
