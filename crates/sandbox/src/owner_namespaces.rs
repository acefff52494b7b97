//! User namespaces for id-mapped mounts: each maps the owner of a host tree to one user and group in the sandbox, and no
//! other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitId, WaitIdOptions};

use crate::spec::HostOwner;
use crate::sys::{self, CloneResult};

/// The namespaces created so far, one per mapping.
pub(crate) struct OwnerNamespaces {
    /// The host id of the sandbox's id 0.
    base: u32,
    known: Vec<(OwnerMapping, OwnedFd)>,
}

/// Maps a host user and group to those of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OwnerMapping {
    uid: u32,
    gid: u32,
    user: u32,
    group: u32,
}

/// A process that holds a namespace open until it is dropped.
struct NamespaceHolder {
    pid: Pid,
    process: OwnedFd,
    /// The process exits when this is closed, or when this process exits.
    end: Option<OwnedFd>,
}

// === impl OwnerNamespaces ===

impl OwnerNamespaces {
    pub(crate) fn new(base: u32) -> Self {
        Self { base, known: Vec::new() }
    }

    /// The user namespace that maps a host owner to a user and a group in the sandbox.
    pub(crate) fn namespace(&mut self, host: HostOwner, (user, group): (u32, u32)) -> Result<BorrowedFd<'_>, Errno> {
        let mapping = OwnerMapping { uid: host.user, gid: host.group, user, group };
        let index = match self.known.iter().position(|(known, _)| *known == mapping) {
            Some(index) => index,
            None => {
                let made = self.make(mapping)?;
                self.known.push((mapping, made));
                self.known.len() - 1
            }
        };
        self.known.get(index).map(|(_, namespace)| namespace.as_fd()).ok_or(Errno::INVAL)
    }

    fn make(&self, mapping: OwnerMapping) -> Result<OwnedFd, Errno> {
        let holder = NamespaceHolder::start()?;
        let pid = holder.pid.as_raw_nonzero();
        for (file, from, to) in [("uid_map", mapping.uid, mapping.user), ("gid_map", mapping.gid, mapping.group)] {
            let to = self.base.checked_add(to).ok_or(Errno::OVERFLOW)?;
            let map = format!("{from} {to} 1\n");
            std::fs::write(format!("/proc/{pid}/{file}"), map)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        rustix::fs::openat(CWD, format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }
}

// === impl NamespaceHolder ===

impl NamespaceHolder {
    fn start() -> Result<Self, Errno> {
        let (wait, end) = pipe_with(PipeFlags::CLOEXEC)?;
        match sys::clone(sys::USERS, None)? {
            CloneResult::Parent(pid, process) => Ok(Self { pid, process, end: Some(end) }),
            CloneResult::Child => {
                drop(end);
                let _ended = rustix::io::retry_on_intr(|| rustix::io::read(&wait, &mut [0; 1]));
                sys::exit_now(0)
            }
        }
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.end.take());
        let _reaped = rustix::io::retry_on_intr(|| {
            rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED)
        });
    }
}
