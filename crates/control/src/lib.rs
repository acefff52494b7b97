//! The lifecycle of sandboxes: what may be asked when, what happens then, and what survives.
//!
//! Whatever is accepted is in the store before it is answered, and every later step is there before anyone can see it.
//! One actor has each sandbox: it alone changes its row, so that nothing of it is ever decided twice. What is to be done
//! follows from the stage that the row is in, never from what an actor remembers; so a daemon that was killed in any
//! moment is followed by one that goes on where it was.

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
pub use self::failpoint::{Failpoint, FailpointStep};
pub use self::refusal::{Code, Refusal};
pub use self::settings::{Caller, Clock, ControlSettings, Retention};
pub use self::share::{ShareExceeded, ShareHolder, ShareLimits, SharePermit, ShareQuota, ShareUse};
pub use self::text::bounded_text;
pub use self::watch::EventWatch;

#[cfg(test)]
mod tests;
