//! The network of a sandbox, for a service that shares it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::request_error::NetworkError;
use crate::{ids, sys};

/// The network namespace of a sandbox; never that of the host or of other software.
#[derive(Debug)]
pub struct SandboxNetwork {
    namespace: OwnedFd,
}

/// This process is in the network namespace of a sandbox; its children stay there.
pub(crate) struct NetworkGuard {
    original: OwnedFd,
}

// === impl SandboxNetwork ===

impl SandboxNetwork {
    /// The network of a process, given by its open directory in `/proc`, which cannot refer to a later process with the same
    /// pid.
    pub fn of(process: impl AsFd) -> Result<Self, NetworkError> {
        let namespace = open(process, "ns/net")?;
        let owner = sys::owner_of(namespace.as_fd())?;
        // The namespaces of a sandbox are created by the first of its ids, which nothing else on this host has.
        if ids::is_base(owner) { Ok(Self { namespace }) } else { Err(NetworkError::Foreign) }
    }

    /// Moves this process, which has one thread, into the network. It needs rights over the user namespace that owns the
    /// network, which a process in a user namespace of its own lacks.
    pub(crate) fn enter(&self) -> Result<NetworkGuard, Errno> {
        let original = open(CWD, "/proc/self/ns/net")?;
        set_namespace(&self.namespace)?;
        Ok(NetworkGuard { original })
    }
}

// === impl NetworkGuard ===

impl NetworkGuard {
    /// Moves this process back.
    pub(crate) fn leave(self) -> Result<(), Errno> {
        set_namespace(&self.original)
    }
}

// === impl NetworkError ===

impl From<Errno> for NetworkError {
    fn from(errno: Errno) -> Self {
        match errno {
            // A zombie, or already reaped.
            Errno::NOENT | Errno::SRCH => Self::Ended,
            errno => Self::Unreadable(errno.into()),
        }
    }
}

fn open(directory: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn set_namespace(namespace: &OwnedFd) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_the_host_is_refused() {
        let ourselves = open(CWD, "/proc/self").unwrap();
        assert!(matches!(SandboxNetwork::of(ourselves), Err(NetworkError::Foreign)));
    }

    #[test]
    fn the_network_of_a_process_that_exited_is_refused() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = open(CWD, &format!("/proc/{}", child.id())).unwrap();
        // The control: it has a network while it runs.
        assert!(matches!(SandboxNetwork::of(&process), Err(NetworkError::Foreign)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(SandboxNetwork::of(&process), Err(NetworkError::Ended)));
    }
}
