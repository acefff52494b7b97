//! System calls that `rustix` does not offer as safe functions: the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// The two sides of a clone.
pub(super) enum CloneSide {
    /// The new process, in its namespaces.
    Child,
    /// The old one, with the PID and pidfd of the new one.
    Parent(Pid, OwnedFd),
}

/// All namespaces that a process can have.
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;

/// `nosuid`, `nodev`, `noexec`.
const ATTRIBUTES: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;

/// Closes all descriptors above the standard ones.
pub(super) fn close_inherited() -> Result<(), Errno> {
    // SAFETY: called first of all: nothing of this process owns a descriptor yet, and those that it was left with by
    // another belong to no user.
    match unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Clones this process, which has one thread, into new namespaces.
pub(super) fn clone() -> Result<CloneSide, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all zero is a valid value of this plain structure.
    let mut args = unsafe { std::mem::zeroed::<libc::clone_args>() };
    args.flags = NAMESPACES | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of everything, and the process has a single
    // thread, so no lock can be held by a thread that the child does not have. `pidfd` outlives the call.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } {
        -1 => Err(last_errno()),
        0 => Ok(CloneSide::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
            // SAFETY: the kernel has just made this descriptor for us, and nothing else uses it.
            Ok(CloneSide::Parent(pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
        }
    }
}

/// Makes a detached mount idmapped, with the IDs of a user namespace.
pub(super) fn show_ids(mount: BorrowedFd<'_>, ids: BorrowedFd<'_>) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: ATTRIBUTES | libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: u64::try_from(ids.as_raw_fd()).map_err(|_| Errno::BADF)?,
    };
    // SAFETY: the path is a terminated string and `attr` is a plain structure of the size that is given; both outlive
    // the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes the working directory the root, with the old root mounted over it.
pub(super) fn pivot_to_working_directory() -> Result<(), Errno> {
    // SAFETY: both paths are terminated strings.
    match unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
