//! Making a sandbox, seen from inside: a series of calls in the new namespaces, each of which may fail by name.

mod host_tree;
mod mask;
mod overlay;
mod root;
pub(crate) mod sandbox_root;
mod system;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use carrel_image::GuestPath;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Gid, Signal, Uid};
use rustix::thread::CapabilitySet;

pub(crate) use self::system::whole_hardware;
use crate::disk::PreparedDisk;
use crate::gvisor::{self, Runtime};
use crate::host_tree::HostTree;
use crate::layers::Layers;
use crate::limits;
use crate::seccomp::{Filter, SeccompError};
use crate::spec::Spec;
use crate::stage::{SetupStage, StageError};
use crate::sys;

/// Where the new root is put together. Any directory that every host has; what it hides is not needed any more.
pub(crate) const ASSEMBLY: &str = "/tmp";
/// The number of the first descriptor that is out of the way of those that are placed.
pub(crate) const MIN_DESCRIPTOR: i32 = 10;
/// The number of the out-of-memory score.
const OOM_SCORE_FD: i32 = 3;

/// What the root of a sandbox keeps: enough for its own files, users and services, nothing that reaches the kernel.
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

/// All that the new process needs, prepared outside.
pub(crate) struct LaunchPlan<'a> {
    pub(crate) spec: &'a Spec,
    /// The trees of the image.
    pub(crate) trees: Vec<(GuestPath, HostTree)>,
    pub(crate) requested_mounts: Vec<RequestedMount>,
    pub(crate) devices: Vec<(&'static str, OwnedFd)>,
    /// The hardware as it looks from a network that is shared: who has no rights over that cannot mount it.
    pub(crate) hardware: Option<OwnedFd>,
    pub(crate) layers: Layers,
    pub(crate) disk: PreparedDisk,
    /// What stands between the sandbox and the kernel, if that is a program.
    pub(crate) runtime: Option<Runtime<'a>>,
    /// What it writes to, to join its cgroup.
    pub(crate) thread_files: Vec<OwnedFd>,
    pub(crate) filter: Filter,
    /// Where it gives the list of its locks, which is hidden inside.
    pub(crate) locks: OwnedFd,
    pub(crate) args: Vec<*const libc::c_char>,
    pub(crate) env: Vec<*const libc::c_char>,
}

/// What was asked for besides the image.
pub(crate) enum RequestedMount {
    /// A tree of the operator's.
    Tree(GuestPath, HostTree),
    /// What lies below the project.
    Project(GuestPath, OwnedFd),
}

/// What is still needed when the descriptors have their places.
struct FinalDescriptors {
    program: OwnedFd,
    reporter: OwnedFd,
}

/// Becomes the first program of the sandbox, or reports the step that failed and ends.
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
                // It sees nothing of an environment: what runs inside has its own, in the configuration.
                StageError::at(SetupStage::Execute)(sys::execute(&last.program, &args, &[std::ptr::null()]))
            }
            Err(failure) => failure,
        },
        Err(failure) => failure.clone(),
    };
    // Nobody is left to tell if this fails too.
    let _reported = rustix::io::write(outcome.as_ref().map_or(reporter, |last| &last.reporter), &failure.to_bytes());
    sys::exit_now(127)
}

/// Leaves this process ready for its program. That of a runtime has arguments of its own.
fn prepare(plan: &LaunchPlan<'_>, start_pipe: &OwnedFd) -> Result<Option<Vec<CString>>, StageError> {
    let at = StageError::at;
    // Until the ids are mapped this process is nobody.
    match rustix::io::retry_on_intr(|| rustix::io::read(start_pipe, &mut [0; 1])).map_err(at(SetupStage::Start))? {
        1 => {}
        _ => return Err(at(SetupStage::Start)(Errno::PIPE)),
    }
    // By the supervisor's right: it is who opened them.
    for entrance in &plan.thread_files {
        rustix::io::write(entrance, b"0").map_err(at(SetupStage::Join))?;
    }
    sys::unshare_cgroups().map_err(at(SetupStage::Cgroups))?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).map_err(at(SetupStage::Identity))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(at(SetupStage::Identity))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at(SetupStage::Identity))?;
    // Whatever the first program is, it does not outlive its supervisor. Asked for after becoming root, which would
    // take it back.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(SetupStage::Identity))?;
    rustix::process::umask(Mode::empty());

    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(at(SetupStage::Private))?;
    let mut root = root::mount_base(plan)?;
    root::populate(plan, &mut root)?;
    if let Some(runtime) = &plan.runtime {
        // Devices, processes and hardware are those of its own kernel.
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
    // The old root now lies over the new one; without it nothing of the host can be reached.
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at(SetupStage::Pivot))?;
    rustix::process::chdir("/").map_err(at(SetupStage::Pivot))?;

    rustix::system::sethostname(plan.spec.hostname.as_bytes()).map_err(at(SetupStage::Hostname))?;
    // A network that is shared is as its first sandbox found it.
    if plan.spec.network.is_none() {
        sys::raise_loopback().map_err(at(SetupStage::Loopback))?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    limits::fix().map_err(at(SetupStage::Limits))?;
    descriptors(plan, &null, &proc)?;
    capabilities()?;
    plan.filter.install().map_err(|refused| match refused {
        SeccompError::Install(errno) => at(SetupStage::Filter)(errno),
        _ => at(SetupStage::Filter)(Errno::INVAL),
    })?;
    Ok(None)
}

/// The channel on 0 and 1, nothing on 2, the out-of-memory score on 3 if it is wanted, and nothing else that survives
/// the next program.
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

/// Opens the out-of-memory score of this process. Having changed its ids it is opaque, and its files are for the host's
/// root only; for this one moment it is not. Nobody is here yet to look.
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
            // Not known to this kernel.
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
