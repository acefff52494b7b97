//! Why a sandbox could not be started, as reported to its owner.

use carrel_image::InvalidGuestPath;
use carrel_sandbox::cgroup::{CgroupError, LimitError};
use carrel_sandbox::{DiskError, DropPrivilegesError, IdsError, LaunchError, is_damage};
use carrel_shim_client::InvalidRootFsPath;
use carrel_shim_client::messages::{FailureCode, ShimFailure};

use super::READY;
use super::network::NetworkShareError;
use crate::directory::DirectoryError;
use crate::handshake::HandshakeError;

/// Why a sandbox could not be started; nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Path(#[from] InvalidGuestPath),
    #[error(transparent)]
    Root(#[from] InvalidRootFsPath),
    #[error(transparent)]
    Network(#[from] NetworkShareError),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Ids(#[from] IdsError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(
        "this host cannot enforce the limit on the disk: it has no project quotas there, and a sandbox that fills it cannot be \
         paused: {0}; with --disk SIZE a sandbox has a disk of its own, which needs neither"
    )]
    Unguarded(String),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{0}: {1}")]
    Program(String, std::io::Error),
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    #[error("handshake with the agent of the sandbox failed: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("agent of the sandbox exited before it was ready")]
    Ended,
    #[error("gVisor could not run the sandbox: {0}")]
    Runtime(String),
    #[error("owner disconnected before the sandbox was ready")]
    OwnerGone,
    #[error("agent of the sandbox was not ready within {} seconds", READY.as_secs())]
    Late,
    #[error("failed to drop privileges: {0}")]
    Privileges(#[from] DropPrivilegesError),
}

// === impl StartError ===

impl StartError {
    pub(crate) fn to_message(&self) -> ShimFailure {
        ShimFailure { code: self.code(), message: self.to_string(), hint: self.hint().map(str::to_owned) }
    }

    fn code(&self) -> FailureCode {
        match self {
            Self::Launch(error) if error.is_disk_damage() => FailureCode::DiskDamaged,
            Self::Disk(DiskError::System(_, error)) if is_damage(error) => FailureCode::DiskDamaged,
            Self::Path(_) | Self::Root(_) | Self::Network(_) | Self::Limit(_) | Self::Program(..) => {
                FailureCode::InvalidRequest
            }
            Self::Directory(DirectoryError::Taken | DirectoryError::Uncollected) => FailureCode::NameTaken,
            Self::Directory(DirectoryError::Logs(_) | DirectoryError::LogsTaken(_)) => FailureCode::InvalidRequest,
            Self::Cgroup(CgroupError::Unenforceable(_)) | Self::Unguarded(_) => FailureCode::LimitUnenforceable,
            Self::Directory(_)
            | Self::Ids(_)
            | Self::Cgroup(_)
            | Self::Disk(_)
            | Self::System(..)
            | Self::Privileges(_) => FailureCode::HostUnfit,
            Self::Launch(LaunchError::Mount(_) | LaunchError::Gvisor(_)) => FailureCode::InvalidRequest,
            Self::Launch(_) => FailureCode::LaunchFailed,
            Self::Handshake(_) | Self::Ended | Self::Runtime(_) | Self::OwnerGone | Self::Late => {
                FailureCode::AgentFailed
            }
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Directory(DirectoryError::Taken) => Some("choose another name, or stop the running sandbox"),
            Self::Directory(DirectoryError::Uncollected) => {
                Some("choose another name, or remove the sandbox that has ended")
            }
            // The mounts are the caller's to change, not the host's.
            Self::Launch(LaunchError::Gvisor(_)) => Some("leave --isolation gvisor out"),
            Self::Runtime(_) => Some(
                "raise --pids and --memory, of which gVisor's own kernel needs a part; `carrel doctor` tries it, or \
                 leave --isolation gvisor out",
            ),
            Self::Launch(LaunchError::Mount(_)) => None,
            Self::Cgroup(_) | Self::Launch(_) | Self::Privileges(_) | Self::Ids(_) => {
                Some("run `carrel doctor` to see what this host lacks")
            }
            _ => None,
        }
    }
}
