//! System calls that `rustix` does not offer as safe functions. Nothing else in this crate is unsafe.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// The result of a clone, on either side.
pub(crate) enum CloneResult {
    /// The child, in its namespaces.
    Child,
    /// The parent, with the pid and the pidfd of the child.
    Parent(Pid, OwnedFd),
}

/// Returns freed memory to the system (`malloc_trim`).
#[cfg(target_env = "gnu")]
pub(crate) fn release_memory() {
    // SAFETY: works on the allocator's own bookkeeping; no memory in use moves.
    unsafe { libc::malloc_trim(0) };
}

/// Returns freed memory to the system; only glibc needs it.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn release_memory() {}

/// Runs a closure in the child between `fork` and `exec`. It only makes system calls: it neither allocates nor locks.
pub(crate) fn before_exec(
    command: &mut std::process::Command,
    prepare: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: what is done between the fork and the program only makes system calls, as every caller promises.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
}

/// Closes all descriptors above the standard ones.
pub(crate) fn close_inherited() -> Result<(), Errno> {
    // SAFETY: callers do this first of all, as `close_inherited_descriptors` demands: nothing in this process owns a
    // descriptor yet, and inherited ones have no owner.
    match unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Signals that end a process by default, and that a process may receive for no reason of its own: a stopped process whose
/// parent dies gets `SIGHUP` from the kernel.
const STRAY_SIGNALS: [libc::c_int; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, libc::SIGPIPE];

/// Blocks `SIGTERM` and stray signals, and returns a signalfd that is readable once a `SIGTERM` arrived.
pub(crate) fn termination_descriptor() -> Result<OwnedFd, Errno> {
    // SAFETY: all zero is a valid value of these plain structures, and each call reads or writes one of them alone.
    let descriptor = unsafe {
        let mut signals = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut signals);
        let mut blocked = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut blocked);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        for signal in STRAY_SIGNALS.into_iter().chain([libc::SIGTERM]) {
            libc::sigaddset(&raw mut blocked, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut()) != 0 {
            return Err(last_errno());
        }
        libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if descriptor < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Locks one byte of a file for an open file description: an exclusive lock fails if another has a lock, a shared one waits.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, byte: i64, exclusive: bool) -> Result<(), Errno> {
    let (kind, command) = match exclusive {
        true => (libc::F_WRLCK, libc::F_OFD_SETLK),
        false => (libc::F_RDLCK, libc::F_OFD_SETLKW),
    };
    // SAFETY: all zero is a valid value of this plain structure.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
    let short = |number| libc::c_short::try_from(number).map_err(|_| Errno::INVAL);
    (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) = (short(kind)?, short(libc::SEEK_SET)?, byte, 1);
    loop {
        // SAFETY: the descriptor is open as long as it is borrowed, and the call only reads the structure.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
            0 => return Ok(()),
            _ => match last_errno() {
                Errno::INTR => {}
                error => return Err(error),
            },
        }
    }
}

/// Gives this process, which has one thread, a mount namespace of its own.
pub(crate) fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: changes only which mounts this process sees; no memory or descriptor of ours depends on that.
    match unsafe { libc::unshare(libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Gives this process, which has joined its cgroup, a cgroup namespace with that root.
pub(crate) fn unshare_cgroups() -> Result<(), Errno> {
    // SAFETY: changes only how cgroups are named to this process.
    match unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// A user namespace only.
pub(crate) const USERS: u64 = libc::CLONE_NEWUSER as u64;

/// Every namespace of a sandbox but that of cgroups, which is created after its cgroup is joined.
pub(crate) const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET) as u64;

/// A network namespace only.
pub(crate) const NETWORK: u64 = libc::CLONE_NEWNET as u64;

/// `CLONE_INTO_CGROUP`; wider than the type that `libc` gives it.
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// `nosuid` and `nodev`.
pub(crate) const WRITABLE_ATTRIBUTES: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
/// The same, read-only.
pub(crate) const READ_ONLY_ATTRIBUTES: u64 = libc::MOUNT_ATTR_RDONLY | WRITABLE_ATTRIBUTES;

/// Clones this process into new namespaces, if any flags are given, and into a v2 cgroup, if one is given. The caller has one
/// thread.
pub(crate) fn clone(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<CloneResult, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all zero is a valid value of this plain structure.
    let mut args = unsafe { std::mem::zeroed::<libc::clone_args>() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?;
    }
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of everything, and the process has a single
    // thread, so no lock can be held by a thread that the child does not have. `pidfd` outlives the call.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } {
        -1 => Err(last_errno()),
        0 => Ok(CloneResult::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
            // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
            Ok(CloneResult::Parent(pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
        }
    }
}

/// Sets attributes of a mount and all mounts below it; with a user namespace, id-maps them.
pub(crate) fn set_mount(mount: BorrowedFd<'_>, attributes: u64, ids: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    set_mounts(mount, attributes, ids, libc::AT_RECURSIVE)
}

/// Sets attributes of a mount, not of those below it.
pub(crate) fn set_mount_alone(mount: BorrowedFd<'_>, attributes: u64) -> Result<(), Errno> {
    set_mounts(mount, attributes, None, 0)
}

fn set_mounts(
    mount: BorrowedFd<'_>,
    attributes: u64,
    ids: Option<BorrowedFd<'_>>,
    flags: libc::c_int,
) -> Result<(), Errno> {
    let idmap = ids.map_or(0, |_| libc::MOUNT_ATTR_IDMAP);
    let attr = libc::mount_attr {
        attr_set: attributes | idmap,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: ids.map_or(0, |ids| u64::try_from(ids.as_raw_fd()).unwrap_or(0)),
    };
    // SAFETY: the path is a terminated string and `attr` is a plain structure of the size that is given; both outlive
    // the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags | libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes the working directory the root of the mount namespace; the old root is stacked at the same place.
pub(crate) fn pivot_to_working_directory() -> Result<(), Errno> {
    // SAFETY: both paths are terminated strings.
    match unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Executes an open program; returns only on failure.
pub(crate) fn execute(program: impl AsFd, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> Errno {
    let program = program.as_fd().as_raw_fd();
    // SAFETY: the callers end both lists with a null pointer, and all strings outlive the call.
    unsafe {
        libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), argv.as_ptr(), envp.as_ptr(), libc::AT_EMPTY_PATH)
    };
    last_errno()
}

/// Exits without running exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Marks all descriptors but the standard ones close-on-exec.
pub(crate) fn close_on_exec_above_standard() {
    // SAFETY: marks descriptors close-on-exec; closes none.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Duplicates a descriptor to a number, without close-on-exec. The former descriptor of that number is closed.
pub(crate) fn place(descriptor: BorrowedFd<'_>, number: libc::c_int) -> Result<(), Errno> {
    // SAFETY: what is closed by this, if anything, belongs to a process that is about to execute another program, and
    // the caller guarantees that nothing uses the old descriptor.
    match unsafe { libc::dup2(descriptor.as_raw_fd(), number) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// The creator of the user namespace that owns another namespace.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> Result<u32, Errno> {
    /// `NS_GET_USERNS` and `NS_GET_OWNER_UID`.
    const USERS: libc::Ioctl = 0xb701;
    const OWNER: libc::Ioctl = 0xb704;
    // SAFETY: the request takes nothing and writes nothing.
    let users = match unsafe { libc::ioctl(namespace.as_raw_fd(), USERS) } {
        -1 => return Err(last_errno()),
        // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
        users => unsafe { OwnedFd::from_raw_fd(users) },
    };
    let mut owner: libc::uid_t = 0;
    // SAFETY: the kernel writes one number of the kind that the request is for.
    match unsafe { libc::ioctl(users.as_raw_fd(), OWNER, &raw mut owner) } {
        0 => Ok(owner),
        _ => Err(last_errno()),
    }
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

/// The usage and the limit of a project, in bytes.
pub(crate) struct ProjectUsage {
    pub(crate) limit: u64,
    pub(crate) used: u64,
}

/// Whether the file system enforces project quotas, and does not only count.
pub(crate) fn enforces_project_quota(on: BorrowedFd<'_>) -> bool {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut state = unsafe { std::mem::zeroed::<QuotaState>() };
    // SAFETY: the kernel writes one structure of the kind that the command is for.
    let result = unsafe { quota_call(on, QUOTA_STATE, 0, (&raw mut state).cast()) };
    result.is_ok() && state.flags & PROJECTS_ENFORCED != 0
}

/// Sets the quota of a project; 0 is no limit.
pub(crate) fn set_project_quota(on: BorrowedFd<'_>, project: u32, bytes: u64, files: u64) -> Result<(), Errno> {
    let blocks = bytes.div_ceil(1024);
    // SAFETY: all zero is a valid value of this plain structure.
    let mut quota = unsafe { std::mem::zeroed::<libc::dqblk>() };
    (quota.dqb_bhardlimit, quota.dqb_bsoftlimit) = (blocks, blocks);
    (quota.dqb_ihardlimit, quota.dqb_isoftlimit) = (files, files);
    quota.dqb_valid = libc::QIF_LIMITS;
    // SAFETY: the kernel reads one structure of the kind that the command is for.
    unsafe { quota_call(on, libc::Q_SETQUOTA, project, (&raw mut quota).cast()) }
}

pub(crate) fn project_usage(on: BorrowedFd<'_>, project: u32) -> Result<ProjectUsage, Errno> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut quota = unsafe { std::mem::zeroed::<libc::dqblk>() };
    // SAFETY: the kernel writes one structure of the kind that the command is for.
    unsafe { quota_call(on, libc::Q_GETQUOTA, project, (&raw mut quota).cast()) }?;
    Ok(ProjectUsage { limit: quota.dqb_bhardlimit, used: quota.dqb_curspace })
}

/// Assigns a directory, and everything that will be created in it, to a project.
pub(crate) fn set_project(directory: BorrowedFd<'_>, project: u32) -> Result<(), Errno> {
    let mut attributes = file_attributes(directory)?;
    attributes.project = project;
    attributes.flags |= PROJECT_INHERITED;
    // SAFETY: the kernel reads one structure of the kind that the request is for.
    match unsafe { libc::ioctl(directory.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

pub(crate) fn project(directory: BorrowedFd<'_>) -> Result<u32, Errno> {
    file_attributes(directory).map(|attributes| attributes.project)
}

fn file_attributes(file: BorrowedFd<'_>) -> Result<FileAttributes, Errno> {
    let mut attributes = FileAttributes::default();
    // SAFETY: the kernel writes one structure of the kind that the request is for.
    match unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) } {
        0 => Ok(attributes),
        _ => Err(last_errno()),
    }
}

/// A `quotactl` call.
///
/// # Safety
///
/// `data` points to a structure of the kind that the command is for.
unsafe fn quota_call(
    on: BorrowedFd<'_>,
    command: libc::c_int,
    project: u32,
    data: *mut libc::c_void,
) -> Result<(), Errno> {
    /// The kind of quota that is for projects.
    const PROJECTS: libc::c_int = 2;
    let command = command << 8 | PROJECTS;
    // SAFETY: what the caller promises.
    match unsafe { libc::syscall(libc::SYS_quotactl_fd, on.as_raw_fd(), command, project, data) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// `Q_XGETQSTAT`: the state of quotas.
const QUOTA_STATE: libc::c_int = 0x5805;
/// In its result: project quotas are enforced.
const PROJECTS_ENFORCED: u16 = 1 << 5;
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;
/// New files in a directory inherit its project.
const PROJECT_INHERITED: u32 = 0x200;

/// `struct fs_quota_stat`, of which we read the beginning.
#[repr(C)]
struct QuotaState {
    version: i8,
    flags: u16,
    rest: [u64; 12],
}

/// `struct fsxattr`.
#[derive(Default)]
#[repr(C)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE`.
const LOOP_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
/// `LO_FLAGS_AUTOCLEAR`.
const CLEARED_WITH_LAST_USER: u32 = 4;

#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    places: [u64; 5],
    numbers: [u32; 3],
    flags: u32,
    names: [u8; 160],
    rest: [u64; 10],
}

/// The number of a free loop device, created if necessary.
pub(crate) fn free_loop(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: the request takes and writes nothing.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_GET_FREE) };
    u32::try_from(number).map_err(|_| last_errno())
}

/// Attaches a file to a loop device, which is detached when its last user closes it.
pub(crate) fn configure_loop(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut config = unsafe { std::mem::zeroed::<LoopConfig>() };
    config.file = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    config.flags = CLEARED_WITH_LAST_USER;
    // SAFETY: the kernel reads one structure of the kind that the request is for.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
