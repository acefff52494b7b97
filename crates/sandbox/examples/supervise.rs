//! A shim that drops its privileges: launches a sandbox, attempts what it could do to the host, drops its privileges,
//! attempts it again, and supervises its sandbox until it exits. `supervise DIRECTORY PROGRAM`, with a directory of its own
//! that it keeps a handle of. It prints `before NAME OUTCOME` and `after NAME OUTCOME` for each attempt, where an outcome is
//! `ok` or an error number, and then `still NAME OUTCOME` for each operation that has to work.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use carrel_image::RootFs;
use carrel_sandbox::cgroup::{Cgroup, CgroupLimits, HostCgroups, LimitPolicy};
use carrel_sandbox::{
    Container, ContainerSpec, Disk, IdRange, Isolation, RetainedPrivileges, drop_privileges, launch, leave_host_mounts,
    open_handle,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::Signal;

type ExampleError = Box<dyn std::error::Error>;
type ExampleResult = Result<(), Error>;

/// An invalid address: a call that gets as far as reading it fails with `EFAULT`.
const NOWHERE: usize = 1;

fn main() -> Result<(), ExampleError> {
    let mut args = std::env::args_os().skip(1);
    let directory = args.next().ok_or("no directory")?;
    let program = args.next().ok_or("no program")?;
    leave_host_mounts()?;
    let run = open_handle(Path::new(&directory))?;
    let name = format!("supervise-{}", std::process::id());
    let limits = CgroupLimits::new(Some(64 << 20), Some(32), None)?;
    let cgroup = Cgroup::create(&HostCgroups::detect()?, &name, &limits, LimitPolicy::Refuse)?;
    let container = sandbox(&program, &cgroup)?;

    // A descriptor that was left open by mistake, and whether this kernel has Landlock to prevent its use.
    let left_open = File::open("/etc")?.into();
    println!("kernel landlock {}", if landlock_version() > 0 { "yes" } else { "no" });
    // The control: a plain directory descriptor can be escaped.
    say("before", "above_a_directory", above(&File::open(&directory)?.into(), ".."));
    attempts("before", &run, &cgroup);
    say("before", "beneath_a_forgotten_directory", beneath(&left_open));
    let kept: Vec<_> = std::iter::once(run.as_fd()).chain(cgroup.directories()).collect();
    drop_privileges(RetainedPrivileges { kill: true, user: None, directories: &kept })?;
    attempts("after", &run, &cgroup);
    say("after", "beneath_a_forgotten_directory", beneath(&left_open));
    duties(&run, &container, cgroup);
    Ok(())
}

fn sandbox(program: &std::ffi::OsStr, cgroup: &Cgroup) -> Result<Container, ExampleError> {
    use std::os::unix::ffi::OsStrExt;
    let spec = ContainerSpec {
        root: RootFs::resolve(&"host".parse()?)?,
        mounts: Vec::new(),
        project: None,
        disk: Disk::Memory { bytes: 1 << 20 },
        hostname: "carrel".to_owned(),
        network: None,
        ids: IdRange::allocate(Path::new("/run/carrel/ids"))?,
        program: File::open(program)?.into(),
        args: vec![CString::new(program.as_bytes())?, CString::new("1000")?],
        env: Vec::new(),
        channel: File::open("/dev/null")?.into(),
        oom_score: false,
        isolation: Isolation::Namespaces,
    };
    Ok(launch(spec, Some(cgroup))?)
}

/// What a compromised shim must not be able to do. None has an effect.
fn attempts(when: &str, run: &OwnedFd, cgroup: &Cgroup) {
    let open = |path: &str| rustix::fs::openat(CWD, path, OFlags::RDONLY, Mode::empty()).map(drop).map_err(Error::from);
    let say = |name: &str, outcome: ExampleResult| say(when, name, outcome);
    let descriptor = usize::try_from(run.as_raw_fd()).unwrap_or(usize::MAX);
    say("open", open("/etc/passwd"));
    say("open_proc", open("/proc/self/status"));
    say("above_the_handle", above(run, ".."));
    say("above_the_group", above_group(cgroup));
    say("fork", fork());
    say("execute", call(libc::SYS_execve, &[NOWHERE, 0, 0], libc::EFAULT));
    say("trace", call(libc::SYS_ptrace, &[99, 0, 0], libc::ESRCH));
    say("socket", call(libc::SYS_socket, &[1, 1, 0], 0));
    say("pair", call(libc::SYS_socketpair, &[1, 1, 0, NOWHERE], libc::EFAULT));
    say("connect", call(libc::SYS_connect, &[usize::MAX, NOWHERE, 0], libc::EBADF));
    say("mount", call(libc::SYS_mount, &[NOWHERE, NOWHERE, NOWHERE], libc::EFAULT));
    say("open_tree", call(libc::SYS_open_tree, &[descriptor, NOWHERE, 1], libc::EFAULT));
    say("change_root", call(libc::SYS_chroot, &[NOWHERE], libc::EFAULT));
    say("become_user", call(libc::SYS_setuid, &[0], 0));
    say("kill", call(libc::SYS_kill, &[std::process::id() as usize, 0], 0));
    say("hold_process", call(libc::SYS_pidfd_open, &[std::process::id() as usize, 0], 0));
    say("signal_by_descriptor", call(libc::SYS_fcntl, &[descriptor, 8, std::process::id() as usize], 0));
    say("limits_of_another", call(libc::SYS_prlimit64, &[std::process::id() as usize, 7, 0, 0], 0));
    say("new_code", call(libc::SYS_mmap, &[0, 4096, 5, 0x22, usize::MAX, 0], 0));
    say("become_dumpable", call(libc::SYS_prctl, &[4, usize::from(when == "after"), 0, 0, 0], 0));
    say("capabilities", capabilities());
}

/// Whether `..` leads from a directory to another one.
fn above(directory: &OwnedFd, path: &str) -> ExampleResult {
    let file = |path: &str| -> Result<_, Error> {
        let stat = rustix::fs::fstat(rustix::fs::openat(directory, path, OFlags::PATH, Mode::empty())?)?;
        Ok((stat.st_dev, stat.st_ino))
    };
    let below = path.strip_suffix("..").map(|path| format!("{path}.")).unwrap_or_default();
    if file(path)? == file(&below)? { Err(Error::from_raw_os_error(libc::EXDEV)) } else { Ok(()) }
}

/// Whether a file of an open directory can be opened.
fn beneath(directory: &OwnedFd) -> ExampleResult {
    Ok(rustix::fs::openat(directory, "passwd", OFlags::RDONLY, Mode::empty()).map(drop)?)
}

/// The Landlock ABI of this kernel, if any.
fn landlock_version() -> libc::c_long {
    // SAFETY: with this flag nothing is read and nothing is made: the call answers with a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) }
}

/// The parent of all groups can be reached, because a group is removed there, but nothing above it.
fn above_group(cgroup: &Cgroup) -> ExampleResult {
    let group = cgroup.unified_directory().ok_or(Error::from_raw_os_error(libc::ENOENT))?;
    above(&group.try_clone_to_owned()?, "../..")
}

fn fork() -> ExampleResult {
    // SAFETY: this program has one thread, and the child ends at once.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()),
        // SAFETY: has no preconditions.
        0 => unsafe { libc::_exit(0) },
        child => {
            // SAFETY: waits for the child just made, and keeps nothing.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            Ok(())
        }
    }
}

/// Whether this process has any capability but `CAP_KILL`.
fn capabilities() -> ExampleResult {
    use rustix::thread::CapabilitySet;
    let sets = rustix::thread::capabilities(None)?;
    let more = (sets.permitted | sets.effective | sets.inheritable) - CapabilitySet::KILL;
    if more.is_empty() { Err(Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }
}

/// A call that is harmless where it is allowed: it fails with the given error, or not at all.
fn call(number: libc::c_long, given: &[usize], harmless: i32) -> ExampleResult {
    let argument = |index: usize| given.get(index).copied().unwrap_or(0);
    // SAFETY: no argument is an address of this process; what the calls make is lost and does no harm.
    let outcome =
        unsafe { libc::syscall(number, argument(0), argument(1), argument(2), argument(3), argument(4), argument(5)) };
    match Error::last_os_error() {
        _ if outcome != -1 => Ok(()),
        error if error.raw_os_error() == Some(harmless) => Ok(()),
        error => Err(error),
    }
}

/// What a shim still has to do.
fn duties(run: &OwnedFd, container: &Container, cgroup: Cgroup) {
    let say = |name: &str, outcome: Result<(), ExampleError>| match outcome {
        Ok(()) => println!("still {name} ok"),
        Err(error) => println!("still {name} {error}"),
    };
    say("files", files(run).map_err(ExampleError::from));
    say("freeze", cgroup.freeze().map_err(ExampleError::from));
    say("thaw", cgroup.thaw().map_err(ExampleError::from));
    say("statistics", cgroup.statistics().map(drop).map_err(ExampleError::from));
    say("out_of_memory", cgroup.out_of_memory_kills().map(drop).map_err(ExampleError::from));
    say("poll", poll(container).map_err(ExampleError::from));
    say("signal", container.signal(Signal::KILL).map_err(ExampleError::from));
    say("wait", container.wait().map(drop).map_err(ExampleError::from));
    say("remove", cgroup.remove().map_err(ExampleError::from));
}

fn files(run: &OwnedFd) -> ExampleResult {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(run, "journal.new", flags, Mode::from_raw_mode(0o600))?;
    rustix::io::write(&file, b"entry\n")?;
    rustix::fs::fsync(&file)?;
    rustix::fs::renameat(run, "journal.new", run, "journal")?;
    rustix::fs::fsync(run)?;
    rustix::fs::Dir::read_from(run)?.try_for_each(|entry| entry.map(drop))?;
    Ok(rustix::fs::unlinkat(run, "journal", AtFlags::empty())?)
}

/// The descriptors of an event loop: the sandbox, a timer and signals.
fn poll(container: &Container) -> ExampleResult {
    use rustix::event::epoll;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let process = container.process();
    epoll::add(&epoll, process.as_fd(), epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(1);
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&now))?;
    if ready == 0 { Ok(()) } else { Err(Error::from_raw_os_error(libc::ECHILD)) }
}

fn say(when: &str, name: &str, outcome: ExampleResult) {
    match outcome {
        Ok(()) => println!("{when} {name} ok"),
        Err(error) => println!("{when} {name} {}", error.raw_os_error().unwrap_or(0)),
    }
}
