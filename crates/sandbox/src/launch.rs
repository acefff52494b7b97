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

use crate::asked::{MountError, TargetProblem};
use crate::cgroup::Cgroup;
use crate::container::{Container, Waiting};
use crate::disk::{DiskKind, is_damage};
use crate::gvisor::{GvisorError, Runtime};
use crate::inside::{self, Part, Plan};
use crate::layers::Layers;
use crate::network::Network;
use crate::owner::Owners;
use crate::seccomp::{Filter, Preallocation};
use crate::spec::{Access, Disk, Spec};
use crate::stage::{REPORT, Stage, StageError};
use crate::sys::{self, Cloned};
use crate::tree::{self, Below};
use crate::{counted, disk, fd_passing, limits, mount};

/// The devices a sandbox has, as the host has them.
const DEVICES: [(&str, &str); 6] = [
    ("null", "/dev/null"),
    ("zero", "/dev/zero"),
    ("full", "/dev/full"),
    ("random", "/dev/random"),
    ("urandom", "/dev/urandom"),
    ("tty", "/dev/tty"),
];
/// What every sandbox has of its own: nothing else is shown there.
const OWN: [&str; 3] = ["dev", "proc", "sys"];
/// How the first program learns which descriptor is its out-of-memory score.
const OOM_SCORE: &std::ffi::CStr = c"CARREL_OOM_SCORE_FD=3";

/// Whether this process has mounts of its own.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Why a sandbox could not be made; nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// What the caller asked to be shown cannot be.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A device of the host's cannot be shown.
    #[error("{0}: {1}")]
    Device(&'static str, std::io::Error),
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
    /// The runtime cannot do what is asked.
    #[error(transparent)]
    Gvisor(#[from] GvisorError),
    /// A step inside failed.
    #[error(transparent)]
    Inside(StageError),
}

/// Closes the descriptors that this program was left with by whoever started it, but for the first three: one of them
/// could be a way to what it is to be kept from. To be called by a program before it does anything else, since whatever
/// it has opened is closed as well.
pub fn forget_inherited() -> std::io::Result<()> {
    Ok(sys::close_inherited()?)
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
    let (runtime, diagnosis) = Runtime::prepare(&spec)?.unzip();
    let Started { waiting, changes, written, locks } = start(&spec, cgroup, runtime)?;
    let disk = match spec.disk {
        Disk::Kept(kept) => (Some(kept), None),
        Disk::Memory { .. } => (None, (!spec.root.layers.is_empty()).then_some(written)),
    };
    waiting.into_container(spec.ids, changes, disk, diagnosis, locks).ok_or_else(|| system("pidfd")(Errno::BADF))
}

/// A sandbox whose first program has begun.
struct Started {
    waiting: Waiting,
    /// What it writes over its project.
    changes: Option<OwnedFd>,
    /// Its disk.
    written: OwnedFd,
    /// A list of the locks of its processes.
    locks: Option<OwnedFd>,
}

fn start(spec: &Spec, cgroup: Option<&Cgroup>, runtime: Option<Runtime<'_>>) -> Result<Started, LaunchError> {
    let (locks, giver) = fd_passing::pair().map_err(system("socketpair"))?;
    let (plan, changes) = plan(spec, cgroup, runtime, giver)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let (go, signal) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let waiting = match clone(spec, cgroup)? {
        Cloned::Child => {
            drop(signal);
            inside::run(&plan, &go, &reporter)
        }
        Cloned::Parent(pid, process) => Waiting::new(pid, process),
    };
    drop((reporter, go));
    map_ids(waiting.pid(), spec)?;
    show_ids(waiting.pid(), &plan)?;
    limits::raise(waiting.pid());
    if spec.oom_score {
        limits::prefer(waiting.pid());
    }
    rustix::io::write(&signal, &[1]).map_err(system("write"))?;
    drop(signal);
    let mut failure = [0; REPORT];
    match rustix::io::retry_on_intr(|| rustix::io::read(&report, &mut failure)).map_err(system("read"))? {
        // The end without a word: the descriptor closed as the program began.
        0 => Ok(Started { waiting, changes, written: plan.disk.mount, locks: fd_passing::take(locks) }),
        length => Err(failure
            .get(..length)
            .and_then(StageError::from_bytes)
            .map_or_else(|| system("report")(Errno::IO), LaunchError::from)),
    }
}

/// Clones this process into the namespaces of a sandbox.
fn clone(spec: &Spec, cgroup: Option<&Cgroup>) -> Result<Cloned, LaunchError> {
    // Born in its cgroup where that is possible; the rest it joins by itself.
    let unified = cgroup.and_then(Cgroup::unified_directory);
    let Some(network) = &spec.network else {
        return counted::clone(sys::NAMESPACES, &spec.ids, unified).map_err(system("clone3"));
    };
    let visit = network.visit().map_err(system("enter the network"))?;
    let cloned = counted::clone(sys::NAMESPACES & !sys::NETWORK, &spec.ids, unified);
    if !matches!(cloned, Ok(Cloned::Child)) {
        // A new process that is not let go ends by itself.
        visit.end().map_err(system("leave the network"))?;
    }
    cloned.map_err(system("clone3"))
}

/// The hardware as it looks from a network that is to be shared. Where the kernel refuses there is none.
fn hardware(network: &Network) -> Result<Option<OwnedFd>, LaunchError> {
    let visit = network.visit().map_err(system("enter the network"))?;
    let whole = inside::whole_hardware();
    visit.end().map_err(system("leave the network"))?;
    Ok(whole.ok())
}

/// All that can be prepared before there is a process.
fn plan<'a>(
    spec: &'a Spec,
    cgroup: Option<&Cgroup>,
    runtime: Option<Runtime<'a>>,
    locks: OwnedFd,
) -> Result<(Plan<'a>, Option<OwnedFd>), LaunchError> {
    targets(spec)?;
    let mut owners = Owners::new(spec.ids.base());
    let project = spec.project.as_ref().map(|project| tree::below(project, &mut owners)).transpose()?;
    let layers = Layers::open(&spec.root.layers, spec.root.identity)?;
    let trees = spec.root.trees.iter().map(|part| Ok((part.target.clone(), tree::shown(&part.source)?)));
    let trees = trees.collect::<Result<_, MountError>>()?;
    let mut disk = disk::prepare(&spec.disk, &spec.ids, &layers, project.as_ref())
        .map_err(|errno| LaunchError::Disk(errno.into()))?;
    let changes = disk.changes.take();
    let plan = Plan {
        spec,
        trees,
        parts: parts(spec, project, &mut owners)?,
        devices: DEVICES.into_iter().map(device).collect::<Result<_, _>>()?,
        hardware: spec.network.as_ref().map_or(Ok(None), hardware)?,
        layers,
        disk,
        runtime,
        entrances: cgroup.map_or(Ok(Vec::new()), Cgroup::entrances)?,
        filter: Filter::for_sandbox(preallocation(spec))?,
        locks,
        args: pointers(&spec.args).chain([std::ptr::null()]).collect(),
        env: pointers(&spec.env)
            .chain(spec.oom_score.then_some(OOM_SCORE.as_ptr()))
            .chain([std::ptr::null()])
            .collect(),
    };
    Ok((plan, changes))
}

/// An image holds what it is asked to reserve without taking it from the host; a quota does not, and all quotas together
/// may be more than the host has.
fn preallocation(spec: &Spec) -> Preallocation {
    let on_host_disk = matches!(&spec.disk, Disk::Kept(kept) if kept.kind() != DiskKind::Image);
    let writes_to_host = spec.mounts.iter().any(|mount| matches!(mount.access, Access::Writable { .. }));
    if on_host_disk || writes_to_host { Preallocation::Refused } else { Preallocation::Allowed }
}

/// Refuses targets that can never be one.
fn targets(spec: &Spec) -> Result<(), MountError> {
    let mut seen = Vec::new();
    for target in
        spec.project.iter().map(|project| &project.target).chain(spec.mounts.iter().map(|mount| &mount.target))
    {
        let problem = match target.as_path().components().next() {
            Some(first) if OWN.iter().any(|own| first.as_os_str() == *own) => TargetProblem::Own,
            _ if seen.contains(&target) => TargetProblem::Twice,
            _ => {
                seen.push(target);
                continue;
            }
        };
        return Err(MountError::Target { target: format!("/{}", target.as_path().display()), problem });
    }
    Ok(())
}

/// What was asked for besides the image, in an order in which nothing hides what was put in before.
fn parts(spec: &Spec, project: Option<Below>, owners: &mut Owners) -> Result<Vec<Part>, LaunchError> {
    let mut parts = Vec::new();
    if let (Some(project), Some(below)) = (&spec.project, project) {
        parts.push(Part::Project(project.target.clone(), below.mount));
    }
    for mount in &spec.mounts {
        parts.push(Part::Tree(mount.target.clone(), tree::given(mount, owners)?));
    }
    parts.sort_by_key(|part| part.target().as_path().components().count());
    Ok(parts)
}

fn device((name, path): (&'static str, &'static str)) -> Result<(&'static str, OwnedFd), LaunchError> {
    let failed = |errno: Errno| LaunchError::Device(path, errno.into());
    let mount = mount::copy(&tree::named(Path::new(path)).map_err(failed)?).map_err(failed)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    sys::set_mount(mount.as_fd(), attributes, None).map_err(failed)?;
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
    plan.layers.show_ids(ids.as_fd())?;
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

// === impl LaunchError ===

impl LaunchError {
    /// Whether it may be that the file system of the disk is damaged.
    pub fn is_disk_damage(&self) -> bool {
        match self {
            Self::Disk(error) | Self::System(_, error) => is_damage(error),
            Self::Inside(failed) => is_damage(&failed.errno.into()),
            Self::Mount(MountError::Target { problem: TargetProblem::Other(error), .. }) => is_damage(error),
            _ => false,
        }
    }
}

impl From<StageError> for LaunchError {
    fn from(failed: StageError) -> Self {
        let problem = match (failed.stage, failed.errno, failed.within) {
            (Stage::Above | Stage::MountPoint, Errno::NOENT, Some(within)) => TargetProblem::Absent { within },
            (Stage::MountPoint, Errno::ISDIR, _) => TargetProblem::Directory,
            (Stage::MountPoint, Errno::NOTDIR, _) => TargetProblem::NotDirectory,
            (Stage::MountPoint, Errno::LOOP, _) => TargetProblem::Link,
            (Stage::Above | Stage::MountPoint, errno, _) => TargetProblem::Other(errno.into()),
            (Stage::Passive, errno, _) => {
                let target = failed.target.unwrap_or_default();
                return MountError::Passive { target, source: errno.into() }.into();
            }
            (_, _, within) => return Self::Inside(StageError { within, ..failed }),
        };
        MountError::Target { target: failed.target.unwrap_or_default(), problem }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.sandbox.failed-step
    #[test]
    fn what_is_the_callers_to_change_is_told_from_what_the_host_lacks() {
        let at = |stage, errno| LaunchError::from(StageError::about(stage, Path::new("a/x"))(errno));
        for (stage, errno, words) in [
            (
                Stage::MountPoint,
                Errno::ISDIR,
                "the mount point /a/x is a directory, and what is to be shown there is not",
            ),
            (Stage::MountPoint, Errno::LOOP, "the mount point /a/x is a link"),
            (Stage::Above, Errno::LOOP, "the mount point /a/x cannot be made: Too many levels of symbolic links"),
        ] {
            let failed = at(stage, errno);
            assert!(matches!(failed, LaunchError::Mount(_)) && failed.to_string().starts_with(words), "{failed}");
        }
        let failed = at(Stage::Tree, Errno::NOMEM);
        assert!(matches!(failed, LaunchError::Inside(_)), "{failed}");
        assert_eq!(failed.to_string(), "show a tree of the host at /a/x: Cannot allocate memory (os error 12)");
    }
}
