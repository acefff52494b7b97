//! Handles of directories that cannot be left.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

/// Opens a directory as a tree of its own, which shows what is in it and nothing of what is mounted below: `..` leads
/// from it to itself. The caller has called [`leave_host_mounts`](crate::leave_host_mounts), or has the right to mount.
pub fn handle(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(open_detached(CWD, path)?)
}

/// The same for a directory that is open.
pub fn handle_of(directory: &OwnedFd) -> std::io::Result<OwnedFd> {
    Ok(open_detached(directory, c".")?)
}

/// The same, relative to an open directory.
pub(crate) fn open_detached(directory: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(directory, path, flags)?;
    // What `open_tree` returns only names the directory; one that is open can be listed and made durable.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&tree, c".", flags, Mode::empty())
}
