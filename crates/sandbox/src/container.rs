//! A running sandbox, and one that is about to be.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use crate::disk::KeptDisk;
use crate::gvisor::Diagnosis;
use crate::ids::IdRange;

/// A running sandbox: its first process, and what it has to itself. Dropped, it is killed.
#[derive(Debug)]
pub struct Container {
    pid: Pid,
    process: OwnedFd,
    changes: Option<OwnedFd>,
    kept: Option<KeptDisk>,
    /// Its disk in memory, if that lies over layers: whoever may look at this process finds there what was written.
    _memory: Option<OwnedFd>,
    /// What the runtime says that it runs in, if there is one.
    diagnosis: Option<Diagnosis>,
    /// A list of the locks of its processes.
    locks: Option<OwnedFd>,
    /// Given back only when nothing can have them any more.
    ids: IdRange,
}

/// A process in new namespaces that waits to become a sandbox. Dropped before it does, it is killed.
pub(crate) struct PendingContainer {
    pid: Pid,
    process: Option<OwnedFd>,
}

// === impl Container ===

impl Container {
    /// Its first process, as the host numbers it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// A descriptor that is readable once it has ended.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// The ids that it has to itself.
    pub fn ids(&self) -> &IdRange {
        &self.ids
    }

    /// What it has written over its project: the upper directory of an overlay, open. It stays readable after the
    /// sandbox has ended, for as long as this descriptor or a copy of it is held, in whatever process.
    ///
    /// The directory is complete by itself: nothing in it points to the host's copy, and a file that was changed in any
    /// way, be it its mode alone, is there whole. A reader finds:
    ///
    /// - what is new or changed, under its own name; a directory that was renamed is a new one with all that is in it;
    /// - a character device 0/0 for each name that was deleted;
    /// - `user.overlay.opaque` with the value `y` on a directory that was deleted and made anew: of what the host has
    ///   there, nothing remains;
    /// - other attributes `user.overlay.*`, which mean something to the kernel alone.
    ///
    /// Nobody inside can make a device or such an attribute there. All else was made by the sandbox: names, links and
    /// modes are an attacker's. OwnerNamespaces are the host's ids: `ids().base()` and the id inside.
    pub fn changes(&self) -> Option<&OwnedFd> {
        self.changes.as_ref()
    }

    /// The disk that stays, if it has one.
    pub fn kept_disk(&self) -> Option<&KeptDisk> {
        self.kept.as_ref()
    }

    /// A list of the locks of its processes, which is there once.
    pub(crate) fn take_locks(&mut self) -> Option<OwnedFd> {
        self.locks.take()
    }

    /// Whether a runtime stands between it and the kernel of the host.
    pub fn has_runtime(&self) -> bool {
        self.diagnosis.is_some()
    }

    /// Why the runtime that it runs in ended, if it has one that said so.
    pub fn diagnosis(&self) -> Option<String> {
        self.diagnosis.as_ref().and_then(Diagnosis::last_line)
    }

    /// Sends a signal to its first process, which obeys it because it comes from outside.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(&self.process, signal)
    }

    /// Waits until it has ended, and with it all that was in it.
    pub fn wait(&self) -> Result<WaitIdStatus, Errno> {
        wait(&self.process)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        end(&self.process);
    }
}

// === impl PendingContainer ===

impl PendingContainer {
    pub(crate) fn new(pid: Pid, process: OwnedFd) -> Self {
        Self { pid, process: Some(process) }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn into_container(
        mut self,
        ids: IdRange,
        changes: Option<OwnedFd>,
        disk: (Option<KeptDisk>, Option<OwnedFd>),
        diagnosis: Option<Diagnosis>,
        locks: Option<OwnedFd>,
    ) -> Option<Container> {
        let (kept, _memory) = disk;
        Some(Container { pid: self.pid, process: self.process.take()?, changes, kept, _memory, diagnosis, locks, ids })
    }
}

impl Drop for PendingContainer {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            end(process);
        }
    }
}

fn wait(process: &OwnedFd) -> Result<WaitIdStatus, Errno> {
    loop {
        match rustix::process::waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Ends a process and buries it. Whoever has already waited for it gets an error, and there is nothing left to do.
fn end(process: &OwnedFd) {
    if rustix::process::pidfd_send_signal(process, Signal::KILL).is_ok() {
        let _buried = wait(process);
    }
}
