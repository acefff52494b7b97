//! Being told when the kernel runs out of memory for a group.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::CgroupError;
use super::host::Controller;
use super::{Cgroup, HierarchyGroup};

/// The file that counts on v2, and by which the kernel tells that it has counted.
const V2_EVENTS: &str = "memory.events";
/// The file that counts on v1.
const V1_CONTROL: &str = "memory.oom_control";
/// The file by which v1 takes descriptors that it is to make ready.
const V1_REGISTER: &str = "cgroup.event_control";

/// A descriptor that becomes ready when the kernel runs out of memory for a group.
///
/// It needs no rights but those with which it was made. It may be ready without a process having been ended: v2 tells
/// of other things by it too, and v1 tells before it ends one, so that
/// [`out_of_memory_kills`](Cgroup::out_of_memory_kills) may rise a moment later. The removal of the group makes it
/// ready as well.
#[derive(Debug)]
pub struct OomWatch {
    fd: OwnedFd,
    file: PathBuf,
    priority: bool,
}

// === impl Cgroup ===

impl Cgroup {
    /// Watches for want of memory, where this host can tell of it.
    pub fn watch_out_of_memory(&self) -> Result<Option<OomWatch>, CgroupError> {
        let Some(part) = self.part(Controller::Memory) else { return Ok(None) };
        let (file, fd) = if part.unified { (V2_EVENTS, part.events()) } else { (V1_REGISTER, part.register()) };
        let file = part.directory.join(file);
        let fd = match fd {
            Ok(fd) => fd,
            // Neither has to be there: a kernel may be built without them.
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(CgroupError::Wait { file, errno }),
        };
        let watch = OomWatch { fd, file, priority: part.unified };
        // On v2, reading is what arms the first announcement.
        watch.acknowledge()?;
        Ok(Some(watch))
    }
}

// === impl HierarchyGroup ===

impl HierarchyGroup {
    fn events(&self) -> Result<OwnedFd, Errno> {
        self.directory.open_file(V2_EVENTS, OFlags::RDONLY)
    }

    /// Has the kernel make a descriptor ready. It keeps neither of the two files that this takes.
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
    /// Whether it becomes ready as urgent (`POLLPRI`), and not as readable (`POLLIN`).
    pub fn priority(&self) -> bool {
        self.priority
    }

    /// Takes note, so that it becomes ready again only for what happens from now on. On v2 it fails once the group is
    /// removed: there is nothing more to watch.
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
