//! What a sandbox is made of.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use carrel_image::{GuestPath, RootFs};

use crate::disk::KeptDisk;
use crate::gvisor::Gvisor;
use crate::ids::IdRange;
use crate::network::Network;

/// What a sandbox is made of.
#[derive(Debug)]
pub struct Spec {
    /// What it sees as its root.
    pub root: RootFs,
    /// Trees of the host that the operator gives it, besides.
    pub mounts: Vec<HostMount>,
    /// A directory of the host that it works on without changing it.
    pub project: Option<Project>,
    /// What it writes to.
    pub disk: Disk,
    /// Its name for itself.
    pub hostname: String,
    /// The network of another sandbox, to share it. Without one it has a network of its own.
    pub network: Option<Network>,
    /// The host's ids behind its own.
    pub ids: IdRange,
    /// Its first program, open; no path to it is left inside.
    pub program: OwnedFd,
    /// The arguments of that program, its name included.
    pub args: Vec<CString>,
    /// The environment of that program.
    pub env: Vec<CString>,
    /// What that program has as standard input and output.
    pub channel: OwnedFd,
    /// Whether that program is given its own out-of-memory score: open for writing as descriptor 3, which the variable
    /// `CARREL_OOM_SCORE_FD` names. A program that the kernel protects from its sandbox cannot open it by itself. It
    /// also comes before others wherever there is not enough of the processors (a nice value of −10), and takes both
    /// from what it starts.
    pub oom_score: bool,
    /// What stands between it and the kernel of the host.
    pub isolation: Isolation,
}

/// What stands between a sandbox and the kernel of the host.
#[derive(Debug)]
pub enum Isolation {
    /// Namespaces and a filter: what runs inside calls the kernel of the host, as far as the filter lets it.
    Namespaces,
    /// The same namespaces, and inside them an application kernel that answers every call itself.
    Gvisor(Gvisor),
}

/// A tree of the host that the operator gives to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it is inside.
    pub target: GuestPath,
    /// What may be done with it.
    pub access: Access,
    /// Who on the host the user and the group inside stand for; without it, the owner and the group of the source.
    pub owner: Option<HostOwner>,
}

/// A user and a group of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOwner {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// What a sandbox may do with a tree of the host, and who inside stands for its owner: that of the source, or the one
/// that the mount names. Whatever in the tree belongs to anybody else belongs to nobody inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read, and nothing else: a directory lies below an overlay, so that the sandbox has sockets, FIFOs, locks and
    /// watches of its own there, and reaches nobody on the host by them. A source that is itself a socket, a FIFO or a
    /// device is refused. Where its file system cannot show other ids (a network's, often), it is shown as it is: then
    /// what is not for everybody cannot be read.
    ReadOnly {
        /// The user inside who reads as the owner does; so does root.
        user: u32,
        /// The group inside that stands for the owner's.
        group: u32,
    },
    /// It is read and written, and what is written belongs to the owner. Where its file system cannot show other ids,
    /// it is refused. The owner is trusted with what the sandbox does: a program with raised privileges that it
    /// leaves there has, outside, those of the owner.
    Writable {
        /// The user inside who writes as the owner does. Nobody else, not even root, makes files there.
        user: u32,
        /// The group inside that stands for the owner's. Whoever makes files there has to be in it.
        group: u32,
    },
}

/// A directory of the host that a sandbox works on: what it writes there goes to its own disk, and the host's copy
/// stays as it is. What is mounted below it on the host is not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it is inside.
    pub target: GuestPath,
    /// The user inside who stands for the owner of the source.
    pub user: u32,
    /// The group inside that stands for the owner's.
    pub group: u32,
    /// The device and the inode that it has to have, if that is known.
    pub identity: Option<(u64, u64)>,
}

/// What a sandbox writes to: its root and its project together.
#[derive(Debug)]
pub enum Disk {
    /// Memory, gone with the last who holds it. Over layers or a project, before Linux 6.6, memory cannot keep the
    /// marks of an overlay: there a directory that lies below cannot be deleted.
    Memory {
        /// How much; `/dev/shm` has as much again.
        bytes: u64,
    },
    /// A disk that stays, for a sandbox that comes back.
    Kept(KeptDisk),
}

// === impl Access ===

impl Access {
    /// Who inside stands for the owner.
    pub fn user(self) -> u32 {
        match self {
            Self::ReadOnly { user, .. } | Self::Writable { user, .. } => user,
        }
    }

    /// Which group inside stands for the owner's.
    pub fn group(self) -> u32 {
        match self {
            Self::ReadOnly { group, .. } | Self::Writable { group, .. } => group,
        }
    }
}
