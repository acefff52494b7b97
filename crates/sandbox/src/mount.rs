//! Detached mounts, and attaching them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

pub(crate) fn nodev() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV
}

/// A new file system, detached.
pub(crate) fn new(kind: &str, options: &[(&str, &str)], flags: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// An empty read-only directory.
pub(crate) fn empty() -> Result<OwnedFd, Errno> {
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    new("tmpfs", &[("size", "4096"), ("mode", "555")], flags)
}

/// A detached copy of a mount, with the mounts below it.
pub(crate) fn copy(place: &OwnedFd) -> Result<OwnedFd, Errno> {
    detached(place, OpenTreeFlags::AT_RECURSIVE)
}

/// A detached copy of a mount, without the mounts below it.
pub(crate) fn copy_without_submounts(place: &OwnedFd) -> Result<OwnedFd, Errno> {
    detached(place, OpenTreeFlags::empty())
}

fn detached(place: &OwnedFd, flags: OpenTreeFlags) -> Result<OwnedFd, Errno> {
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(place, c"", copy | flags)
}

pub(crate) fn attach(mount: &OwnedFd, directory: impl AsFd, path: &str) -> Result<(), Errno> {
    rustix::mount::move_mount(mount, c"", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

pub(crate) fn attach_at(mount: &OwnedFd, place: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", place, c"", flags)
}
