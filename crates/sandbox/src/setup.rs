//! Sets up a sandbox, in the child: a series of stages in the new namespaces, each of which can fail with its own error.

mod host_tree;
mod mask;
mod overlay;
mod root;
pub(crate) mod sandbox_root;
mod system;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use carrel_image::GuestPath;
use carrel_seccomp::{SeccompError, SeccompFilter};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Gid, Signal, Uid};
use rustix::thread::CapabilitySet;

pub(crate) use self::system::whole_hardware;
use crate::disk::PreparedDisk;
use crate::gvisor::{self, GvisorRuntime};
use crate::host_tree::HostTree;
use crate::layers::Layers;
use crate::limits;
use crate::spec::ContainerSpec;
use crate::stage::{SetupStage, StageError};
use crate::sys;

/// Where the new root is assembled. Any directory that every host has; what it hides is not needed any more.
pub(crate) const ASSEMBLY: &str = "/tmp";
/// The lowest descriptor that does not collide with the placed ones.
pub(crate) const MIN_DESCRIPTOR: i32 = 10;
/// The descriptor of the OOM score.
const OOM_SCORE_FD: i32 = 3;

/// The capabilities of root in a sandbox: for its own files, users and services, none that reaches the kernel.
pub(crate) const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Everything that the child needs, prepared by the parent.
pub(crate) struct LaunchPlan<'a> {
    pub(crate) spec: &'a ContainerSpec,
    /// The trees of the image.
    pub(crate) trees: Vec<(GuestPath, HostTree)>,
    pub(crate) requested_mounts: Vec<RequestedMount>,
    pub(crate) devices: Vec<(&'static str, OwnedFd)>,
    /// A sysfs of a shared network: a process without rights over that network cannot mount it.
    pub(crate) hardware: Option<OwnedFd>,
    pub(crate) layers: Layers,
    pub(crate) disk: PreparedDisk,
    /// The runtime between the sandbox and the kernel, if there is one.
    pub(crate) runtime: Option<GvisorRuntime<'a>>,
    /// The files that it writes to, to join its cgroups.
    pub(crate) thread_files: Vec<OwnedFd>,
    pub(crate) filter: SeccompFilter,
    /// Where it sends the list of its file locks, which is masked inside.
    pub(crate) locks: OwnedFd,
    pub(crate) args: Vec<*const libc::c_char>,
    pub(crate) env: Vec<*const libc::c_char>,
}

/// A requested mount, in addition to the image.
pub(crate) enum RequestedMount {
    /// A tree of the host.
    Tree(GuestPath, HostTree),
    /// The lower layer of the project.
    Project(GuestPath, OwnedFd),
}

/// Descriptors that are still needed after the placement of the others.
struct FinalDescriptors {
    program: OwnedFd,
    reporter: OwnedFd,
}

/// Executes the first program of the sandbox, or reports the failed stage and exits.
pub(crate) fn run(plan: &LaunchPlan<'_>, start_pipe: &OwnedFd, reporter: &OwnedFd) -> ! {
    let above = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, MIN_DESCRIPTOR);
    let program = plan.runtime.as_ref().map_or(&plan.spec.program, |runtime| &runtime.gvisor.runsc);
    let outcome = match (above(program), above(reporter)) {
        (Ok(program), Ok(reporter)) => Ok(FinalDescriptors { program, reporter }),
        (Err(errno), _) | (_, Err(errno)) => Err(StageError::at(SetupStage::Start)(errno)),
    };
    let failure = match &outcome {
        Ok(last) => match prepare(plan, start_pipe) {
            Ok(None) => StageError::at(SetupStage::Execute)(sys::execute(&last.program, &plan.args, &plan.env)),
            Ok(Some(words)) => {
                let args: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
                // The runtime gets no environment: that of the sandbox is in the configuration.
                StageError::at(SetupStage::Execute)(sys::execute(&last.program, &args, &[std::ptr::null()]))
            }
            Err(failure) => failure,
        },
        Err(failure) => failure.clone(),
    };
    // If this fails too, there is nowhere to report it.
    let _reported = rustix::io::write(outcome.as_ref().map_or(reporter, |last| &last.reporter), &failure.to_bytes());
    sys::exit_now(127)
}

/// Prepares this process for its program. A runtime has arguments of its own.
fn prepare(plan: &LaunchPlan<'_>, start_pipe: &OwnedFd) -> Result<Option<Vec<CString>>, StageError> {
    let at = StageError::at;
    // Until the ids are mapped, this process has the overflow ids.
    match rustix::io::retry_on_intr(|| rustix::io::read(start_pipe, &mut [0; 1])).map_err(at(SetupStage::Start))? {
        1 => {}
        _ => return Err(at(SetupStage::Start)(Errno::PIPE)),
    }
    // The right to join belongs to the shim, which opened the files.
    for entrance in &plan.thread_files {
        rustix::io::write(entrance, b"0").map_err(at(SetupStage::Join))?;
    }
    sys::unshare_cgroups().map_err(at(SetupStage::Cgroups))?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).map_err(at(SetupStage::Identity))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(at(SetupStage::Identity))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at(SetupStage::Identity))?;
    // The first program does not outlive its shim. Set after the change of ids, which would reset it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(SetupStage::Identity))?;
    rustix::process::umask(Mode::empty());

    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(at(SetupStage::Private))?;
    let mut root = root::mount_base(plan)?;
    root::populate(plan, &mut root)?;
    if let Some(runtime) = &plan.runtime {
        // The runtime's kernel has its own devices, processes and hardware.
        gvisor::hide_devices(&mut root)?;
        let trees = root::attach_requested(plan, &mut root)?;
        return gvisor::enter(plan, runtime, &root, &trees).map(Some);
    }
    let null = system::devices(plan, &mut root)?;
    let proc = system::proc(plan, &mut root)?;
    system::hardware(plan, &mut root)?;
    // From here on the host's own files can be reached through the root.
    root::attach_requested(plan, &mut root)?;

    rustix::process::fchdir(&root.directory).map_err(at(SetupStage::Pivot))?;
    sys::pivot_to_working_directory().map_err(at(SetupStage::Pivot))?;
    // The old root is now on top of the new one; without it nothing of the host can be reached.
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at(SetupStage::Pivot))?;
    rustix::process::chdir("/").map_err(at(SetupStage::Pivot))?;

    rustix::system::sethostname(plan.spec.hostname.as_bytes()).map_err(at(SetupStage::Hostname))?;
    // A shared network is already set up.
    if plan.spec.network.is_none() {
        sys::raise_loopback().map_err(at(SetupStage::Loopback))?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    limits::apply().map_err(at(SetupStage::Limits))?;
    descriptors(plan, &null, &proc)?;
    capabilities()?;
    plan.filter.install().map_err(|refused| match refused {
        SeccompError::Install(errno) => at(SetupStage::Filter)(errno),
        _ => at(SetupStage::Filter)(Errno::INVAL),
    })?;
    Ok(None)
}

/// Places the channel on 0 and 1, `/dev/null` on 2 and the OOM score on 3 if requested; all others are closed by `exec`.
fn descriptors(plan: &LaunchPlan<'_>, null: &OwnedFd, proc: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Descriptors);
    let null = rustix::io::fcntl_dupfd_cloexec(null, MIN_DESCRIPTOR).map_err(&at)?;
    let channel = rustix::io::fcntl_dupfd_cloexec(&plan.spec.channel, MIN_DESCRIPTOR).map_err(&at)?;
    let score = plan.spec.oom_score.then(|| score(proc)).transpose().map_err(&at)?;
    sys::close_on_exec_above_standard();
    rustix::stdio::dup2_stdin(&channel).map_err(&at)?;
    rustix::stdio::dup2_stdout(&channel).map_err(&at)?;
    rustix::stdio::dup2_stderr(&null).map_err(&at)?;
    match score {
        Some(score) => sys::place(score.as_fd(), OOM_SCORE_FD).map_err(&at),
        None => Ok(()),
    }
}

/// Opens the OOM score of this process. After the change of ids it is not dumpable, so its files belong to the host's root;
/// it is dumpable only for this call, while there is no other process in the sandbox.
fn score(proc: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(proc, "self/oom_score_adj", flags, Mode::empty());
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::io::fcntl_dupfd_cloexec(opened?, MIN_DESCRIPTOR)
}

fn capabilities() -> Result<(), StageError> {
    for capability in (CapabilitySet::all() - KEPT_CAPABILITIES).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Unknown to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(StageError::at(SetupStage::Capabilities)(errno)),
        }
    }
    Ok(())
}

// === impl RequestedMount ===

impl RequestedMount {
    pub(crate) fn target(&self) -> &GuestPath {
        match self {
            Self::Tree(target, _) | Self::Project(target, _) => target,
        }
    }
}
