//! A running sandbox, and one that is being created.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use crate::disk::PersistentDisk;
use crate::gvisor::RuntimeStderr;
use crate::ids::IdRange;

/// A running sandbox: its pid 1, and the resources that it owns. Dropping kills it.
#[derive(Debug)]
pub struct Container {
    pid: Pid,
    process: OwnedFd,
    changes: Option<OwnedFd>,
    disk: Option<PersistentDisk>,
    /// Its in-memory disk, if it runs on layers: kept open so that the written files stay readable through this process.
    _memory: Option<OwnedFd>,
    /// The standard error of its runtime, if it has one.
    diagnosis: Option<RuntimeStderr>,
    /// The list of file locks of its processes.
    locks: Option<OwnedFd>,
    /// Released only when no process can use them any more.
    ids: IdRange,
}

/// A process in new namespaces that waits to become a sandbox. Dropping kills it.
pub(crate) struct PendingContainer {
    pid: Pid,
    process: Option<OwnedFd>,
}

// === impl Container ===

impl Container {
    /// Its pid 1, in the host's pid namespace.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// A pidfd: readable once the sandbox has exited.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// The host ids of the sandbox.
    pub fn ids(&self) -> &IdRange {
        &self.ids
    }

    /// The upper directory of the project's overlay, open. It stays readable after the sandbox has exited, for as long as this
    /// descriptor or a copy of it is open, in any process.
    ///
    /// The directory is self-contained: nothing in it refers to the host's copy, and a file with any change, even of its
    /// mode only, is complete. A reader finds:
    ///
    /// - new and changed files under their own names; a renamed directory is a new one with all its entries;
    /// - a character device 0/0 for each deleted name;
    /// - `user.overlay.opaque` with the value `y` on a directory that was deleted and recreated: nothing of the host's directory
    ///   remains;
    /// - other attributes `user.overlay.*`, which only the kernel uses.
    ///
    /// The sandbox cannot create a device or such an attribute there. Everything else is untrusted: names, links and modes are
    /// chosen by the sandbox. Owners are host ids: `ids().base()` plus the id in the sandbox.
    pub fn changes(&self) -> Option<&OwnedFd> {
        self.changes.as_ref()
    }

    /// Its persistent disk, if it has one.
    pub fn persistent_disk(&self) -> Option<&PersistentDisk> {
        self.disk.as_ref()
    }

    /// The list of file locks of its processes; it can be taken once.
    pub(crate) fn take_locks(&mut self) -> Option<OwnedFd> {
        self.locks.take()
    }

    /// Whether a runtime separates it from the host's kernel.
    pub fn has_runtime(&self) -> bool {
        self.diagnosis.is_some()
    }

    /// Why its runtime exited, if it has one that reported an error.
    pub fn diagnosis(&self) -> Option<String> {
        self.diagnosis.as_ref().and_then(RuntimeStderr::last_line)
    }

    /// Sends a signal to its pid 1, which cannot ignore it, since it comes from an outer pid namespace.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(&self.process, signal)
    }

    /// Waits until pid 1 has exited, and with it all processes of the sandbox.
    pub fn wait(&self) -> Result<WaitIdStatus, Errno> {
        wait(&self.process)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        kill_and_reap(&self.process);
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
        disk: (Option<PersistentDisk>, Option<OwnedFd>),
        diagnosis: Option<RuntimeStderr>,
        locks: Option<OwnedFd>,
    ) -> Option<Container> {
        let (disk, _memory) = disk;
        Some(Container { pid: self.pid, process: self.process.take()?, changes, disk, _memory, diagnosis, locks, ids })
    }
}

impl Drop for PendingContainer {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            kill_and_reap(process);
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

/// Kills a process and reaps it. If it was reaped already, the signal fails and nothing is left to do.
fn kill_and_reap(process: &OwnedFd) {
    if rustix::process::pidfd_send_signal(process, Signal::KILL).is_ok() {
        let _reaped = wait(process);
    }
}
