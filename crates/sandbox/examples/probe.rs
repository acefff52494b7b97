//! Attempts to escape from a sandbox in many ways, and prints the kernel's result for each: `name ok` or `name ERRNO`.
//! Run outside of a sandbox, a line is `ok` unless the host lacks the feature. No attempt has an effect.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;

type Attempt = (&'static str, fn() -> Result<()>);

const ATTEMPTS: &[Attempt] = &[
    ("unshare_user", || unshare(libc::CLONE_NEWUSER)),
    ("unshare_mounts", || unshare(libc::CLONE_NEWNS)),
    ("unshare_net", || unshare(libc::CLONE_NEWNET)),
    ("setns", setns),
    ("mount", mount),
    ("fsopen", || call(libc::SYS_fsopen, &[pointer(c"tmpfs"), 0])),
    ("open_tree", || call(libc::SYS_open_tree, &[as_arg(libc::AT_FDCWD), pointer(c"/"), 1])),
    ("chroot_escape_by_handle", || {
        call(libc::SYS_open_by_handle_at, &[as_arg(libc::AT_FDCWD), 0, 0]).or_else(only(libc::EFAULT))
    }),
    ("keyring", || call(libc::SYS_keyctl, &[0, as_arg(-3), 1])),
    ("add_key", || call(libc::SYS_add_key, &[pointer(c"user"), pointer(c"probe"), pointer(c"x"), 1, as_arg(-3)])),
    ("bpf", || call(libc::SYS_bpf, &[0, 0, 0]).or_else(only(libc::EINVAL))),
    ("userfaultfd", || call(libc::SYS_userfaultfd, &[1])),
    ("io_uring", || call(libc::SYS_io_uring_setup, &[1, 0]).or_else(only(libc::EFAULT))),
    ("perf_events", || call(libc::SYS_perf_event_open, &[0, 0, 0, 0, 0]).or_else(only(libc::EFAULT))),
    ("load_module", || call(libc::SYS_init_module, &[pointer(c"x"), 1, pointer(c"")]).or_else(only(libc::ENOEXEC))),
    ("set_clock", || call(libc::SYS_clock_settime, &[99, 0]).or_else(only(libc::EINVAL))),
    ("raw_socket", || socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("packet_socket", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("device_node", device_node),
    ("proc_sys", || open_to_write("/proc/sys/kernel/core_pattern")),
    ("sysrq", || open_to_write("/proc/sysrq-trigger")),
    ("kernel_log", || File::open("/dev/kmsg").map(drop)),
    ("host_root", || std::fs::metadata(std::env::var("PROBE_FILE").unwrap_or_default()).map(drop)),
    ("host_process", || {
        std::fs::metadata(format!("/proc/{}", std::env::var("PROBE_PID").unwrap_or_default())).map(drop)
    }),
    ("aio_contexts", aio_contexts),
    ("socket_program", socket_program),
    ("filter_listener", || call(libc::SYS_seccomp, &[1, 8, 0]).or_else(only(libc::EFAULT))),
    ("huge_memory_file", || call(libc::SYS_memfd_create, &[pointer(c"probe"), 4])),
    // A kernel that gets that far rejects the length 0.
    ("huge_mapping", || call(libc::SYS_mmap, &[0, 0, 1, 0x4_0022, as_arg(-1), 0]).or_else(only(libc::EINVAL))),
    ("merged_pages", || call(libc::SYS_madvise, &[0, 4096, 12]).or_else(only(libc::ENOMEM))),
    ("merged_process", || call(libc::SYS_prctl, &[67, 1])),
    ("memory_placement", || call(libc::SYS_set_mempolicy, &[0, 0, 0])),
    ("pressure_trigger", || open_to_write("/proc/pressure/memory")),
    ("kernel_command_line", kernel_command_line),
    ("file_system_map", || file_request(0xc0c0_583b).or_else(only(libc::EFAULT))),
    ("file_extents", || file_request(0xc020_660b).or_else(only(libc::EFAULT))),
    ("file_project", || file_request(0x401c_5820).or_else(only(libc::EFAULT))),
    ("file_handle", || {
        call(libc::SYS_name_to_handle_at, &[as_arg(libc::AT_FDCWD), pointer(c"/"), 0, 0]).or_else(only(libc::EFAULT))
    }),
    ("file_lease", file_lease),
    ("whole_file_system_sync", whole_file_system_sync),
    ("init_priority", || init_priority(libc::PRIO_PROCESS as u64, 1)),
    ("group_priority", || init_priority(libc::PRIO_PGRP as u64, 0)),
    ("init_limits", || call(libc::SYS_prlimit64, &[1, 7, 0, 0])),
    ("init_class", || call(libc::SYS_sched_setscheduler, &[1, 99, 0]).or_else(only(libc::EINVAL))),
    ("init_processors", || call(libc::SYS_sched_setaffinity, &[1, 8, 0]).or_else(only(libc::EFAULT))),
    ("init_queued_signal", || call(libc::SYS_rt_sigqueueinfo, &[1, 0, 0]).or_else(only(libc::EFAULT))),
    ("abstract_socket", abstract_socket),
    ("host_port", host_port),
];

fn main() {
    for (name, attempt) in ATTEMPTS {
        // Each in a process of its own: one that succeeds changes what the next would find.
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            0 => {
                let outcome = attempt();
                match outcome {
                    Ok(()) => println!("{name} ok"),
                    Err(error) => println!("{name} {}", error.raw_os_error().unwrap_or(0)),
                }
                std::process::exit(0);
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for the child just made.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                if status != 0 {
                    println!("{name} killed");
                }
            }
        }
    }
}

fn check(outcome: libc::c_long) -> Result<()> {
    if outcome < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

fn call(number: libc::c_long, args: &[u64]) -> Result<()> {
    let arg = |index: usize| args.get(index).copied().unwrap_or(0);
    // SAFETY: every pointer that is passed is null or a terminated string; the calls refuse the rest.
    check(unsafe { libc::syscall(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) })
}

/// An error that only an allowed call can return.
fn only(errno: i32) -> impl Fn(Error) -> Result<()> {
    move |error| if error.raw_os_error() == Some(errno) { Ok(()) } else { Err(error) }
}

fn pointer(text: &std::ffi::CStr) -> u64 {
    text.as_ptr() as u64
}

/// A negative number as the kernel reads it in a register.
fn as_arg(number: i32) -> u64 {
    u64::from_ne_bytes(i64::from(number).to_ne_bytes())
}

fn unshare(namespace: i32) -> Result<()> {
    // SAFETY: this program has one thread and uses nothing that depends on its namespaces.
    check(unsafe { libc::unshare(namespace) }.into())
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<()> {
    // SAFETY: has no preconditions.
    check(unsafe { libc::socket(family, kind, protocol) }.into())
}

fn open_to_write(path: &str) -> Result<()> {
    File::options().write(true).open(path).map(drop)
}

fn setns() -> Result<()> {
    let namespace = File::open("/proc/self/ns/uts")?;
    // SAFETY: has no preconditions.
    check(unsafe { libc::setns(namespace.as_raw_fd(), 0) }.into())
}

fn mount() -> Result<()> {
    // In a private mount namespace where that is possible, so that it has no effect outside.
    // SAFETY: all strings are terminated.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS);
        libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_PRIVATE | libc::MS_REC,
            std::ptr::null(),
        );
        check(libc::mount(c"none".as_ptr(), c"/tmp".as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()).into())
    }
}

fn device_node() -> Result<()> {
    let path = CString::new(format!("/tmp/probe-{}", std::process::id()))?;
    // SAFETY: the path is terminated. A harmless device that every host has.
    let made = check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 5)) }.into());
    let opened = made.and_then(|()| File::open(path.to_str().unwrap_or_default()).map(drop));
    // SAFETY: the path is terminated.
    unsafe { libc::unlink(path.as_ptr()) };
    opened
}

fn aio_contexts() -> Result<()> {
    let mut context: u64 = 0;
    call(libc::SYS_io_setup, &[1, &raw mut context as u64])
}

/// A socket filter that accepts everything.
fn socket_program() -> Result<()> {
    let (socket, _other) = std::os::unix::net::UnixStream::pair()?;
    let mut code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX }];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    // SAFETY: the kernel reads one structure of the kind that the option takes, and the instruction that it names.
    check(
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                u32::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0),
            )
        }
        .into(),
    )
}

fn kernel_command_line() -> Result<()> {
    match std::fs::read("/proc/cmdline")?.is_empty() {
        true => Err(Error::from_raw_os_error(libc::ENODATA)),
        false => Ok(()),
    }
}

/// A request to the file system of this program, with an invalid address.
fn file_request(request: u64) -> Result<()> {
    let program = File::open(std::env::current_exe()?)?;
    call(libc::SYS_ioctl, &[u64::try_from(program.as_raw_fd()).unwrap_or(0), request, 0])
}

fn file_lease() -> Result<()> {
    let path = format!("/tmp/probe-lease-{}", std::process::id());
    std::fs::write(&path, "")?;
    let file = File::open(&path)?;
    // SAFETY: takes a lease on a file of our own, which goes with its descriptor.
    let taken = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }.into());
    std::fs::remove_file(path)?;
    taken
}

fn whole_file_system_sync() -> Result<()> {
    let root = File::open("/proc")?;
    call(libc::SYS_syncfs, &[u64::try_from(root.as_raw_fd()).unwrap_or(0)])
}

/// Sets the priority of a process or a group to its current value.
fn init_priority(which: u64, who: u64) -> Result<()> {
    // SAFETY: asks. The kernel's own answer is turned around, so that it is never negative.
    let now = unsafe { libc::syscall(libc::SYS_getpriority, which, who) };
    check(now)?;
    call(libc::SYS_setpriority, &[which, who, as_arg(20 - i32::try_from(now).unwrap_or(20))])
}

fn abstract_socket() -> Result<()> {
    let name = std::env::var("PROBE_ABSTRACT").unwrap_or_default();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    std::os::unix::net::UnixStream::connect_addr(&address).map(drop)
}

fn host_port() -> Result<()> {
    let port = std::env::var("PROBE_PORT").ok().and_then(|port| port.parse::<u16>().ok()).unwrap_or(0);
    std::net::TcpStream::connect(("127.0.0.1", port)).map(drop)
}
