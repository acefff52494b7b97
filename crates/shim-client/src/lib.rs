//! The client side of a shim, the supervisor process of one sandbox.
//!
//! Frames and envelopes are those of the runtime protocol, with other message types (`shim.*`) and versions. The owner
//! sends first: `shim.create`. From then on the shim answers requests by id, and sends events with id 0. When the owner
//! disconnects, the sandbox ends.

#[cfg(feature = "owner")]
mod client;
#[cfg(feature = "owner")]
mod error;
#[cfg(feature = "owner")]
mod follow;
mod found;
mod journal;
pub mod layout;
#[cfg(feature = "owner")]
mod link;
pub mod messages;
#[cfg(feature = "owner")]
mod owner;
#[cfg(feature = "owner")]
mod programs;
mod record;
mod root;
mod trimmed;
mod wire;

#[cfg(feature = "owner")]
pub use self::client::{Chunk, ShimClient, Subscription};
#[cfg(feature = "owner")]
pub use self::error::ShimError;
#[cfg(feature = "owner")]
pub use self::follow::{Follow, FollowEvent, JobControl};
#[cfg(feature = "owner")]
pub use self::found::{AdoptError, Claim};
pub use self::found::{Found, FoundError, Life, Problem, find, sandboxes};
pub use self::journal::{Journal, JournalError, Loaded};
pub use self::layout::{began, boot_id};
pub use self::messages::VERSION;
#[cfg(feature = "owner")]
pub use self::owner::{OwnedSandbox, OwnerError, Supervisor};
#[cfg(feature = "owner")]
pub use self::programs::{Programs, ProgramsError};
pub use self::record::{RecordError, SandboxRecord};
pub use self::root::{BadRoot, HostPath};
pub use self::trimmed::{LARGEST_TRIMMED, TRIMMED, TrimmedOutput, note_trimmed, trimmed_output};
pub use self::wire::{Message, decode, encode};
