//! A directory with a project quota of the host's file system.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::persistent::{DiskError, DiskQuota, system};
use crate::mount;
use crate::sys::{self, ProjectUsage};

/// The first project id that we use: above those that administrators assign by hand.
const FIRST_ID: u32 = 0x4000_0000;
/// How many ids are tried before the search for a free one fails.
const ATTEMPTS: u32 = 1024;
/// The default inode limit: one for this many bytes.
const BYTES_PER_FILE: u64 = 4096;
/// The least inode limit by default.
const MIN_FILES: u64 = 1024;

/// Whether the file system of a directory enforces project quotas.
pub(super) fn enforced(directory: &OwnedFd) -> bool {
    sys::enforces_project_quota(directory.as_fd())
}

/// Creates a directory with a quota.
pub(super) fn create(parent: &OwnedFd, name: &str, quota: DiskQuota) -> Result<(), DiskError> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)).map_err(system("create a directory"))?;
    let directory = open(parent, name).map_err(system("open the directory"))?;
    let project = free_project(directory.as_fd()).map_err(system("find a free project id"))?;
    let usual = || (quota.bytes / BYTES_PER_FILE).saturating_add(MIN_FILES);
    let inodes = quota.inodes.unwrap_or_else(usual);
    sys::set_project_quota(directory.as_fd(), project, quota.bytes, inodes).map_err(system("set the quota"))?;
    sys::set_project(directory.as_fd(), project).map_err(system("set the project id"))
}

/// A detached mount of the directory. It is copied from the path, since most kernels cannot copy a detached mount.
pub(super) fn mount(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mount = mount::copy_without_submounts(&rustix::fs::openat(CWD, path, flags, Mode::empty())?)?;
    sys::set_mount(mount.as_fd(), sys::WRITABLE_ATTRIBUTES, None)?;
    Ok(mount)
}

/// Removes the quota, so that the project id is free.
pub(super) fn remove(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
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

/// A project id without usage or limit on this file system: the one derived from the directory's inode, or the next free one.
fn free_project(directory: BorrowedFd<'_>) -> Result<u32, Errno> {
    let own = rustix::fs::statat(directory, c"", AtFlags::EMPTY_PATH)?.st_ino;
    let own = u32::try_from(own % u64::from(FIRST_ID)).map_err(|_| Errno::RANGE)?;
    for id in (FIRST_ID + own..=u32::MAX - 1).take(usize::try_from(ATTEMPTS).map_err(|_| Errno::RANGE)?) {
        match sys::project_usage(directory, id) {
            Ok(ProjectUsage { limit: 0, used: 0 }) | Err(Errno::NOENT | Errno::SRCH) => return Ok(id),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOSPC)
}
