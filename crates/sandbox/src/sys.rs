//! The system-call corner: what `rustix` does not offer as safe functions. Nothing else in this crate is unsafe.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// Which side of a clone this is.
pub(crate) enum Cloned {
    /// The new process, in its namespaces.
    Child,
    /// The old one, with the new one's id and a descriptor that stands for it.
    Parent(Pid, OwnedFd),
}

/// Gives this process, which has one thread, mounts of its own: whatever it mounts ends with it.
pub(crate) fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: changes only which mounts this process sees; no memory or descriptor of ours depends on that.
    match unsafe { libc::unshare(libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Gives this process, which has joined its cgroup, a view of cgroups that begins there.
pub(crate) fn unshare_cgroups() -> Result<(), Errno> {
    // SAFETY: changes only how cgroups are named to this process.
    match unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Every namespace of a sandbox but that of cgroups, which is made when its cgroup is joined.
pub(crate) const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET) as u64;

/// Read-only, without raised privileges and without devices.
pub(crate) const SHOWN: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// Clones this process into new namespaces. The caller has one thread.
pub(crate) fn clone_into_namespaces() -> Result<Cloned, Errno> {
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
        0 => Ok(Cloned::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
            // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
            Ok(Cloned::Parent(pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
        }
    }
}

/// Sets attributes of a mount and all mounts below it; with a user namespace, shows its files through that one's ids.
pub(crate) fn set_mount(mount: BorrowedFd<'_>, attributes: u64, ids: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let idmap = ids.map_or(0, |_| libc::MOUNT_ATTR_IDMAP);
    let attr = libc::mount_attr {
        attr_set: attributes | idmap,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: ids.map_or(0, |ids| u64::try_from(ids.as_raw_fd()).unwrap_or(0)),
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is a terminated string and `attr` is a plain structure of the size that is given; both outlive
    // the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes the working directory the root of the mount namespace, with the old root below it at the same place.
pub(crate) fn pivot_to_working_directory() -> Result<(), Errno> {
    // SAFETY: both paths are terminated strings.
    match unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Replaces this process by a program that is open; returns only on failure.
pub(crate) fn execute(program: impl AsFd, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> Errno {
    let program = program.as_fd().as_raw_fd();
    // SAFETY: the callers end both lists with a null pointer, and all strings outlive the call.
    unsafe {
        libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), argv.as_ptr(), envp.as_ptr(), libc::AT_EMPTY_PATH)
    };
    last_errno()
}

/// Ends this process without running anything registered for its end.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Whatever is open besides 0, 1 and 2 does not survive the next program.
pub(crate) fn close_on_exec_above_standard() {
    // SAFETY: marks descriptors close-on-exec; closes none.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Brings the loopback interface up.
pub(crate) fn raise_loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all zero is a valid value of this plain structure; the name is shorter than its field; the kernel reads
    // and writes only this structure.
    unsafe {
        let mut request = std::mem::zeroed::<libc::ifreq>();
        for (slot, byte) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
            *slot = *byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags =
            libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(libc::c_short::MAX);
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) != 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Installs a system-call filter for this process and all it starts, without taking from it the right to raise the
/// privileges of what it executes: it has the capability, and its children lose that right one by one.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let length = libc::c_ushort::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `length` instructions from a live slice and writes nothing.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
