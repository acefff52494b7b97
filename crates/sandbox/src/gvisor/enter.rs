//! The root of the runtime: nothing but its bundle, its state, the kernel's files that it needs, and in a directory the
//! root of the sandbox.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::bundle::{self, BundleMount};
use super::{Runtime, words};
use crate::mount::{self, attach, attach_at, copy, nodev};
use crate::setup::sandbox_root::{SandboxRoot, directory, file};
use crate::setup::{ASSEMBLY, KEPT_CAPABILITIES, LaunchPlan, MIN_DESCRIPTOR};
use crate::stage::{SetupStage, StageError};
use crate::{limits, sys};

/// How much the runtime may write down, its program included.
const ROOM: &str = "64m";
/// What the runtime keeps in its user namespace: what the sandbox has, and what it takes to make the processes of its
/// own kernel and its file server, which then keep less.
const RUNTIME: CapabilitySet = KEPT_CAPABILITIES
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE);

/// An empty `/dev` over that of the image: the runtime makes mount points there, and shows a `/dev` of its own.
pub(crate) fn hide_devices(root: &mut SandboxRoot) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Devices);
    let dev = mount::new("tmpfs", &[("size", "65536"), ("mode", "755")], nodev()).map_err(&at)?;
    let place = directory(&root.directory, "dev".as_ref(), 0o755)?;
    root.attach(&dev, &place, "dev".as_ref()).map_err(at)
}

/// Enters the root of the runtime, and leaves this process with nothing but what the runtime needs. Returns the
/// arguments that it is started with.
pub(crate) fn enter(
    plan: &LaunchPlan<'_>,
    runtime: &Runtime<'_>,
    root: &SandboxRoot,
    trees: &[BundleMount],
) -> Result<Vec<CString>, StageError> {
    let at = StageError::at;
    let base = mount::new("tmpfs", &[("size", ROOM), ("mode", "755")], nodev()).map_err(at(SetupStage::Runtime))?;
    for name in ["state", "proc", "dev", "sys", "tmp", "rootfs"] {
        directory(&base, name.as_ref(), 0o700)?;
    }
    let configuration = bundle::configuration(plan.spec, KEPT_CAPABILITIES, trees, runtime.descriptors)
        .ok_or_else(|| at(SetupStage::Runtime)(Errno::ILSEQ))?;
    file(&base, "bundle/config.json".as_ref(), configuration.to_string().as_bytes(), 0o600)?;
    let program = format!("{}/{}", bundle::PROGRAM[0].trim_start_matches('/'), bundle::PROGRAM_NAME);
    file(&base, program.as_ref(), &runtime.program, 0o555)?;
    devices(plan, &base)?;
    let proc = mount::new("proc", &[], nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC).map_err(at(SetupStage::Proc))?;
    attach_at(&proc, &directory(&base, "proc".as_ref(), 0o555)?).map_err(at(SetupStage::Proc))?;
    let whole = copy(&root.directory).map_err(at(SetupStage::Runtime))?;
    attach_at(&whole, &directory(&base, "rootfs".as_ref(), 0o755)?).map_err(at(SetupStage::Runtime))?;

    // What is below it stays open where it is in use, and has no name any more.
    attach(&base, CWD, ASSEMBLY).map_err(at(SetupStage::Pivot))?;
    rustix::process::fchdir(&base).map_err(at(SetupStage::Pivot))?;
    sys::pivot_to_working_directory().map_err(at(SetupStage::Pivot))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at(SetupStage::Pivot))?;
    rustix::process::chdir("/").map_err(at(SetupStage::Pivot))?;

    rustix::process::umask(Mode::from_raw_mode(0o022));
    limits::fix().map_err(at(SetupStage::Limits))?;
    descriptors(plan, runtime).map_err(at(SetupStage::Descriptors))?;
    for capability in (CapabilitySet::all() - RUNTIME).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(at(SetupStage::Capabilities)(errno)),
        }
    }
    rustix::thread::set_no_new_privs(true).map_err(at(SetupStage::Capabilities))?;
    Ok(words())
}

/// The devices of the runtime: one that swallows everything, and one that is random.
fn devices(plan: &LaunchPlan<'_>, base: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Devices);
    for (name, device) in plan.devices.iter().filter(|(name, _)| matches!(*name, "null" | "urandom")) {
        attach_at(device, &file(base, format!("dev/{name}").as_ref(), &[], 0o666)?).map_err(&at)?;
    }
    Ok(())
}

/// The channel on 0 and 1, what the runtime says of itself on 2, and nothing else that survives the next program.
fn descriptors(plan: &LaunchPlan<'_>, runtime: &Runtime<'_>) -> Result<(), Errno> {
    let channel = rustix::io::fcntl_dupfd_cloexec(&plan.spec.channel, MIN_DESCRIPTOR)?;
    let stderr = rustix::io::fcntl_dupfd_cloexec(runtime.stderr.as_fd(), MIN_DESCRIPTOR)?;
    sys::close_on_exec_above_standard();
    rustix::stdio::dup2_stdin(&channel)?;
    rustix::stdio::dup2_stdout(&channel)?;
    rustix::stdio::dup2_stderr(&stderr)
}
