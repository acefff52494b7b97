//! Isolation: from a specification to a process that sees nothing but what it was given.
//!
//! User, pid, mount, ipc, uts, cgroup and net namespaces; a root put together from detached mounts; a loopback
//! interface and nothing else; a small set of capabilities; a system-call filter; limits by cgroups. Nothing is mounted
//! in the host's mount namespace, and every operation on what an image holds is relative to a directory handle.

pub mod cgroup;
mod ids;
mod inside;
mod launch;
pub mod seccomp;
mod spec;
mod stage;
mod sys;

pub use self::ids::{IdRange, IdsError};
pub use self::launch::{Container, LaunchError, launch, leave_host_mounts};
pub use self::spec::{Mount, Spec};
pub use self::stage::{Stage, StageError};
