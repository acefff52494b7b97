//! System calls that `rustix` does not offer as safe functions. Nothing else in this crate is unsafe.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// The side of a fork.
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The parent, with the pid of the child.
    Parent(Pid),
}

pub(crate) struct ReceivedSignal {
    /// The signal number.
    pub(crate) signal: i32,
    /// The pid of the sender in this pid namespace; 0 if it is outside. Only trustworthy for codes that the kernel
    /// sets: the sender of a queued signal may write anything here.
    pub(crate) sender: u32,
    /// The uid of the sender in this user namespace.
    pub(crate) user: u32,
    pub(crate) code: i32,
}

/// A duplicate of descriptor 3, if it is a file of procfs.
pub(crate) fn dup_oom_score_fd() -> Option<std::fs::File> {
    // SAFETY: only borrowed during this call; if it is not open, the calls on it fail.
    let third = unsafe { std::os::fd::BorrowedFd::borrow_raw(3) };
    let kind = rustix::fs::fstatfs(third).ok()?;
    if kind.f_type != rustix::fs::PROC_SUPER_MAGIC {
        return None;
    }
    rustix::io::fcntl_dupfd_cloexec(third, crate::protect::HIGH).ok().map(Into::into)
}

/// Forks. The agent has one thread, so the child is not restricted.
pub(crate) fn fork() -> Result<Fork, Errno> {
    // SAFETY: the process has a single thread, so no lock can be held by a thread that the child does not have.
    match unsafe { libc::fork() } {
        -1 => Err(last_errno()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).map(Fork::Parent).ok_or(Errno::INVAL),
    }
}

/// Starts a new session. The id is not returned: a kernel that is not Linux may return 0.
pub(crate) fn begin_session() -> Result<(), Errno> {
    // SAFETY: has no preconditions.
    match unsafe { libc::setsid() } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// Replaces this process by a program; returns only on failure.
pub(crate) fn execve(path: &CStr, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> Errno {
    // SAFETY: the callers terminate both lists with a null pointer, and all strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    last_errno()
}

/// Exits without running exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(code) }
}

/// The first real-time signal: these are queued instead of merged.
const FIRST_QUEUED: i32 = 32;
/// The last real-time signal.
const LAST: i32 = 64;

/// Blocks every signal, so that they are only received through [`signal_descriptor`]. Real-time signals are ignored
/// instead: blocked, they would stay queued forever, in kernel memory and against the limit of signals that matter.
pub(crate) fn block_signals() -> io::Result<()> {
    // The kernel's own layout: `SIG_IGN`, and nothing else.
    let ignore = [1u64, 0, 0, 0];
    // SAFETY: `set` is initialised by `sigfillset` before it is read, and outlives the calls; the kernel reads 32 bytes
    // of `ignore` on the architectures we build for, and writes nothing.
    let outcome = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        for signal in FIRST_QUEUED..=LAST {
            libc::syscall(libc::SYS_rt_sigaction, signal, ignore.as_ptr(), std::ptr::null::<u64>(), 8usize);
            // libc reserves the first two and did not block them.
            libc::sigdelset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A signalfd for the signals that the agent handles.
pub(crate) fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by `sigemptyset` before it is read; the descriptor is new and has no other owner.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// The next pending signal, if any.
pub(crate) fn next_signal(descriptor: &OwnedFd) -> Option<ReceivedSignal> {
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the kernel writes whole records of exactly this size, for which any bytes are valid.
    unsafe {
        let mut info = std::mem::zeroed::<libc::signalfd_siginfo>();
        let read = libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size);
        if usize::try_from(read) != Ok(size) {
            return None;
        }
        let signal = i32::try_from(info.ssi_signo).ok()?;
        Some(ReceivedSignal { signal, sender: info.ssi_pid, user: info.ssi_uid, code: info.ssi_code })
    }
}

/// In a forked child: resets all signals to their defaults and unblocks them, as a new program expects.
pub(crate) fn reset_signals() {
    // The kernel's own layout, all zero: the default action. The libc function skips the two signals that libc
    // reserves, and an ignored one would be inherited.
    let default = [0u64; 4];
    // SAFETY: `set` is initialised before it is read; the kernel reads 32 bytes of `default` on the architectures we
    // build for, writes nothing, and rejects the numbers that cannot be set.
    unsafe {
        for signal in 1..=LAST {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8usize);
        }
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// In a forked child: marks all descriptors above 2 as close-on-exec.
pub(crate) fn close_on_exec_above_standard() {
    // SAFETY: marks descriptors close-on-exec; closes none.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Sends a signal by number, including real-time signals, to a process group.
pub(crate) fn signal_group(group: Pid, signal: i32) -> Result<(), Errno> {
    kill(-group.as_raw_nonzero().get(), signal)
}

/// Sends a signal by number to one process.
pub(crate) fn signal_process(process: Pid, signal: i32) -> Result<(), Errno> {
    kill(process.as_raw_nonzero().get(), signal)
}

fn kill(target: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: has no preconditions.
    match unsafe { libc::kill(target, signal) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Sets the file-system identity of this thread; the kernel never reports a failure, so it is read back.
pub(crate) fn set_filesystem_ids(uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: has no preconditions; an id of all ones changes nothing and returns the current one.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX))
    };
    if now == (uid as i32, gid as i32) { Ok(()) } else { Err(Errno::PERM) }
}

/// Sets the wall clock.
pub(crate) fn set_clock(unix_nanos: u64) -> Result<(), Errno> {
    let seconds = i64::try_from(unix_nanos / 1_000_000_000).map_err(|_| Errno::INVAL)?;
    let time = libc::timespec { tv_sec: seconds, tv_nsec: i64::try_from(unix_nanos % 1_000_000_000).unwrap_or(0) };
    // SAFETY: `time` outlives the call.
    match unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// The number of bytes available to read.
pub(crate) fn bytes_waiting(descriptor: impl AsFd) -> u64 {
    let mut waiting: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let outcome = unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
    if outcome == 0 { u64::try_from(waiting).unwrap_or(0) } else { 0 }
}

/// Releases the pages of the program itself; those needed again are loaded from the page cache.
pub(crate) fn drop_program_pages() {
    unsafe extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }
    let (start, end) = (&raw const __executable_start as usize, &raw const etext as usize);
    let (start, end) = (start.next_multiple_of(4096), end - end % 4096);
    if start < end {
        // SAFETY: the linker puts only read-only parts of the program file between these two symbols, and a dropped
        // read-only page of a file is loaded again when it is accessed.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

fn last_errno() -> Errno {
    io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
