//! Notifications of out-of-memory events in a group.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::CgroupError;
use super::host::Controller;
use super::{Cgroup, HierarchyGroup};

/// The event counters of v2, which are also pollable.
const V2_EVENTS: &str = "memory.events";
/// The counters of v1.
const V1_CONTROL: &str = "memory.oom_control";
/// The v1 file that registers eventfds.
const V1_REGISTER: &str = "cgroup.event_control";

/// A descriptor that becomes ready when the kernel runs out of memory for a group.
///
/// It needs no privileges after its creation. It may be ready without an OOM kill: v2 reports other events by it too, and v1
/// notifies before it kills, so that
/// [`out_of_memory_kills`](Cgroup::out_of_memory_kills) may rise a moment later. The removal of the group makes it ready as
/// well.
#[derive(Debug)]
pub struct OomWatch {
    fd: OwnedFd,
    file: PathBuf,
    priority: bool,
}

// === impl Cgroup ===

impl Cgroup {
    /// Watches for OOM events, where this host can report them.
    pub fn watch_out_of_memory(&self) -> Result<Option<OomWatch>, CgroupError> {
        let Some(part) = self.part(Controller::Memory) else { return Ok(None) };
        let (file, fd) = if part.unified { (V2_EVENTS, part.events()) } else { (V1_REGISTER, part.register()) };
        let file = part.directory.join(file);
        let fd = match fd {
            Ok(fd) => fd,
            // Both are optional in a kernel build.
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(CgroupError::Wait { file, errno }),
        };
        let watch = OomWatch { fd, file, priority: part.unified };
        // On v2, a read arms the first notification.
        watch.acknowledge()?;
        Ok(Some(watch))
    }
}

// === impl HierarchyGroup ===

impl HierarchyGroup {
    fn events(&self) -> Result<OwnedFd, Errno> {
        self.directory.open_file(V2_EVENTS, OFlags::RDONLY)
    }

    /// Registers an eventfd. The kernel keeps neither of the two files.
    fn register(&self) -> Result<OwnedFd, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let counts = self.directory.open_file(V1_CONTROL, OFlags::RDONLY)?;
        let numbers = format!("{} {}", fd.as_raw_fd(), counts.as_raw_fd());
        self.directory.write(V1_REGISTER, &numbers)?;
        Ok(fd)
    }
}

// === impl OomWatch ===

impl OomWatch {
    /// Whether readiness is `POLLPRI` instead of `POLLIN`.
    pub fn priority(&self) -> bool {
        self.priority
    }

    /// Acknowledges the event, so that it becomes ready again for later ones only. On v2 it fails once the group is removed.
    pub fn acknowledge(&self) -> Result<(), CgroupError> {
        let failed = |errno| CgroupError::Read { file: self.file.clone(), errno };
        let mut buffer = [0; 512];
        let read = if self.priority {
            rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut buffer, 0))
        } else {
            rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut buffer))
        };
        match read {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
