//! A directory whose size the host's file system limits, as that of a project.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::kept::{DiskError, Quota, system};
use crate::mount;
use crate::sys::{self, Usage};

/// Where the numbers of our projects begin: above what administrators number by hand.
const FIRST: u32 = 0x4000_0000;
/// How many numbers are tried for one that nobody uses.
const ATTEMPTS: u32 = 1024;
/// For how many bytes there may be one file.
const BYTES_PER_FILE: u64 = 4096;
/// How many files there may be in any case.
const LEAST_FILES: u64 = 1024;

/// Whether the file system of a directory has quotas of projects, switched on.
pub(super) fn enforced(directory: &OwnedFd) -> bool {
    sys::enforces_project_quota(directory.as_fd())
}

/// Makes a directory of at most some size.
pub(super) fn create(parent: &OwnedFd, name: &str, quota: Quota) -> Result<(), DiskError> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)).map_err(system("make a directory"))?;
    let directory = open(parent, name).map_err(system("open the directory"))?;
    let project = free_project(directory.as_fd()).map_err(system("find a project"))?;
    let usual = || (quota.bytes / BYTES_PER_FILE).saturating_add(LEAST_FILES);
    let inodes = quota.inodes.unwrap_or_else(usual);
    sys::set_project_quota(directory.as_fd(), project, quota.bytes, inodes).map_err(system("set the quota"))?;
    sys::set_project(directory.as_fd(), project).map_err(system("number the project"))
}

/// Shows the directory, attached nowhere. By its path: what is itself attached nowhere cannot be copied by most
/// kernels.
pub(super) fn mount(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mount = mount::copy_alone(&rustix::fs::openat(CWD, path, flags, Mode::empty())?)?;
    sys::set_mount(mount.as_fd(), sys::WRITABLE_ATTRIBUTES, None)?;
    Ok(mount)
}

/// Gives the number of the project back.
pub(super) fn lift(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let directory = open(parent, name)?;
    match sys::project(directory.as_fd())? {
        0 => Ok(()),
        project => sys::set_project_quota(directory.as_fd(), project, 0, 0),
    }
}

fn open(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// A number that no project of this file system has: the directory's own, or the next that is free.
fn free_project(directory: BorrowedFd<'_>) -> Result<u32, Errno> {
    let own = rustix::fs::statat(directory, c"", AtFlags::EMPTY_PATH)?.st_ino;
    let own = u32::try_from(own % u64::from(FIRST)).map_err(|_| Errno::RANGE)?;
    for number in (FIRST + own..=u32::MAX - 1).take(usize::try_from(ATTEMPTS).map_err(|_| Errno::RANGE)?) {
        match sys::project_usage(directory, number) {
            Ok(Usage { limit: 0, used: 0 }) | Err(Errno::NOENT | Errno::SRCH) => return Ok(number),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOSPC)
}
