//! Launches a sandbox, in the parent: everything that needs the host's privileges happens here, before the child starts.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_seccomp::{Preallocation, SeccompFilter};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::cgroup::Cgroup;
use crate::container::{Container, PendingContainer};
use crate::disk::{DiskKind, is_damage};
use crate::gvisor::{GvisorError, GvisorRuntime};
use crate::host_tree::{self, ProjectLower};
use crate::layers::Layers;
use crate::network::SandboxNetwork;
use crate::owner_namespaces::OwnerNamespaces;
use crate::request_error::{MountError, TargetProblem};
use crate::setup::{self, LaunchPlan, RequestedMount};
use crate::spec::{ContainerSpec, Disk, HostMountAccess};
use crate::stage::{MAX_REPORT_BYTES, SetupStage, StageError};
use crate::sys::{self, CloneResult};
use crate::{disk, fd_passing, limits, mount, namespace_clone};

/// The devices of a sandbox, taken from the host.
const DEVICES: [(&str, &str); 6] = [
    ("null", "/dev/null"),
    ("zero", "/dev/zero"),
    ("full", "/dev/full"),
    ("random", "/dev/random"),
    ("urandom", "/dev/urandom"),
    ("tty", "/dev/tty"),
];
/// The mount points that every sandbox has; no others are allowed there.
const RESERVED_TARGETS: [&str; 3] = ["dev", "proc", "sys"];
/// Tells the first program the descriptor of its OOM score.
const OOM_SCORE: &std::ffi::CStr = c"CARREL_OOM_SCORE_FD=3";

/// Whether this process has a mount namespace of its own.
static HAS_PRIVATE_MOUNTS: AtomicBool = AtomicBool::new(false);

/// Why a launch failed; nothing of the sandbox is left.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A requested mount is not possible.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A device of the host cannot be mounted.
    #[error("{0}: {1}")]
    Device(&'static str, std::io::Error),
    /// The disk cannot be created.
    #[error("cannot create the disk: {0}")]
    Disk(std::io::Error),
    /// The process cannot be created.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    /// Its limits cannot be set.
    #[error(transparent)]
    Cgroup(#[from] crate::cgroup::CgroupError),
    /// The system-call filter cannot be built.
    #[error(transparent)]
    Filter(#[from] carrel_seccomp::SeccompError),
    /// The runtime does not support the request.
    #[error(transparent)]
    Gvisor(#[from] GvisorError),
    /// A stage in the child failed.
    #[error(transparent)]
    Inside(StageError),
}

/// Closes all inherited descriptors except for the standard ones: one of them could give access to what the program is to be
/// kept from. Must be called before the program opens anything, since that is closed as well.
pub fn close_inherited_descriptors() -> std::io::Result<()> {
    Ok(sys::close_inherited()?)
}

/// Gives the calling process, which has one thread, a private mount namespace: a shim that is killed leaves no mount behind.
pub fn leave_host_mounts() -> Result<(), LaunchError> {
    sys::unshare_mounts().map_err(system("unshare mounts"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(system("make mounts private"))?;
    HAS_PRIVATE_MOUNTS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether this process has a mount namespace of its own.
pub(crate) fn has_private_mounts() -> bool {
    HAS_PRIVATE_MOUNTS.load(Ordering::Relaxed)
}

/// Launches a sandbox. The calling process has one thread and has called [`leave_host_mounts`].
pub fn launch(spec: ContainerSpec, cgroup: Option<&Cgroup>) -> Result<Container, LaunchError> {
    let (runtime, diagnosis) = GvisorRuntime::prepare(&spec)?.unzip();
    let StartedSandbox { pending, changes, written, locks } = start(&spec, cgroup, runtime)?;
    let disk = match spec.disk {
        Disk::Persistent(disk) => (Some(disk), None),
        Disk::Memory { .. } => (None, (!spec.root.layers.is_empty()).then_some(written)),
    };
    pending.into_container(spec.ids, changes, disk, diagnosis, locks).ok_or_else(|| system("pidfd")(Errno::BADF))
}

/// A sandbox whose first program has started.
struct StartedSandbox {
    pending: PendingContainer,
    /// The upper directory of its project.
    changes: Option<OwnedFd>,
    /// Its disk.
    written: OwnedFd,
    /// The list of file locks of its processes.
    locks: Option<OwnedFd>,
}

fn start(
    spec: &ContainerSpec,
    cgroup: Option<&Cgroup>,
    runtime: Option<GvisorRuntime<'_>>,
) -> Result<StartedSandbox, LaunchError> {
    let (locks, sender) = fd_passing::pair().map_err(system("socketpair"))?;
    let (plan, changes) = plan(spec, cgroup, runtime, sender)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let (go, signal) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    let pending = match clone(spec, cgroup)? {
        CloneResult::Child => {
            drop(signal);
            setup::run(&plan, &go, &reporter)
        }
        CloneResult::Parent(pid, process) => PendingContainer::new(pid, process),
    };
    drop((reporter, go));
    map_ids(pending.pid(), spec)?;
    map_mounts(pending.pid(), &plan)?;
    limits::raise_hard_limits(pending.pid());
    if spec.oom_score {
        limits::raise_priority(pending.pid());
    }
    rustix::io::write(&signal, &[1]).map_err(system("write"))?;
    drop(signal);
    let mut failure = [0; MAX_REPORT_BYTES];
    match rustix::io::retry_on_intr(|| rustix::io::read(&report, &mut failure)).map_err(system("read"))? {
        // End of file: the first program was executed, which closed the pipe.
        0 => Ok(StartedSandbox { pending, changes, written: plan.disk.mount, locks: fd_passing::receive(locks) }),
        length => Err(failure
            .get(..length)
            .and_then(StageError::from_bytes)
            .map_or_else(|| system("report")(Errno::IO), LaunchError::from)),
    }
}

/// Clones this process into the namespaces of a sandbox.
fn clone(spec: &ContainerSpec, cgroup: Option<&Cgroup>) -> Result<CloneResult, LaunchError> {
    // Born in its v2 cgroup where there is one; it joins the others by itself.
    let unified = cgroup.and_then(Cgroup::unified_directory);
    let Some(network) = &spec.network else {
        return namespace_clone::clone(sys::NAMESPACES, &spec.ids, unified).map_err(system("clone3"));
    };
    let guard = network.enter().map_err(system("enter the network"))?;
    let cloned = namespace_clone::clone(sys::NAMESPACES & !sys::NETWORK, &spec.ids, unified);
    if !matches!(cloned, Ok(CloneResult::Child)) {
        // If leaving fails, the child exits by itself, since it never gets the go-ahead.
        guard.leave().map_err(system("leave the network"))?;
    }
    cloned.map_err(system("clone3"))
}

/// A sysfs of the shared network. None where the kernel refuses.
fn hardware(network: &SandboxNetwork) -> Result<Option<OwnedFd>, LaunchError> {
    let guard = network.enter().map_err(system("enter the network"))?;
    let whole = setup::whole_hardware();
    guard.leave().map_err(system("leave the network"))?;
    Ok(whole.ok())
}

/// Prepares everything that does not need the child.
fn plan<'a>(
    spec: &'a ContainerSpec,
    cgroup: Option<&Cgroup>,
    runtime: Option<GvisorRuntime<'a>>,
    locks: OwnedFd,
) -> Result<(LaunchPlan<'a>, Option<OwnedFd>), LaunchError> {
    targets(spec)?;
    let mut owners = OwnerNamespaces::new(spec.ids.base());
    let project = spec.project.as_ref().map(|project| host_tree::project_lower(project, &mut owners)).transpose()?;
    let layers = Layers::open(&spec.root.layers, spec.root.identity)?;
    let trees = spec
        .root
        .trees
        .iter()
        .map(|requested| Ok((requested.target.clone(), host_tree::image_tree(&requested.source)?)));
    let trees = trees.collect::<Result<_, MountError>>()?;
    let mut disk = disk::prepare(&spec.disk, &spec.ids, &layers, project.as_ref())
        .map_err(|errno| LaunchError::Disk(errno.into()))?;
    let changes = disk.changes.take();
    let plan = LaunchPlan {
        spec,
        trees,
        requested_mounts: requested_mounts(spec, project, &mut owners)?,
        devices: DEVICES.into_iter().map(device).collect::<Result<_, _>>()?,
        hardware: spec.network.as_ref().map_or(Ok(None), hardware)?,
        layers,
        disk,
        runtime,
        thread_files: cgroup.map_or(Ok(Vec::new()), Cgroup::thread_files)?,
        filter: SeccompFilter::for_sandbox(preallocation(spec))?,
        locks,
        args: pointers(&spec.args).chain([std::ptr::null()]).collect(),
        env: pointers(&spec.env)
            .chain(spec.oom_score.then_some(OOM_SCORE.as_ptr()))
            .chain([std::ptr::null()])
            .collect(),
    };
    Ok((plan, changes))
}

/// A disk image contains its preallocated space; a quota does not, and all quotas together may exceed the host's disk.
fn preallocation(spec: &ContainerSpec) -> Preallocation {
    let on_host_disk = matches!(&spec.disk, Disk::Persistent(disk) if disk.kind() != DiskKind::Image);
    let writes_to_host = spec.mounts.iter().any(|mount| matches!(mount.access, HostMountAccess::Writable { .. }));
    if on_host_disk || writes_to_host { Preallocation::Refused } else { Preallocation::Allowed }
}

/// Refuses reserved and duplicate mount points.
fn targets(spec: &ContainerSpec) -> Result<(), MountError> {
    let mut observed = Vec::new();
    for target in
        spec.project.iter().map(|project| &project.target).chain(spec.mounts.iter().map(|mount| &mount.target))
    {
        let problem = match target.as_path().components().next() {
            Some(first) if RESERVED_TARGETS.iter().any(|own| first.as_os_str() == *own) => TargetProblem::Reserved,
            _ if observed.contains(&target) => TargetProblem::Duplicate,
            _ => {
                observed.push(target);
                continue;
            }
        };
        return Err(MountError::Target { target: format!("/{}", target.as_path().display()), problem });
    }
    Ok(())
}

/// The requested mounts, parents first, so that none hides another.
fn requested_mounts(
    spec: &ContainerSpec,
    project: Option<ProjectLower>,
    owners: &mut OwnerNamespaces,
) -> Result<Vec<RequestedMount>, LaunchError> {
    let mut requested_mounts = Vec::new();
    if let (Some(project), Some(below)) = (&spec.project, project) {
        requested_mounts.push(RequestedMount::Project(project.target.clone(), below.mount));
    }
    for mount in &spec.mounts {
        requested_mounts.push(RequestedMount::Tree(mount.target.clone(), host_tree::requested_tree(mount, owners)?));
    }
    requested_mounts.sort_by_key(|requested| requested.target().as_path().components().count());
    Ok(requested_mounts)
}

fn device((name, path): (&'static str, &'static str)) -> Result<(&'static str, OwnedFd), LaunchError> {
    let failed = |errno: Errno| LaunchError::Device(path, errno.into());
    let mount = mount::copy(&host_tree::open_path(Path::new(path)).map_err(failed)?).map_err(failed)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    sys::set_mount(mount.as_fd(), attributes, None).map_err(failed)?;
    Ok((name, mount))
}

/// Id-maps the layers of an image and a persistent disk to the sandbox, so that nothing has to be copied or chowned.
fn map_mounts(pid: Pid, plan: &LaunchPlan<'_>) -> Result<(), LaunchError> {
    if plan.layers.is_empty() && !plan.disk.mapped {
        return Ok(());
    }
    let path = format!("/proc/{}/ns/user", pid.as_raw_nonzero());
    let ids = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(system("user namespace"))?;
    plan.layers.map_ids(ids.as_fd())?;
    if plan.disk.mapped {
        sys::set_mount(plan.disk.mount.as_fd(), sys::WRITABLE_ATTRIBUTES, Some(ids.as_fd()))
            .map_err(system("mount_setattr"))?;
    }
    Ok(())
}

fn map_ids(pid: Pid, spec: &ContainerSpec) -> Result<(), LaunchError> {
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
            (SetupStage::MountPointParent | SetupStage::MountPoint, Errno::NOENT, Some(within)) => {
                TargetProblem::Absent { within }
            }
            (SetupStage::MountPoint, Errno::ISDIR, _) => TargetProblem::Directory,
            (SetupStage::MountPoint, Errno::NOTDIR, _) => TargetProblem::NotDirectory,
            (SetupStage::MountPoint, Errno::LOOP, _) => TargetProblem::Link,
            (SetupStage::MountPointParent | SetupStage::MountPoint, errno, _) => TargetProblem::Other(errno.into()),
            (SetupStage::ReadOnlyOverlay, errno, _) => {
                let target = failed.target.unwrap_or_default();
                return MountError::OverlayUnsupported { target, source: errno.into() }.into();
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
    fn errors_in_the_request_differ_from_errors_of_the_host() {
        let at = |stage, errno| LaunchError::from(StageError::about(stage, Path::new("a/x"))(errno));
        for (stage, errno, words) in [
            (SetupStage::MountPoint, Errno::ISDIR, "the mount point /a/x is a directory, but the source is not"),
            (SetupStage::MountPoint, Errno::LOOP, "the mount point /a/x is a symbolic link"),
            (
                SetupStage::MountPointParent,
                Errno::LOOP,
                "the mount point /a/x cannot be created: Too many levels of symbolic links",
            ),
        ] {
            let failed = at(stage, errno);
            assert!(matches!(failed, LaunchError::Mount(_)) && failed.to_string().starts_with(words), "{failed}");
        }
        let failed = at(SetupStage::Tree, Errno::NOMEM);
        assert!(matches!(failed, LaunchError::Inside(_)), "{failed}");
        assert_eq!(failed.to_string(), "mount a tree of the host at /a/x: Cannot allocate memory (os error 12)");
    }
}
