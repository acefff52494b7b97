//! The lifecycle of sandboxes: which requests each state accepts, their effects, and what survives a crash.
//!
//! An accepted request is stored before it is answered, and every later step is stored before it becomes visible.
//! Each sandbox has one actor, which alone changes its row, so that nothing is decided twice. The next step
//! follows from the stage in the row, never from the memory of an actor; so after a daemon is killed at any
//! time, the next one continues where it was.

mod actor;
mod admission;
mod codes;
mod control;
mod descriptors;
mod event_log;
mod exec_outcome;
mod exec_size;
mod failpoint;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod provider;
mod refusal;
mod sandbox_quota;
mod settings;
mod share;
pub mod spec;
pub mod stage;
mod text;
mod watch;

pub use self::control::{Control, ControlStartError, CreateRequest, DiskAccess, ExecRequest, expired};
pub use self::descriptors::{DescriptorUse, Descriptors, PER_SANDBOX};
pub use self::exec_outcome::outcome as exec_outcome;
pub use self::exec_size::MAX_EXEC_BYTES;
pub use self::failpoint::FailpointStep;
pub use self::refusal::{Code, Refusal};
pub use self::settings::{Caller, Clock, ControlSettings, Retention};
pub use self::share::{ShareExceeded, ShareHolder, ShareLimits, SharePermit, ShareQuota, ShareUse};
pub use self::text::bounded_text;
pub use self::watch::EventWatch;

#[cfg(test)]
mod tests;
