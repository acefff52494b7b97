//! The payload of every message type.

mod bootstrap;
mod bulk;
mod carrel;
mod core;
mod exec;
mod fs;
mod tcp;
mod workload;

pub use self::bootstrap::*;
pub use self::bulk::*;
pub use self::carrel::*;
pub use self::core::*;
pub use self::exec::*;
pub use self::fs::*;
pub use self::tcp::*;
pub use self::workload::*;
