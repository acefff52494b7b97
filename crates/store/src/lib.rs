//! Durable rows and the append-only log of events.
//!
//! A change of a sandbox, of its execs and its events becomes true at once, and is then seen in this order: the
//! transaction is committed, rows and events in memory are replaced under one lock, those who wait are woken. So
//! whoever sees an event reads the state that it announces.

// What tests outside make, those inside make too.
#[cfg(test)]
extern crate self as carrel_store;

mod backend;
mod backup;
mod check;
mod error;
mod events;
mod listeners;
mod marker;
mod memory;
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
pub use self::check::{MissingEvents, Report, check, check_with_marker};
pub use self::error::{EventsError, StoreError};
pub use self::events::{AllEvents, Events};
pub use self::model::*;
pub use self::origin::{StoreIdentity, StoreOrigin};
pub use self::repair::{RepairReport, RepairedTable, repair};
pub use self::store::{ByteLock, Options, Statistics, Store};
