//! The root of the runtime: its bundle, its state, the kernel files that it needs, and the root of the sandbox in a directory.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::bundle::{self, BundleMount};
use super::{GvisorRuntime, command_line};
use crate::mount::{self, attach, attach_at, copy, nodev};
use crate::setup::sandbox_root::{SandboxRoot, directory, file};
use crate::setup::{ASSEMBLY, KEPT_CAPABILITIES, LaunchPlan, MIN_DESCRIPTOR};
use crate::stage::{SetupStage, StageError};
use crate::{limits, sys};

/// The size of the runtime's tmpfs, including its program.
const ROOM: &str = "64m";
/// The capabilities of the runtime in its user namespace: those of the sandbox, and what it needs to start its kernel and file
/// server, which then drop more.
const RUNTIME: CapabilitySet = KEPT_CAPABILITIES
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE);

/// Mounts an empty `/dev` over that of the image: the runtime creates mount points there, and has a `/dev` of its own.
pub(crate) fn hide_devices(root: &mut SandboxRoot) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Devices);
    let dev = mount::new("tmpfs", &[("size", "65536"), ("mode", "755")], nodev()).map_err(&at)?;
    let place = directory(&root.directory, "dev".as_ref(), 0o755)?;
    root.attach(&dev, &place, "dev".as_ref()).map_err(at)
}

/// Enters the runtime's root, and closes everything that the runtime does not need. Returns its arguments.
pub(crate) fn enter(
    plan: &LaunchPlan<'_>,
    runtime: &GvisorRuntime<'_>,
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

    // Mounts below it stay in use, but have no name any more.
    attach(&base, CWD, ASSEMBLY).map_err(at(SetupStage::Pivot))?;
    rustix::process::fchdir(&base).map_err(at(SetupStage::Pivot))?;
    sys::pivot_to_working_directory().map_err(at(SetupStage::Pivot))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at(SetupStage::Pivot))?;
    rustix::process::chdir("/").map_err(at(SetupStage::Pivot))?;

    rustix::process::umask(Mode::from_raw_mode(0o022));
    limits::apply().map_err(at(SetupStage::Limits))?;
    descriptors(plan, runtime).map_err(at(SetupStage::Descriptors))?;
    for capability in (CapabilitySet::all() - RUNTIME).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Unknown to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(at(SetupStage::Capabilities)(errno)),
        }
    }
    rustix::thread::set_no_new_privs(true).map_err(at(SetupStage::Capabilities))?;
    Ok(command_line())
}

/// The devices of the runtime: `null` and `urandom`.
fn devices(plan: &LaunchPlan<'_>, base: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Devices);
    for (name, device) in plan.devices.iter().filter(|(name, _)| matches!(*name, "null" | "urandom")) {
        attach_at(device, &file(base, format!("dev/{name}").as_ref(), &[], 0o666)?).map_err(&at)?;
    }
    Ok(())
}

/// Places the channel on 0 and 1 and the runtime's error output on 2; all others are closed by `exec`.
fn descriptors(plan: &LaunchPlan<'_>, runtime: &GvisorRuntime<'_>) -> Result<(), Errno> {
    let channel = rustix::io::fcntl_dupfd_cloexec(&plan.spec.channel, MIN_DESCRIPTOR)?;
    let stderr = rustix::io::fcntl_dupfd_cloexec(runtime.stderr.as_fd(), MIN_DESCRIPTOR)?;
    sys::close_on_exec_above_standard();
    rustix::stdio::dup2_stdin(&channel)?;
    rustix::stdio::dup2_stdout(&channel)?;
    rustix::stdio::dup2_stderr(&stderr)
}
