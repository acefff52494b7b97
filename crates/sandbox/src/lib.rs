//! Isolation: from a specification to a process that sees nothing but what it was given.
//!
//! User, pid, mount, ipc, uts, cgroup and net namespaces; a root put together from detached mounts; a loopback
//! interface and nothing else, which sandboxes may share; a small set of capabilities; a system-call filter; limits by cgroups. Nothing is mounted
//! in the host's mount namespace, and every operation on what an image holds is relative to a directory handle.

mod asked;
mod byte_lock;
pub mod cgroup;
mod container;
mod counted;
mod disk;
mod fd_passing;
mod gvisor;
mod handle;
mod ids;
mod inside;
mod kernel_memory;
mod launch;
mod layers;
mod limits;
mod mount;
mod network;
mod owner;
pub mod remove;
mod ruleset;
pub mod seccomp;
mod shed;
mod spec;
mod stage;
mod submounts;
mod sys;
mod termination;
mod tree;

pub use self::asked::{MountError, NetworkError, TargetProblem};
pub use self::byte_lock::lock_byte;
pub use self::container::Container;
pub use self::disk::{
    DiskError, DiskKind, DiskRepair, FreeSpace, KeptDisk, Quota, Reserve, ResumeThreshold, is_damage, room_again, upper,
};
pub use self::gvisor::{Gvisor, GvisorError};
pub use self::handle::{handle, handle_of};
pub use self::ids::{IdRange, IdsError, SUPERVISORS};
pub use self::kernel_memory::{KernelMemory, KernelMemorySample, Overuse};
pub use self::launch::{LaunchError, forget_inherited, launch, leave_host_mounts};
pub use self::network::Network;
pub use self::shed::{Shed, ShedError, give_memory_back, shed};
pub use self::spec::{Access, Disk, HostOwner, Isolation, Mount, Project, Spec};
pub use self::stage::{Stage, StageError};
pub use self::termination::TerminationSignal;
