//! Persistent rows of sandboxes and execs, and the append-only event log.
//!
//! A change of a sandbox, its execs and its events is atomic. It becomes visible in this order: the transaction is
//! committed, the rows and events in the cache are replaced under one lock, the listeners are woken. So a client that
//! receives an event reads the state that the event announces.

// The test support code names the crate, for unit tests as well.
#[cfg(test)]
extern crate self as carrel_store;

mod backend;
mod backup;
mod cache;
mod check;
mod error;
mod events;
mod listeners;
mod marker;
mod model;
mod origin;
mod regular_file;
mod repair;
mod reserve;
mod shared;
mod sqlite;
mod store;
mod writer;

pub use self::backup::{BackupError, BackupRequest, RestoreReport, backup, restore};
pub use self::check::{CheckReport, MissingEvents, ViolationKind, check, check_with_marker};
pub use self::error::{EventsError, StoreError};
pub use self::events::{AllEvents, Events};
pub use self::model::*;
pub use self::origin::{StoreIdentity, StoreOrigin};
pub use self::repair::{RepairReport, RepairedTable, repair};
pub use self::store::{ByteLock, Store, StoreOptions, StoreStatistics};
