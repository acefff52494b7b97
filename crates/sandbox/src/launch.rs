//! Making a sandbox, seen from outside: what needs the host's privileges is done here, before the new process begins.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use carrel_image::GuestPath;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, OpenTreeFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use crate::cgroup::Cgroup;
use crate::ids::IdRange;
use crate::inside::{self, Plan, Shown};
use crate::seccomp::Filter;
use crate::spec::Spec;
use crate::stage::StageError;
use crate::sys::{self, Cloned};

/// The devices a sandbox has, as the host has them.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// A running sandbox: its first process, and the ids it has to itself. Dropped, it is killed.
#[derive(Debug)]
pub struct Container {
    pid: Pid,
    process: OwnedFd,
    /// Given back only when nothing can have them any more.
    _ids: IdRange,
}

/// A process in new namespaces that waits to become a sandbox. Dropped before it does, it is killed.
struct Waiting {
    pid: Pid,
    process: Option<OwnedFd>,
}

/// Why a sandbox could not be made; nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A tree of the host cannot be shown.
    #[error("{path}: {source}")]
    Tree {
        /// Which.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The new process could not be made.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    /// Its limits could not be set.
    #[error(transparent)]
    Cgroup(#[from] crate::cgroup::CgroupError),
    /// The system-call filter could not be built.
    #[error(transparent)]
    Filter(#[from] crate::seccomp::SeccompError),
    /// A step inside failed.
    #[error(transparent)]
    Inside(#[from] StageError),
}

/// Gives the calling process, which has one thread, a mount namespace of its own, cut off from the host's: a supervisor
/// that is killed leaves no mount behind.
pub fn leave_host_mounts() -> Result<(), LaunchError> {
    let system = |what| move |errno: Errno| LaunchError::System(what, errno.into());
    sys::unshare_mounts().map_err(system("unshare mounts"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(system("cut mounts off"))
}

/// Makes a sandbox. The calling process has one thread and has called [`leave_host_mounts`].
pub fn launch(spec: Spec, cgroup: Option<&Cgroup>) -> Result<Container, LaunchError> {
    let mut waiting = start(&spec, cgroup)?;
    let process = waiting.process.take().ok_or(LaunchError::System("pidfd", Errno::BADF.into()))?;
    Ok(Container { pid: waiting.pid, process, _ids: spec.ids })
}

fn start(spec: &Spec, cgroup: Option<&Cgroup>) -> Result<Waiting, LaunchError> {
    let system = |what| move |errno: Errno| LaunchError::System(what, errno.into());
    let plan = Plan {
        spec,
        trees: trees(spec)?,
        devices: DEVICES.iter().map(|name| device(name)).collect::<Result<_, _>>()?,
        layers: spec.root.layers.iter().map(|path| tree(path)).collect::<Result<_, _>>()?,
        filter: Filter::native()?,
        args: pointers(&spec.args),
        env: pointers(&spec.env),
    };
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let (go, signal) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let waiting = match sys::clone_into_namespaces().map_err(system("clone3"))? {
        Cloned::Child => {
            drop(signal);
            inside::run(&plan, &go, &reporter)
        }
        Cloned::Parent(pid, process) => Waiting { pid, process: Some(process) },
    };
    drop((reporter, go));
    map_ids(waiting.pid, spec)?;
    if let Some(cgroup) = cgroup {
        cgroup.add(waiting.pid)?;
    }
    show_ids(waiting.pid, &plan.layers)?;
    rustix::io::write(&signal, &[1]).map_err(system("write"))?;
    drop(signal);
    let mut failure = [0; 5];
    match rustix::io::read(&report, &mut failure).map_err(system("read"))? {
        // The end without a word: the descriptor closed as the program began.
        0 => Ok(waiting),
        _ => Err(StageError::from_bytes(&failure).map_or_else(|| system("report")(Errno::IO), LaunchError::Inside)),
    }
}

/// A copy of a tree of the host's mounts, attached nowhere.
fn tree(path: &Path) -> Result<OwnedFd, LaunchError> {
    let failed = |errno: Errno| LaunchError::Tree { path: path.display().to_string(), source: errno.into() };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let handle = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::mount::open_tree(&handle, c"", flags | OpenTreeFlags::AT_EMPTY_PATH).map_err(failed)
}

fn trees(spec: &Spec) -> Result<Vec<(GuestPath, Shown)>, LaunchError> {
    let mut shown = Vec::new();
    for part in &spec.root.trees {
        shown.push((part.target.clone(), shown_tree(&part.source)?));
    }
    for mount in &spec.mounts {
        shown.push((mount.target.clone(), shown_tree(&mount.source)?));
    }
    Ok(shown)
}

fn shown_tree(source: &Path) -> Result<Shown, LaunchError> {
    let failed = |errno: Errno| LaunchError::Tree { path: source.display().to_string(), source: errno.into() };
    let mount = tree(source)?;
    sys::set_mount(mount.as_fd(), sys::SHOWN, None).map_err(failed)?;
    let directory = rustix::fs::fstat(&mount)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory);
    Ok(Shown { mount, directory })
}

fn device(name: &&'static str) -> Result<(&'static str, OwnedFd), LaunchError> {
    let path = Path::new("/dev").join(name);
    let failed = |errno: Errno| LaunchError::Tree { path: path.display().to_string(), source: errno.into() };
    let mount = tree(&path)?;
    sys::set_mount(mount.as_fd(), libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC, None).map_err(failed)?;
    Ok((name, mount))
}

/// Shows the layers of an image with the ids of the sandbox, so that nothing has to be copied or given away.
fn show_ids(pid: Pid, layers: &[OwnedFd]) -> Result<(), LaunchError> {
    if layers.is_empty() {
        return Ok(());
    }
    let system = |what| move |errno: Errno| LaunchError::System(what, errno.into());
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    let ids = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(system("user namespace"))?;
    for layer in layers {
        sys::set_mount(layer.as_fd(), sys::SHOWN, Some(ids.as_fd())).map_err(system("mount_setattr"))?;
    }
    Ok(())
}

fn map_ids(pid: Pid, spec: &Spec) -> Result<(), LaunchError> {
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{file}", pid.as_raw_nonzero());
        std::fs::write(path, spec.ids.map()).map_err(|error| LaunchError::System("map ids", error))?;
    }
    Ok(())
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

// === impl Container ===

impl Container {
    /// Its first process, as the host numbers it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// A descriptor that is readable once it has ended.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// Sends a signal to its first process, which obeys it because it comes from outside.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(&self.process, signal)
    }

    /// Waits until it has ended, and with it all that was in it.
    pub fn wait(&self) -> Result<WaitIdStatus, Errno> {
        wait(&self.process)
    }
}

fn wait(process: &OwnedFd) -> Result<WaitIdStatus, Errno> {
    loop {
        match rustix::process::waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Ends a process and buries it. Whoever has already waited for it gets an error, and there is nothing left to do.
fn end(process: &OwnedFd) {
    if rustix::process::pidfd_send_signal(process, Signal::KILL).is_ok() {
        let _buried = wait(process);
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        end(&self.process);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            end(process);
        }
    }
}
