//! The client side of a shim, the supervisor process of one sandbox.
//!
//! Frames and envelopes are those of the runtime protocol, with other message types (`shim.*`) and versions. The owner
//! sends first: `shim.create`. From then on the shim answers requests by id, and sends events with id 0. When the owner
//! disconnects, the sandbox ends.

#[cfg(feature = "owner")]
mod client;
mod discovery;
#[cfg(feature = "owner")]
mod error;
#[cfg(feature = "owner")]
mod follow;
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
pub use self::client::{OutputChunk, ShimClient, Subscription};
#[cfg(feature = "owner")]
pub use self::discovery::{AdoptError, IdentityField};
pub use self::discovery::{DiscoveredSandbox, DiscoveryError, DiscoveryProblem, Liveness, find, sandboxes};
#[cfg(feature = "owner")]
pub use self::error::ShimError;
#[cfg(feature = "owner")]
pub use self::follow::{Follow, FollowEvent, JobControl};
pub use self::journal::{Journal, JournalError, LoadedJournal};
pub use self::layout::{boot_id, process_start_time};
pub use self::messages::VERSION;
#[cfg(feature = "owner")]
pub use self::owner::{OwnedSandbox, OwnerError, PrestartedShim};
#[cfg(feature = "owner")]
pub use self::programs::{Programs, ProgramsError};
pub use self::record::{RecordError, SandboxRecord};
pub use self::root::{HostPath, InvalidRootFsPath};
pub use self::trimmed::{LARGEST_TRIMMED, TRIMMED, TrimmedOutput, record_trimmed, trimmed_output};
pub use self::wire::{ShimMessage, decode, encode};
