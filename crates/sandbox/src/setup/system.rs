//! What the kernel shows of itself: devices, processes and hardware.

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

/// Parts of `/sys` that are shown, to be read: what programs ask for to divide their work and memory, and the
/// interfaces of this sandbox.
const VISIBLE: [&str; 6] = [
    "class/net",
    PROCESSORS,
    "devices/system/node",
    "devices/virtual/net",
    "kernel/mm/hugepages",
    "kernel/mm/transparent_hugepage",
];

/// The part that tells of processors.
const PROCESSORS: &str = "devices/system/cpu";

/// How many terminals a sandbox may have open: without a bound of its own it could take all that the host has.
const TERMINALS: &str = "256";

/// A `/dev` of its own, with six devices and terminals. Returns the device that swallows everything, open: by its path
/// something else may be found later.
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

/// A `/proc` of its own, without what tells of the host. Returns it: by its path something else may be found later.
pub(super) fn proc(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<OwnedFd, StageError> {
    let at = StageError::at;
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = mount::new("proc", &[], flags).map_err(at(SetupStage::Proc))?;
    let place = directory(&root.directory, "proc".as_ref(), 0o555)?;
    root.attach(&proc, &place, "proc".as_ref()).map_err(at(SetupStage::Proc))?;
    if plan.spec.network.is_none() {
        open_ports(&proc).map_err(at(SetupStage::Ports))?;
    }
    // Where the kernel has no such list there are no locks.
    if let Ok(locks) = rustix::fs::openat(&proc, "locks", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        fd_passing::give(&plan.locks, locks).map_err(at(SetupStage::Proc))?;
    }
    mask::proc(&proc)?;
    Ok(proc)
}

/// Lets everybody in a new network serve at every port: it reaches nobody but who was put into it, and those who come
/// to it later, from other user namespaces, have no rights over it.
fn open_ports(proc: &OwnedFd) -> Result<(), Errno> {
    let first = "sys/net/ipv4/ip_unprivileged_port_start";
    match rustix::fs::openat(proc, first, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(first) => rustix::io::write(first, b"0").map(drop),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// All of the hardware that the kernel shows in the network of this process, attached nowhere.
pub(crate) fn whole_hardware() -> Result<OwnedFd, Errno> {
    let flags = nodev() | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount::new("sysfs", &[], flags)
}

/// A `/sys` with little in it: what is not named is not there. Where the kernel refuses, because this process does
/// not see all of the host's, there is nothing in it.
pub(super) fn hardware(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<(), StageError> {
    let at = StageError::at(SetupStage::Hardware);
    let place = directory(&root.directory, "sys".as_ref(), 0o555)?;
    let own = if plan.hardware.is_none() { whole_hardware().ok() } else { None };
    let Some(whole) = plan.hardware.as_ref().or(own.as_ref()) else {
        return root.attach(&mount::empty().map_err(&at)?, &place, "sys".as_ref()).map_err(&at);
    };
    // What is attached nowhere cannot be copied by most kernels. This place goes with the old root.
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
