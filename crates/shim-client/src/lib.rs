//! The supervisor of one sandbox, seen by whoever owns it.
//!
//! The same frames and envelopes as the runtime protocol, with types of their own (`shim.*`) and a version of their own.
//! The owner speaks first: `shim.create`. From then on the supervisor answers requests by their id, and tells what
//! happens with id 0. When the owner is gone, so is the sandbox.

pub mod messages;
#[cfg(feature = "owner")]
mod owner;
#[cfg(feature = "owner")]
mod programs;
mod root;
mod wire;

pub use self::messages::VERSION;
#[cfg(feature = "owner")]
pub use self::owner::{OwnedSandbox, OwnerError, Supervisor};
#[cfg(feature = "owner")]
pub use self::programs::{Programs, ProgramsError};
pub use self::root::{BadRoot, HostPath};
pub use self::wire::{Message, decode, encode};
