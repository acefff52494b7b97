//! Isolation: turns a specification into a container that sees only what it was given.
//!
//! User, pid, mount, ipc, uts, cgroup and net namespaces; a root assembled from detached mounts; a loopback interface only,
//! which sandboxes may share; a small set of capabilities; a system-call filter; limits by cgroups. Nothing is mounted in
//! the host's mount namespace, and every operation on an image's files is relative to a directory handle.

mod byte_lock;
pub mod cgroup;
mod container;
mod directory_handle;
mod disk;
mod fd_passing;
mod gvisor;
mod host_tree;
mod ids;
mod kernel_memory;
mod landlock;
mod launch;
mod layers;
mod limits;
mod mount;
mod namespace_clone;
mod network;
mod owner_namespaces;
mod privileges;
pub mod remove;
mod request_error;
mod setup;
mod spec;
mod stage;
mod submounts;
mod sys;
mod termination;

pub use self::byte_lock::lock_byte;
pub use self::container::Container;
pub use self::directory_handle::{open_handle, reopen_handle};
pub use self::disk::{
    DiskError, DiskKind, DiskQuota, DiskRepair, FreeSpace, FreeSpaceReserve, PersistentDisk, ResumeThreshold,
    is_damage, resume_free_bytes, upper,
};
pub use self::gvisor::{Gvisor, GvisorError};
pub use self::ids::{IdRange, IdsError, SUPERVISORS};
pub use self::kernel_memory::{KernelMemory, KernelMemoryOveruse, KernelMemorySample};
pub use self::launch::{LaunchError, close_inherited_descriptors, launch, leave_host_mounts};
pub use self::network::SandboxNetwork;
pub use self::privileges::{DropPrivilegesError, RetainedPrivileges, drop_privileges, release_memory};
pub use self::request_error::{MountError, NetworkError, TargetProblem};
pub use self::spec::{ContainerSpec, Disk, HostMount, HostMountAccess, HostOwner, Isolation, ProjectMount};
pub use self::stage::{SetupStage, StageError};
pub use self::termination::TerminationSignal;
