//! Where this host has each controller, and which limits it therefore cannot enforce.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags};

use super::directory::CgroupDirectory;
use super::error::CgroupError;
use super::limits::CgroupLimits;
use super::missing_controller::{MissingController, UnenforceableLimits};
use super::mounts::{self, CgroupMount};

/// The cgroup controller that a limit or an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Limits and counts memory, and counts OOM kills.
    Memory,
    /// Limits and counts processes.
    Pids,
    /// Limits CPU time.
    Cpu,
    /// Counts CPU time.
    Accounting,
    /// Freezes and thaws all processes at once.
    Freezer,
}

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerLocation {
    /// In the v1 hierarchy with this mount point.
    V1(PathBuf),
    /// In the v2 hierarchy with this mount point.
    V2(PathBuf),
    /// Not available.
    Missing(MissingController),
}

/// What to do about a limit that this host cannot enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitPolicy {
    #[default]
    Refuse,
    /// Continue without it, as the caller requested.
    AllowUnenforced,
}

/// The cgroup hierarchies of this host.
///
/// On a hybrid host, limits are set where v1 has their controllers, and v2 is used for what needs no controller: it kills a
/// whole group at once, and notifies when a group is frozen or empty, where v1 has to be polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCgroups {
    memory: ControllerLocation,
    pids: ControllerLocation,
    cpu: ControllerLocation,
    accounting: ControllerLocation,
    freezer: ControllerLocation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    pub(super) unified: bool,
}

/// Whether a mount can be used, apart from its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountAccess {
    /// It can.
    Usable,
    /// This user may not write there.
    Denied,
    /// Another mount hides it.
    Hidden,
}

/// The files at the top of a v2 mount.
#[derive(Clone, Debug, Default)]
pub(super) struct UnifiedRoot {
    /// `cgroup.controllers`: what can be enabled for children.
    pub(super) controllers: String,
    /// `cgroup.subtree_control`: what is enabled for children.
    pub(super) enabled: String,
    /// Whether it is the root cgroup, the only one that may have both processes and controlled children.
    pub(super) top: bool,
    /// Whether it has processes of its own.
    pub(super) occupied: bool,
}

const ALL: [Controller; 5] =
    [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Accounting, Controller::Freezer];

// === impl Controller ===

impl Controller {
    /// The name of a limit of this controller.
    pub fn name(self) -> &'static str {
        self.v1_name()
    }

    pub(super) fn v1_name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Accounting => "cpuacct",
            Self::Freezer => "freezer",
        }
    }

    /// Its name in v2; functions of every v2 group have none.
    pub(super) fn v2_name(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Pids | Self::Cpu => Some(self.v1_name()),
            Self::Accounting | Self::Freezer => None,
        }
    }
}

// === impl HostCgroups ===

impl HostCgroups {
    /// Detects the hierarchies of this host.
    pub fn detect() -> Result<Self, CgroupError> {
        let text = |file: &str| -> Result<String, CgroupError> {
            let bytes = std::fs::read(file).map_err(|error| CgroupError::detect(file, &error))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        // A kernel without cgroups has no such file.
        let cgroups = text("/proc/cgroups").unwrap_or_default();
        Ok(Self::describe(&text("/proc/self/mountinfo")?, &cgroups))
    }

    /// Detects the hierarchies from the content of `/proc/self/mountinfo` and `/proc/cgroups`.
    pub fn describe(mountinfo: &str, cgroups: &str) -> Self {
        Self::locate_all(mountinfo, cgroups, access, unified)
    }

    pub(super) fn locate_all(
        mountinfo: &str,
        cgroups: &str,
        access: impl Fn(&CgroupMount) -> MountAccess,
        unified: impl Fn(&Path) -> UnifiedRoot,
    ) -> Self {
        let mounts: Vec<(CgroupMount, MountAccess)> = mounts::mounts(mountinfo)
            .into_iter()
            .map(|mount| (access(&mount), mount))
            .filter(|(access, _)| *access != MountAccess::Hidden)
            .map(|(access, mount)| (mount, access))
            .collect();
        let v2 = usable_mount(mounts.iter().filter(|(mount, _)| mount.controllers.is_none()));
        let point = v2.map(|(mount, _)| mount.point.as_path());
        let top = point.map(unified).unwrap_or_default();
        let locate = |controller: Controller| {
            let name = controller.v1_name();
            let has = |mount: &CgroupMount| mount.controllers.iter().flatten().any(|option| option == name);
            let v1 = usable_mount(mounts.iter().filter(|(mount, _)| has(mount))).map(|(mount, access)| {
                usable(mount, *access).map_or_else(ControllerLocation::Missing, ControllerLocation::V1)
            });
            let v2 = v2.and_then(|(mount, access)| {
                let listed = |list: &str| list.split_ascii_whitespace().any(|one| Some(one) == controller.v2_name());
                if controller.v2_name().is_some() && !listed(&top.controllers) {
                    return None;
                }
                let busy = controller.v2_name().is_some() && !top.top && top.occupied && !listed(&top.enabled);
                Some(match usable(mount, *access) {
                    Ok(point) if busy => ControllerLocation::Missing(MissingController::Occupied(point)),
                    Ok(point) => ControllerLocation::V2(point),
                    Err(missing) => ControllerLocation::Missing(missing),
                })
            });
            let found = if controller.v2_name().is_none() { [v2, v1] } else { [v1, v2] };
            let mut found = found.into_iter().flatten().collect::<Vec<_>>();
            // A usable location wins; otherwise the first unusable one gives the reason.
            found.sort_by_key(|location| matches!(location, ControllerLocation::Missing(_)));
            found
                .into_iter()
                .next()
                .unwrap_or_else(|| ControllerLocation::Missing(missing(controller, cgroups, point, &top)))
        };
        Self {
            memory: locate(Controller::Memory),
            pids: locate(Controller::Pids),
            cpu: locate(Controller::Cpu),
            accounting: locate(Controller::Accounting),
            freezer: locate(Controller::Freezer),
        }
    }

    /// Where a controller is.
    pub fn location(&self, controller: Controller) -> &ControllerLocation {
        match controller {
            Controller::Memory => &self.memory,
            Controller::Pids => &self.pids,
            Controller::Cpu => &self.cpu,
            Controller::Accounting => &self.accounting,
            Controller::Freezer => &self.freezer,
        }
    }

    /// Refuses limits that this host cannot enforce, unless the policy allows that.
    pub fn check(&self, limits: &CgroupLimits, policy: LimitPolicy) -> Result<(), UnenforceableLimits> {
        let unenforced = self.unenforced(limits);
        if policy == LimitPolicy::AllowUnenforced || unenforced.0.is_empty() { Ok(()) } else { Err(unenforced) }
    }

    /// The limits that this host cannot enforce.
    pub fn unenforced(&self, limits: &CgroupLimits) -> UnenforceableLimits {
        let requested = [
            (Controller::Memory, limits.memory().is_some()),
            (Controller::Pids, limits.pids().is_some()),
            (Controller::Cpu, limits.cpus().is_some()),
        ];
        let missing: Vec<_> = requested
            .into_iter()
            .filter(|(_, is_requested)| *is_requested)
            .filter_map(|(controller, _)| match self.location(controller) {
                ControllerLocation::Missing(missing) => Some((controller, missing.clone())),
                ControllerLocation::V1(_) | ControllerLocation::V2(_) => None,
            })
            .collect();
        UnenforceableLimits(missing)
    }

    /// Every hierarchy in which a group has a directory, v2 first.
    pub(super) fn hierarchies(&self) -> Vec<Hierarchy> {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for hierarchy in ALL.into_iter().filter_map(|controller| self.location(controller).hierarchy()) {
            if !hierarchies.contains(&hierarchy) {
                hierarchies.push(hierarchy);
            }
        }
        hierarchies.sort_by_key(|hierarchy| !hierarchy.unified);
        hierarchies
    }

    pub(super) fn controllers<'a>(&'a self, hierarchy: &'a Hierarchy) -> impl Iterator<Item = Controller> + 'a {
        ALL.into_iter().filter(move |controller| self.location(*controller).hierarchy().as_ref() == Some(hierarchy))
    }
}

// === impl ControllerLocation ===

impl ControllerLocation {
    fn hierarchy(&self) -> Option<Hierarchy> {
        match self {
            Self::V1(mount) => Some(Hierarchy { mount: mount.clone(), unified: false }),
            Self::V2(mount) => Some(Hierarchy { mount: mount.clone(), unified: true }),
            Self::Missing(_) => None,
        }
    }
}

/// Why a controller is in no mount.
fn missing(controller: Controller, cgroups: &str, v2: Option<&Path>, top: &UnifiedRoot) -> MissingController {
    let name = controller.v1_name();
    match (mounts::subsystem(cgroups, name), v2) {
        (Some(subsystem), _) if !subsystem.enabled => MissingController::Disabled(name),
        // Inside a container or a service, an unlisted controller was not delegated.
        (_, Some(point)) if !top.top => MissingController::NotDelegated(name, point.to_owned()),
        (Some(_), _) => MissingController::NotMounted(name),
        (None, _) => MissingController::NotInKernel(name),
    }
}

/// A usable mount, if there are several of one hierarchy.
fn usable_mount<'a>(
    found: impl Iterator<Item = &'a (CgroupMount, MountAccess)>,
) -> Option<&'a (CgroupMount, MountAccess)> {
    found.min_by_key(|(mount, access)| usable(mount, *access).is_err())
}

fn usable(mount: &CgroupMount, access: MountAccess) -> Result<PathBuf, MissingController> {
    let point = mount.point.clone();
    match (mount.writable, access) {
        (false, _) => Err(MissingController::ReadOnly(point)),
        (true, MountAccess::Denied | MountAccess::Hidden) => Err(MissingController::Denied(point)),
        (true, MountAccess::Usable) => Ok(point),
    }
}

/// Whether the mount point really leads to the listed mount, and is writable.
fn access(mount: &CgroupMount) -> MountAccess {
    /// The magic numbers of the two file systems.
    const V1_MAGIC: u64 = 0x0027_e0eb;
    const V2_MAGIC: u64 = 0x6367_7270;
    let expected = if mount.controllers.is_some() { V1_MAGIC } else { V2_MAGIC };
    let Ok(directory) = CgroupDirectory::open(&mount.point) else { return MountAccess::Denied };
    let is =
        rustix::fs::fstatfs(&directory).is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|is| is == expected));
    match rustix::fs::accessat(&directory, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        _ if !is => MountAccess::Hidden,
        Ok(()) => MountAccess::Usable,
        Err(_) => MountAccess::Denied,
    }
}

/// Reads the top of a v2 mount; unreadable files count as empty.
fn unified(mount: &Path) -> UnifiedRoot {
    let Ok(directory) = CgroupDirectory::open(mount) else { return UnifiedRoot::default() };
    let text = |file: &str| directory.read(file).unwrap_or_default();
    UnifiedRoot {
        controllers: text("cgroup.controllers"),
        enabled: text("cgroup.subtree_control"),
        // "cgroup.type: a read-write single value file which exists on non-root cgroups."
        top: !directory.has("cgroup.type"),
        occupied: !text("cgroup.procs").trim().is_empty(),
    }
}
