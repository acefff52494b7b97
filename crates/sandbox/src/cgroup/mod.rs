//! Control groups: the limits of one sandbox, on hosts with v1, v2 or both.
//!
//! A sandbox has one directory in each hierarchy that it needs, all with the same name, below the parent `carrel`, which
//! stays. Limits are set before any process joins. On a host with v1 controllers only, the code for v2 is tested on a tree
//! of plain files, and on kernels with v2 only by the virtual machines of `tests/vm`.

mod activity;
mod cpu_time;
mod directory;
mod error;
#[cfg(test)]
mod fake;
mod host;
mod limits;
mod members;
mod missing_controller;
mod mounts;
mod name;
mod out_of_memory;
mod settings;
mod statistics;
#[cfg(test)]
mod tests;
mod wait;

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

pub use self::activity::DiskActivity;
pub use self::cpu_time::CpuClock;
use self::directory::CgroupDirectory;
pub use self::error::CgroupError;
use self::host::Hierarchy;
pub use self::host::{Controller, ControllerLocation, HostCgroups, LimitPolicy};
pub use self::limits::{CgroupLimits, CpuShare, LimitError};
pub use self::missing_controller::{MissingController, UnenforceableLimits};
pub(crate) use self::mounts::unescape;
pub use self::out_of_memory::OomWatch;
pub use self::statistics::CgroupStatistics;
use self::wait::Deadline;
use crate::ids::SUPERVISORS;

/// The parent of all groups, in every hierarchy.
const PARENT: &str = "carrel";
/// The file that enables controllers for the children of a v2 group.
const SUBTREE: &str = "cgroup.subtree_control";

/// The cgroup of one sandbox, in every hierarchy.
///
/// A created one is removed when it is dropped, if it is empty; an adopted one is not.
#[derive(Debug)]
pub struct Cgroup {
    name: String,
    groups: Vec<HierarchyGroup>,
    /// The requested limits that are not enforced.
    unenforced: UnenforceableLimits,
    remove_on_drop: bool,
}

#[derive(Debug)]
struct HierarchyGroup {
    unified: bool,
    controllers: Vec<Controller>,
    parent: CgroupDirectory,
    directory: CgroupDirectory,
}

// === impl Cgroup ===

impl Cgroup {
    /// Creates the group with its limits. If a step fails, the earlier ones are undone.
    pub fn create(
        host: &HostCgroups,
        name: &str,
        limits: &CgroupLimits,
        policy: LimitPolicy,
    ) -> Result<Self, CgroupError> {
        name::check(name)?;
        host.check(limits, policy)?;
        // From here on, dropping the group removes it.
        let unenforced = host.unenforced(limits);
        let mut group = Self { name: name.to_owned(), groups: Vec::new(), unenforced, remove_on_drop: true };
        for hierarchy in host.hierarchies() {
            let controllers: Vec<Controller> = host.controllers(&hierarchy).collect();
            let parent = parent(&hierarchy, &controllers)?;
            parent.make_child(name).map_err(|errno| match errno {
                Errno::EXIST => CgroupError::Exists { path: parent.join(name) },
                errno => CgroupError::Make { path: parent.join(name), errno },
            })?;
            let directory = match parent.open_child(name) {
                Ok(directory) => directory,
                Err(errno) => {
                    let _made_just_now = parent.remove_child(name);
                    return Err(CgroupError::Open { path: parent.join(name), errno });
                }
            };
            let part = HierarchyGroup { unified: hierarchy.unified, controllers, parent, directory };
            group.groups.push(part);
        }
        for part in &group.groups {
            let without = part.limit(limits, policy)?;
            let missing = without
                .into_iter()
                .map(|controller| (controller, MissingController::NotInKernel(controller.v1_name())));
            group.unenforced.0.extend(missing);
        }
        Ok(group)
    }

    /// The directories of the group and their parents, in every hierarchy.
    pub fn directories(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.groups.iter().flat_map(|part| [part.directory.as_fd(), part.parent.as_fd()])
    }

    /// Opens an existing group, in the hierarchies that have it: a partially created one is opened as well.
    pub fn adopt(host: &HostCgroups, name: &str) -> Result<Self, CgroupError> {
        name::check(name)?;
        let mut groups = Vec::new();
        for hierarchy in host.hierarchies() {
            let controllers = host.controllers(&hierarchy).collect();
            let Some(parent) = existing_parent(&hierarchy)? else { continue };
            match parent.open_child(name) {
                Ok(directory) => {
                    groups.push(HierarchyGroup { unified: hierarchy.unified, controllers, parent, directory })
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(CgroupError::Open { path: parent.join(name), errno }),
            }
        }
        if groups.is_empty() {
            return Err(CgroupError::NotFound { name: name.to_owned() });
        }
        Ok(Self { name: name.to_owned(), groups, unenforced: UnenforceableLimits(Vec::new()), remove_on_drop: false })
    }

    /// The names of all groups in any hierarchy, sorted.
    pub fn list(host: &HostCgroups) -> Result<Vec<String>, CgroupError> {
        let mut names = Vec::new();
        for hierarchy in host.hierarchies() {
            if let Some(parent) = existing_parent(&hierarchy)? {
                let failed = |errno| CgroupError::List { path: parent.path().to_owned(), errno };
                names.extend(parent.children().map_err(failed)?.into_iter().filter(|name| name::check(name).is_ok()));
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The name of the group, in every hierarchy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requested limits that this host does not enforce.
    pub fn unenforced(&self) -> &UnenforceableLimits {
        &self.unenforced
    }

    /// Delegates the group to a shim that drops root: it may freeze, measure and remove this group, and nothing of any other.
    pub fn delegate(&self, user: u32) -> Result<(), CgroupError> {
        for part in &self.groups {
            let failed = |errno| CgroupError::Open { path: part.directory.path().to_owned(), errno };
            part.parent.share(SUPERVISORS).map_err(failed)?;
            part.directory.chown(".", user).map_err(failed)?;
            if part.controllers.contains(&Controller::Freezer) {
                part.directory.chown(members::freeze_file(part.unified), user).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The owner of the group, if it is the same in every hierarchy.
    pub fn owner(&self) -> Option<u32> {
        let mut owners = self.groups.iter().map(|part| part.directory.owner().ok());
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Keeps the group when this is dropped: another process manages it.
    pub fn detach(mut self) {
        self.remove_on_drop = false;
    }

    /// Waits until it is empty and removes it from every hierarchy. It kills no process.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        let deadline = Deadline::start();
        while let Some(part) = self.groups.last() {
            part.remove(&self.name, deadline)?;
            self.groups.pop();
        }
        Ok(())
    }

    fn part(&self, controller: Controller) -> Option<&HierarchyGroup> {
        self.groups.iter().find(|part| part.controllers.contains(&controller))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.remove_on_drop {
            for part in &self.groups {
                // A group with processes stays: the kernel refuses, and a later sweep finds it.
                let _removed = part.parent.remove_child(&self.name);
            }
        }
    }
}

// === impl HierarchyGroup ===

impl HierarchyGroup {
    /// Sets limits; returns the controllers whose files this kernel does not have, if the policy allows that.
    fn limit(&self, limits: &CgroupLimits, policy: LimitPolicy) -> Result<Vec<Controller>, CgroupError> {
        let mut without = Vec::new();
        for controller in &self.controllers {
            for setting in settings::settings(*controller, self.unified, limits) {
                match self.directory.write(setting.file, &setting.value) {
                    Ok(()) => {}
                    Err(Errno::NOENT) if setting.optional => {}
                    Err(Errno::NOENT) if policy == LimitPolicy::AllowUnenforced => without.push(*controller),
                    Err(errno) => {
                        let file = self.directory.join(setting.file);
                        return Err(CgroupError::Limit { file, value: setting.value, errno });
                    }
                }
            }
        }
        without.dedup();
        Ok(without)
    }

    fn remove(&self, name: &str, mut deadline: Deadline) -> Result<(), CgroupError> {
        loop {
            match self.parent.remove_child(name) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) if !deadline.passed() => {}
                Err(errno) => return Err(CgroupError::Remove { path: self.parent.join(name), errno }),
            }
            if self.unified {
                deadline.until_event(&self.directory, "populated", 0)?;
            } else {
                deadline.until_ended(&self.directory)?;
            }
            // The last process has exited, but the kernel may still be cleaning up.
            deadline.pause();
        }
    }
}

/// Opens the parent of all groups in a hierarchy, as a handle that cannot be escaped, creating it if necessary, with the
/// controllers enabled for it and its children. No process ever joins it: a v2 group that enables controllers must have none.
fn parent(hierarchy: &Hierarchy, controllers: &[Controller]) -> Result<CgroupDirectory, CgroupError> {
    let top = top(hierarchy)?;
    if hierarchy.unified {
        enable_controllers(&top, controllers)?;
    }
    match top.make_child(PARENT) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(CgroupError::Make { path: top.join(PARENT), errno }),
    }
    let parent =
        top.open_child_detached(PARENT).map_err(|errno| CgroupError::Open { path: top.join(PARENT), errno })?;
    if hierarchy.unified {
        enable_controllers(&parent, controllers)?;
    }
    Ok(parent)
}

fn existing_parent(hierarchy: &Hierarchy) -> Result<Option<CgroupDirectory>, CgroupError> {
    let top = top(hierarchy)?;
    match top.open_child_detached(PARENT) {
        Ok(parent) => Ok(Some(parent)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(CgroupError::Open { path: top.join(PARENT), errno }),
    }
}

fn top(hierarchy: &Hierarchy) -> Result<CgroupDirectory, CgroupError> {
    CgroupDirectory::open(&hierarchy.mount).map_err(|errno| CgroupError::Open { path: hierarchy.mount.clone(), errno })
}

/// Enables controllers for the children of a v2 group, in one write.
fn enable_controllers(directory: &CgroupDirectory, controllers: &[Controller]) -> Result<(), CgroupError> {
    let file = || directory.join(SUBTREE);
    let enabled = directory.read(SUBTREE).map_err(|errno| CgroupError::Read { file: file(), errno })?;
    let value = controllers
        .iter()
        .filter_map(|controller| controller.v2_name())
        .filter(|name| !enabled.split_ascii_whitespace().any(|one| one == *name))
        .map(|name| format!("+{name}"))
        .collect::<Vec<_>>()
        .join(" ");
    if value.is_empty() {
        return Ok(());
    }
    directory.write(SUBTREE, &value).map_err(|errno| CgroupError::Enable { file: file(), value, errno })
}
