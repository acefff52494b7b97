//! The kernel file systems of a sandbox: `/dev`, `/proc` and `/sys`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::sandbox_root::{SandboxRoot, directory, file, open_path};
use super::{LaunchPlan, mask};
use crate::fd_passing;
use crate::mount::{self, attach, attach_at, copy, nodev};
use crate::stage::{SetupStage, StageError};
use crate::sys;

/// The visible, read-only parts of `/sys`: what programs read to size their work and memory, and the interfaces of this
/// sandbox.
const VISIBLE: [&str; 6] = [
    "class/net",
    PROCESSORS,
    "devices/system/node",
    "devices/virtual/net",
    "kernel/mm/hugepages",
    "kernel/mm/transparent_hugepage",
];

/// The directory of CPUs.
const PROCESSORS: &str = "devices/system/cpu";

/// The limit of pseudo-terminals of a sandbox: without it, a sandbox could use up those of the host.
const TERMINALS: &str = "256";

/// Creates `/dev` with six devices and pseudo-terminals. Returns `/dev/null`, open: its path may lead elsewhere later.
pub(super) fn devices(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<OwnedFd, StageError> {
    let at = StageError::at(SetupStage::Devices);
    let nosuid = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let dev = mount::new("tmpfs", &[("size", "65536"), ("mode", "755")], nosuid).map_err(&at)?;
    let place = directory(&root.directory, "dev".as_ref(), 0o755)?;
    root.attach(&dev, &place, "dev".as_ref()).map_err(&at)?;
    for (name, device) in &plan.devices {
        attach_at(device, &file(&dev, name.as_ref(), &[], 0o666)?).map_err(&at)?;
    }
    let terminals = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", TERMINALS)];
    let pts = mount::new("devpts", &terminals, nosuid).map_err(&at)?;
    attach_at(&pts, &directory(&dev, "pts".as_ref(), 0o755)?).map_err(&at)?;
    let shm =
        mount::new("tmpfs", &[("size", &plan.disk.shared_memory.to_string()), ("mode", "1777")], nosuid | nodev())
            .map_err(&at)?;
    attach_at(&shm, &directory(&dev, "shm".as_ref(), 0o1777)?).map_err(&at)?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlinkat(target, &dev, name).map_err(&at)?;
    }
    rustix::fs::openat(&dev, "null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(at)
}

/// Mounts and masks `/proc`. Returns it, since its path may lead elsewhere later.
pub(super) fn proc(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<OwnedFd, StageError> {
    let at = StageError::at;
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = mount::new("proc", &[], flags).map_err(at(SetupStage::Proc))?;
    let place = directory(&root.directory, "proc".as_ref(), 0o555)?;
    root.attach(&proc, &place, "proc".as_ref()).map_err(at(SetupStage::Proc))?;
    if plan.spec.network.is_none() {
        open_ports(&proc).map_err(at(SetupStage::Ports))?;
    }
    // Without that file, the kernel has no file locks.
    if let Ok(locks) = rustix::fs::openat(&proc, "locks", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        fd_passing::send(&plan.locks, locks).map_err(at(SetupStage::Proc))?;
    }
    mask::proc(&proc)?;
    Ok(proc)
}

/// Allows all users to bind low ports in a new network: only sandboxes that share it can reach it, and those that join later,
/// from other user namespaces, have no rights over it.
fn open_ports(proc: &OwnedFd) -> Result<(), Errno> {
    let first = "sys/net/ipv4/ip_unprivileged_port_start";
    match rustix::fs::openat(proc, first, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(first) => rustix::io::write(first, b"0").map(drop),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A sysfs of the network of this process, detached.
pub(crate) fn whole_hardware() -> Result<OwnedFd, Errno> {
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount::new("sysfs", &[], flags)
}

/// Creates `/sys` with the visible parts only. Where the kernel refuses a sysfs, because this process does not see all of the
/// host's, it is empty.
pub(super) fn hardware(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Hardware);
    let place = directory(&root.directory, "sys".as_ref(), 0o555)?;
    let own = if plan.hardware.is_none() { whole_hardware().ok() } else { None };
    let Some(whole) = plan.hardware.as_ref().or(own.as_ref()) else {
        return root.attach(&mount::empty().map_err(&at)?, &place, "sys".as_ref()).map_err(&at);
    };
    // Most kernels cannot copy a detached mount. This one is unmounted with the old root.
    attach(whole, CWD, "/sys").map_err(&at)?;
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let shown = mount::new("tmpfs", &[("size", "65536"), ("mode", "555")], flags).map_err(&at)?;
    root.attach(&shown, &place, "sys".as_ref()).map_err(&at)?;
    for name in VISIBLE {
        match open_path(whole, name) {
            Ok(part) => {
                let part = copy(&part).map_err(&at)?;
                attach_at(&part, &directory(&shown, name.as_ref(), 0o555)?).map_err(&at)?;
                if name == PROCESSORS {
                    mask::processors(&part).map_err(&at)?;
                }
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(at(errno)),
        }
    }
    sys::set_mount_alone(shown.as_fd(), sys::READ_ONLY_ATTRIBUTES | libc::MOUNT_ATTR_NOEXEC).map_err(&at)
}
