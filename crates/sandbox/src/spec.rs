//! The specification of a sandbox.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use carrel_image::{GuestPath, RootFs};

use crate::disk::PersistentDisk;
use crate::gvisor::Gvisor;
use crate::ids::IdRange;
use crate::network::SandboxNetwork;

/// The specification of a sandbox.
#[derive(Debug)]
pub struct ContainerSpec {
    /// Its root file system.
    pub root: RootFs,
    /// Host mounts, in addition to the root.
    pub mounts: Vec<HostMount>,
    /// A host directory that it works on in a copy-on-write layer.
    pub project: Option<ProjectMount>,
    /// Where it writes to.
    pub disk: Disk,
    /// Its host name.
    pub hostname: String,
    /// The network of another sandbox to share. Without one, it has its own network.
    pub network: Option<SandboxNetwork>,
    /// Its host ids.
    pub ids: IdRange,
    /// Its first program, open; it has no path in the sandbox.
    pub program: OwnedFd,
    /// The arguments of the first program, including its name.
    pub args: Vec<CString>,
    /// The environment of the first program.
    pub env: Vec<CString>,
    /// The standard input and output of the first program.
    pub channel: OwnedFd,
    /// Whether the first program gets its own OOM score: open for writing as descriptor 3, which the variable
    /// `CARREL_OOM_SCORE_FD` names. A program that is protected from its sandbox cannot open it by itself. The program also
    /// has a higher CPU priority (a nice value of −10), and is expected to reset both for its children.
    pub oom_score: bool,
    /// What isolates it from the host's kernel.
    pub isolation: Isolation,
}

/// What isolates a sandbox from the host's kernel.
#[derive(Debug)]
pub enum Isolation {
    /// Namespaces and a seccomp filter: processes call the host's kernel, as far as the filter allows.
    Namespaces,
    /// The same namespaces, with an application kernel inside that handles every system call.
    Gvisor(Gvisor),
}

/// A mount of a host tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// The path on the host.
    pub source: PathBuf,
    /// The mount point in the sandbox.
    pub target: GuestPath,
    /// The access of the sandbox.
    pub access: HostMountAccess,
    /// The host user and group that the user and group in the sandbox map to; by default the owner and group of the source.
    pub owner: Option<HostOwner>,
}

/// A user and a group of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOwner {
    /// The user id.
    pub user: u32,
    /// The group id.
    pub group: u32,
}

/// The access of a sandbox to a host tree, and the user in it that maps to the owner of the tree: that of the source, or the
/// one that the mount names. Files of other owners have the overflow id in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMountAccess {
    /// Read-only: a directory becomes the lower layer of an overlay, so that the sandbox has its own sockets, FIFOs, locks
    /// and watches there, and cannot communicate with the host through them. A source that is itself a socket, a FIFO or a
    /// device is refused. Without support for id-mapped mounts (often on network file systems), it is mounted unmapped: then
    /// only files that everyone may read can be read.
    ReadOnly {
        /// The user in the sandbox that reads as the owner; so does root.
        user: u32,
        /// The group in the sandbox that maps to the owner's.
        group: u32,
    },
    /// Read-write: new files belong to the owner. A file system without support for id-mapped mounts is refused. The owner
    /// trusts the sandbox: a set-user-id program that it leaves there has the owner's privileges on the host.
    Writable {
        /// The user in the sandbox that writes as the owner. No other, not even root, creates files there.
        user: u32,
        /// The group in the sandbox that maps to the owner's. A user that creates files there has to be in it.
        group: u32,
    },
}

/// A host directory that a sandbox works on: its writes go to its own disk, and the host's copy does not change. Mounts
/// below it on the host are not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectMount {
    /// The path on the host.
    pub source: PathBuf,
    /// The mount point in the sandbox.
    pub target: GuestPath,
    /// The user in the sandbox that maps to the owner of the source.
    pub user: u32,
    /// The group in the sandbox that maps to the owner's.
    pub group: u32,
    /// The expected device and inode, if known.
    pub identity: Option<(u64, u64)>,
}

/// Where a sandbox writes to: its root and its project together.
#[derive(Debug)]
pub enum Disk {
    /// Memory, freed with its last reference. Before Linux 6.6, tmpfs cannot store the attributes of an overlay: there a
    /// directory of a lower layer cannot be deleted.
    Memory {
        /// The size; `/dev/shm` has the same in addition.
        bytes: u64,
    },
    Persistent(PersistentDisk),
}

// === impl HostMountAccess ===

impl HostMountAccess {
    /// The user in the sandbox that maps to the owner.
    pub fn user(self) -> u32 {
        match self {
            Self::ReadOnly { user, .. } | Self::Writable { user, .. } => user,
        }
    }

    /// The group in the sandbox that maps to the owner's.
    pub fn group(self) -> u32 {
        match self {
            Self::ReadOnly { group, .. } | Self::Writable { group, .. } => group,
        }
    }
}
