//! The network of a sandbox, for another that stands beside it: each reaches the other, and nobody else reaches either.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::request_error::NetworkError;
use crate::{ids, sys};

/// The network of a sandbox. There is none of anything else: neither the host's own nor one of other software's.
#[derive(Debug)]
pub struct Network {
    namespace: OwnedFd,
}

/// A stay of this process in the network of a sandbox. Whoever it makes meanwhile remains there.
pub(crate) struct NetworkGuard {
    original: OwnedFd,
}

// === impl Network ===

impl Network {
    /// The network of a process, which is given as its directory in `/proc`, open: that stands for it, and for no later
    /// one of the same number.
    pub fn of(process: impl AsFd) -> Result<Self, NetworkError> {
        let namespace = open(process, "ns/net")?;
        let owner = sys::owner_of(namespace.as_fd())?;
        // Whatever was made for a sandbox was made by the first of its ids, which nobody else on this host has.
        if ids::is_base(owner) { Ok(Self { namespace }) } else { Err(NetworkError::Foreign) }
    }

    /// Takes this process, which has one thread, there. It needs rights over the user namespace that the network belongs
    /// to, which nobody has any more who has entered one of its own.
    pub(crate) fn enter(&self) -> Result<NetworkGuard, Errno> {
        let original = open(CWD, "/proc/self/ns/net")?;
        set_namespace(&self.namespace)?;
        Ok(NetworkGuard { original })
    }
}

// === impl NetworkGuard ===

impl NetworkGuard {
    /// Takes this process back to where it was.
    pub(crate) fn leave(self) -> Result<(), Errno> {
        set_namespace(&self.original)
    }
}

// === impl NetworkError ===

impl From<Errno> for NetworkError {
    fn from(errno: Errno) -> Self {
        match errno {
            // Nobody has buried it yet, or somebody has.
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
    fn the_network_of_the_host_is_that_of_no_sandbox() {
        let ourselves = open(CWD, "/proc/self").unwrap();
        assert!(matches!(Network::of(ourselves), Err(NetworkError::Foreign)));
    }

    #[test]
    fn a_process_that_has_ended_has_no_network() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = open(CWD, &format!("/proc/{}", child.id())).unwrap();
        // The control: while it lives, it has one.
        assert!(matches!(Network::of(&process), Err(NetworkError::Foreign)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(Network::of(&process), Err(NetworkError::Ended)));
    }
}
