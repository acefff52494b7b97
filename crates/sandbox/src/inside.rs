//! Making a sandbox, seen from inside: a series of calls in the new namespaces, each of which may fail by name.

mod mask;
mod overlay;
pub(crate) mod place;
mod root;
mod system;
mod tree;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use carrel_image::GuestPath;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, Gid, Signal, Uid};
use rustix::thread::CapabilitySet;

pub(crate) use self::system::whole_hardware;
use crate::disk::Prepared;
use crate::gvisor::{self, Runtime};
use crate::layers::Layers;
use crate::limits;
use crate::seccomp::{Filter, SeccompError};
use crate::spec::Spec;
use crate::stage::{Stage, StageError};
use crate::sys;
use crate::tree::Shown;

/// Where the new root is put together. Any directory that every host has; what it hides is not needed any more.
pub(crate) const ASSEMBLY: &str = "/tmp";
/// The number of the first descriptor that is out of the way of those that are placed.
pub(crate) const ABOVE: i32 = 10;
/// The number of the out-of-memory score.
const SCORE: i32 = 3;

/// What the root of a sandbox keeps: enough for its own files, users and services, nothing that reaches the kernel.
pub(crate) const KEPT: CapabilitySet = CapabilitySet::CHOWN
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
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a Spec,
    /// The trees of the image.
    pub(crate) trees: Vec<(GuestPath, Shown)>,
    pub(crate) parts: Vec<Part>,
    pub(crate) devices: Vec<(&'static str, OwnedFd)>,
    /// The hardware as it looks from a network that is shared: who has no rights over that cannot mount it.
    pub(crate) hardware: Option<OwnedFd>,
    pub(crate) layers: Layers,
    pub(crate) disk: Prepared,
    /// What stands between the sandbox and the kernel, if that is a program.
    pub(crate) runtime: Option<Runtime<'a>>,
    /// What it writes to, to join its cgroup.
    pub(crate) entrances: Vec<OwnedFd>,
    pub(crate) filter: Filter,
    /// Where it gives the list of its locks, which is hidden inside.
    pub(crate) locks: OwnedFd,
    pub(crate) args: Vec<*const libc::c_char>,
    pub(crate) env: Vec<*const libc::c_char>,
}

/// What was asked for besides the image.
pub(crate) enum Part {
    /// A tree of the operator's.
    Tree(GuestPath, Shown),
    /// What lies below the project.
    Project(GuestPath, OwnedFd),
}

/// What is still needed when the descriptors have their places.
struct Last {
    program: OwnedFd,
    reporter: OwnedFd,
}

/// Becomes the first program of the sandbox, or reports the step that failed and ends.
pub(crate) fn run(plan: &Plan<'_>, go: &OwnedFd, reporter: &OwnedFd) -> ! {
    let above = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, ABOVE);
    let program = plan.runtime.as_ref().map_or(&plan.spec.program, |runtime| &runtime.gvisor.runsc);
    let outcome = match (above(program), above(reporter)) {
        (Ok(program), Ok(reporter)) => Ok(Last { program, reporter }),
        (Err(errno), _) | (_, Err(errno)) => Err(StageError::at(Stage::Start)(errno)),
    };
    let failure = match &outcome {
        Ok(last) => match prepare(plan, go) {
            Ok(None) => StageError::at(Stage::Execute)(sys::execute(&last.program, &plan.args, &plan.env)),
            Ok(Some(words)) => {
                let args: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
                // It sees nothing of an environment: what runs inside has its own, in the configuration.
                StageError::at(Stage::Execute)(sys::execute(&last.program, &args, &[std::ptr::null()]))
            }
            Err(failure) => failure,
        },
        Err(failure) => failure.clone(),
    };
    // Nobody is left to tell if this fails too.
    let _told = rustix::io::write(outcome.as_ref().map_or(reporter, |last| &last.reporter), &failure.to_bytes());
    sys::exit_now(127)
}

/// Leaves this process ready for its program. That of a runtime has arguments of its own.
fn prepare(plan: &Plan<'_>, go: &OwnedFd) -> Result<Option<Vec<CString>>, StageError> {
    let at = StageError::at;
    // Until the ids are mapped this process is nobody.
    match rustix::io::retry_on_intr(|| rustix::io::read(go, &mut [0; 1])).map_err(at(Stage::Start))? {
        1 => {}
        _ => return Err(at(Stage::Start)(Errno::PIPE)),
    }
    // By the supervisor's right: it is who opened them.
    for entrance in &plan.entrances {
        rustix::io::write(entrance, b"0").map_err(at(Stage::Join))?;
    }
    sys::unshare_cgroups().map_err(at(Stage::Cgroups))?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).map_err(at(Stage::Identity))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(at(Stage::Identity))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at(Stage::Identity))?;
    // Whatever the first program is, it does not outlive its supervisor. Asked for after becoming root, which would
    // take it back.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Stage::Identity))?;
    rustix::process::umask(Mode::empty());

    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(at(Stage::Private))?;
    let mut root = root::base(plan)?;
    root::fill(plan, &mut root)?;
    if let Some(runtime) = &plan.runtime {
        // Devices, processes and hardware are those of its own kernel.
        gvisor::hide_devices(&mut root)?;
        let trees = root::give(plan, &mut root)?;
        return gvisor::enter(plan, runtime, &root, &trees).map(Some);
    }
    let null = system::devices(plan, &mut root)?;
    let proc = system::proc(plan, &mut root)?;
    system::hardware(plan, &mut root)?;
    // From here on the host's own files can be reached through the root.
    root::give(plan, &mut root)?;

    rustix::process::fchdir(&root.directory).map_err(at(Stage::Pivot))?;
    sys::pivot_to_working_directory().map_err(at(Stage::Pivot))?;
    // The old root now lies over the new one; without it nothing of the host can be reached.
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at(Stage::Pivot))?;
    rustix::process::chdir("/").map_err(at(Stage::Pivot))?;

    rustix::system::sethostname(plan.spec.hostname.as_bytes()).map_err(at(Stage::Hostname))?;
    // A network that is shared is as its first sandbox found it.
    if plan.spec.network.is_none() {
        sys::raise_loopback().map_err(at(Stage::Loopback))?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    limits::fix().map_err(at(Stage::Limits))?;
    descriptors(plan, &null, &proc)?;
    capabilities()?;
    plan.filter.install().map_err(|refused| match refused {
        SeccompError::Install(errno) => at(Stage::Filter)(errno),
        _ => at(Stage::Filter)(Errno::INVAL),
    })?;
    Ok(None)
}

/// The channel on 0 and 1, nothing on 2, the out-of-memory score on 3 if it is wanted, and nothing else that survives
/// the next program.
fn descriptors(plan: &Plan<'_>, null: &OwnedFd, proc: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(Stage::Descriptors);
    let null = rustix::io::fcntl_dupfd_cloexec(null, ABOVE).map_err(&at)?;
    let channel = rustix::io::fcntl_dupfd_cloexec(&plan.spec.channel, ABOVE).map_err(&at)?;
    let score = plan.spec.oom_score.then(|| score(proc)).transpose().map_err(&at)?;
    sys::close_on_exec_above_standard();
    rustix::stdio::dup2_stdin(&channel).map_err(&at)?;
    rustix::stdio::dup2_stdout(&channel).map_err(&at)?;
    rustix::stdio::dup2_stderr(&null).map_err(&at)?;
    match score {
        Some(score) => sys::place(score.as_fd(), SCORE).map_err(&at),
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
    rustix::io::fcntl_dupfd_cloexec(opened?, ABOVE)
}

fn capabilities() -> Result<(), StageError> {
    for capability in (CapabilitySet::all() - KEPT).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(StageError::at(Stage::Capabilities)(errno)),
        }
    }
    Ok(())
}

// === impl Part ===

impl Part {
    pub(crate) fn target(&self) -> &GuestPath {
        match self {
            Self::Tree(target, _) | Self::Project(target, _) => target,
        }
    }
}
