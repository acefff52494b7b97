//! Directory handles that cannot be escaped.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

/// Opens a directory as a detached mount, without the mounts below it: its `..` is the directory itself. The caller has called
/// [`leave_host_mounts`](crate::leave_host_mounts), or has the right to mount.
pub fn open_handle(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(open_detached(CWD, path)?)
}

/// The same for an open directory.
pub fn reopen_handle(directory: &OwnedFd) -> std::io::Result<OwnedFd> {
    Ok(open_detached(directory, c".")?)
}

/// The same, relative to an open directory.
pub(crate) fn open_detached(directory: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(directory, path, flags)?;
    // `open_tree` returns an `O_PATH` descriptor; this one can be listed and fsynced.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&tree, c".", flags, Mode::empty())
}
