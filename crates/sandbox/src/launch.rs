//! Making a sandbox, seen from outside: what needs the host's privileges is done here, before the new process begins.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::cgroup::Cgroup;
use crate::container::{Container, Waiting};
use crate::disk;
use crate::inside::{self, Part, Plan};
use crate::owner::Owners;
use crate::seccomp::Filter;
use crate::spec::{Disk, Spec};
use crate::stage::StageError;
use crate::sys::{self, Cloned};
use crate::tree::{self, Below};

/// The devices a sandbox has, as the host has them.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// How the first program learns which descriptor is its out-of-memory score.
const OOM_SCORE: &std::ffi::CStr = c"CARREL_OOM_SCORE_FD=3";

/// Whether this process has mounts of its own.
static LEFT: AtomicBool = AtomicBool::new(false);

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
    /// A tree of the host is on a file system that cannot show its files with other ids than are stored.
    #[error("{path} cannot be shown with the ids of a sandbox ({source}); copy it to this host, or mount it read-only")]
    Ids {
        /// Which.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// There is no such user in any sandbox.
    #[error("no sandbox has a user {user}: the highest is {most}", most = crate::ids::COUNT - 1)]
    User {
        /// Who.
        user: u32,
    },
    /// The disk could not be made.
    #[error("cannot make the disk: {0}")]
    Disk(std::io::Error),
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
    sys::unshare_mounts().map_err(system("unshare mounts"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(system("cut mounts off"))?;
    LEFT.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether this process has mounts of its own.
pub(crate) fn has_left_host_mounts() -> bool {
    LEFT.load(Ordering::Relaxed)
}

/// Makes a sandbox. The calling process has one thread and has called [`leave_host_mounts`].
pub fn launch(spec: Spec, cgroup: Option<&Cgroup>) -> Result<Container, LaunchError> {
    let (waiting, changes) = start(&spec, cgroup)?;
    let kept = match spec.disk {
        Disk::Kept(kept) => Some(kept),
        Disk::Memory { .. } => None,
    };
    waiting.into_container(spec.ids, changes, kept).ok_or_else(|| system("pidfd")(Errno::BADF))
}

fn start(spec: &Spec, cgroup: Option<&Cgroup>) -> Result<(Waiting, Option<OwnedFd>), LaunchError> {
    let (plan, changes) = plan(spec, cgroup)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let (go, signal) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    // Born in its cgroup where that is possible; the rest it joins by itself.
    let unified = cgroup.and_then(Cgroup::unified_directory);
    let waiting = match sys::clone(sys::NAMESPACES, unified).map_err(system("clone3"))? {
        Cloned::Child => {
            drop(signal);
            inside::run(&plan, &go, &reporter)
        }
        Cloned::Parent(pid, process) => Waiting::new(pid, process),
    };
    drop((reporter, go));
    map_ids(waiting.pid(), spec)?;
    show_ids(waiting.pid(), &plan)?;
    rustix::io::write(&signal, &[1]).map_err(system("write"))?;
    drop(signal);
    let mut failure = [0; 5];
    match rustix::io::retry_on_intr(|| rustix::io::read(&report, &mut failure)).map_err(system("read"))? {
        // The end without a word: the descriptor closed as the program began.
        0 => Ok((waiting, changes)),
        _ => Err(StageError::from_bytes(&failure).map_or_else(|| system("report")(Errno::IO), LaunchError::Inside)),
    }
}

/// All that can be prepared before there is a process.
fn plan<'a>(spec: &'a Spec, cgroup: Option<&Cgroup>) -> Result<(Plan<'a>, Option<OwnedFd>), LaunchError> {
    let mut owners = Owners::new(spec.ids.base());
    let project = spec.project.as_ref().map(|project| tree::below(project, &mut owners)).transpose()?;
    let user = spec.project.as_ref().map_or(0, |project| project.user);
    let layers = spec.root.layers.iter().map(|path| tree::copy(path)).collect::<Result<Vec<_>, _>>()?;
    let mut disk = disk::prepare(&spec.disk, &spec.ids, layers.len(), project.as_ref().map(|below| (below, user)))
        .map_err(|errno| LaunchError::Disk(errno.into()))?;
    let changes = disk.changes.take();
    let plan = Plan {
        spec,
        parts: parts(spec, project, &mut owners)?,
        devices: DEVICES.iter().map(|name| device(name)).collect::<Result<_, _>>()?,
        layers,
        disk,
        entrances: cgroup.map_or(Ok(Vec::new()), Cgroup::entrances)?,
        filter: Filter::native()?,
        args: pointers(&spec.args).chain([std::ptr::null()]).collect(),
        env: pointers(&spec.env)
            .chain(spec.oom_score.then_some(OOM_SCORE.as_ptr()))
            .chain([std::ptr::null()])
            .collect(),
    };
    Ok((plan, changes))
}

/// What is put into the root, in an order in which nothing hides what was put in before.
fn parts(spec: &Spec, project: Option<Below>, owners: &mut Owners) -> Result<Vec<Part>, LaunchError> {
    let mut parts = Vec::new();
    for part in &spec.root.trees {
        parts.push(Part::Tree(part.target.clone(), tree::shown(&part.source)?));
    }
    let mut given = Vec::new();
    if let (Some(project), Some(below)) = (&spec.project, project) {
        given.push(Part::Project(project.target.clone(), below.mount));
    }
    for mount in &spec.mounts {
        given.push(Part::Tree(mount.target.clone(), tree::given(mount, owners)?));
    }
    given.sort_by_key(|part| part.target().as_path().components().count());
    parts.append(&mut given);
    Ok(parts)
}

fn device(name: &'static str) -> Result<(&'static str, OwnedFd), LaunchError> {
    let path = Path::new("/dev").join(name);
    let mount = tree::copy(&path)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    sys::set_mount(mount.as_fd(), attributes, None).map_err(tree::failed(&path))?;
    Ok((name, mount))
}

/// Shows the layers of an image, and a disk that stays, with the ids of the sandbox, so that nothing has to be copied
/// or given away.
fn show_ids(pid: Pid, plan: &Plan<'_>) -> Result<(), LaunchError> {
    if plan.layers.is_empty() && !plan.disk.mapped {
        return Ok(());
    }
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    let ids = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(system("user namespace"))?;
    for layer in &plan.layers {
        sys::set_mount(layer.as_fd(), sys::SHOWN, Some(ids.as_fd())).map_err(system("mount_setattr"))?;
    }
    if plan.disk.mapped {
        sys::set_mount(plan.disk.mount.as_fd(), sys::GIVEN, Some(ids.as_fd())).map_err(system("mount_setattr"))?;
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

fn pointers(strings: &[CString]) -> impl Iterator<Item = *const libc::c_char> + '_ {
    strings.iter().map(|string| string.as_ptr())
}

fn system(what: &'static str) -> impl Fn(Errno) -> LaunchError {
    move |errno| LaunchError::System(what, errno.into())
}
