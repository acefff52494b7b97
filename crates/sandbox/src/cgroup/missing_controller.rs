//! What a host lacks, with instructions how to get it.

use std::fmt;
use std::path::PathBuf;

use super::host::Controller;

/// Why a controller cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingController {
    /// The kernel was built without it.
    #[error("the kernel has no {0} controller")]
    NotInKernel(&'static str),
    /// The kernel was started without it.
    #[error("the {0} controller was disabled when the kernel started")]
    Disabled(&'static str),
    /// No hierarchy with it is mounted.
    #[error("the {0} controller is not mounted")]
    NotMounted(&'static str),
    /// Its hierarchy cannot be written.
    #[error("{} is mounted read-only", .0.display())]
    ReadOnly(PathBuf),
    /// Its hierarchy may not be written by this user.
    #[error("{} may not be written by this user", .0.display())]
    Denied(PathBuf),
    /// A v2 hierarchy whose owner did not delegate it.
    #[error("the {} controller is not delegated to {}", .0, .1.display())]
    NotDelegated(&'static str, PathBuf),
    /// A v2 group that has processes itself, and so cannot enable controllers for children.
    #[error("{} has processes of its own, so its controllers cannot be enabled for children", .0.display())]
    Occupied(PathBuf),
}

/// The limits that this host cannot enforce, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnenforceableLimits(pub(super) Vec<(Controller, MissingController)>);

// === impl MissingController ===

impl MissingController {
    /// How to make it available.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotInKernel(name) => {
                let option = match *name {
                    "memory" => "CONFIG_MEMCG",
                    "pids" => "CONFIG_CGROUP_PIDS",
                    "cpu" => "CONFIG_CFS_BANDWIDTH",
                    "cpuacct" => "CONFIG_CGROUP_CPUACCT",
                    _ => "CONFIG_CGROUP_FREEZER",
                };
                format!("run a kernel that is built with {option}")
            }
            Self::Disabled(name) => {
                format!("remove cgroup_disable={name} from the kernel's command line, or add cgroup_enable={name}")
            }
            Self::NotMounted(name) => format!(
                "mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name} \
                 (or, where nothing uses v1: mount -t cgroup2 cgroup2 /sys/fs/cgroup)"
            ),
            Self::ReadOnly(point) => format!(
                "mount -o remount,rw {} (in a container: start it with writable control groups)",
                point.display()
            ),
            Self::Denied(_) => "run as root".to_owned(),
            Self::NotDelegated(name, _) => format!(
                "let the parent hand it down: echo +{name} > cgroup.subtree_control in the parent group, \
                 or Delegate=yes in the systemd unit"
            ),
            Self::Occupied(point) => {
                let point = point.display();
                format!(
                    "mkdir {point}/init && for pid in $(cat {point}/cgroup.procs); \
                     do echo $pid > {point}/init/cgroup.procs; done"
                )
            }
        }
    }
}

// === impl UnenforceableLimits ===

impl UnenforceableLimits {
    /// Each limit that cannot be enforced, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (Controller, &MissingController)> {
        self.0.iter().map(|(controller, missing)| (*controller, missing))
    }

    /// Whether all limits can be enforced.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How to make them enforceable, each remedy once.
    pub fn remedies(&self) -> Vec<String> {
        let mut remedies: Vec<String> = self.0.iter().map(|(_, missing)| missing.remedy()).collect();
        remedies.dedup();
        remedies
    }
}

impl fmt::Display for UnenforceableLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this host cannot enforce ")?;
        for (number, (controller, missing)) in self.0.iter().enumerate() {
            let limit = match controller {
                Controller::Memory => "the memory limit",
                Controller::Pids => "the limit on processes",
                Controller::Cpu => "the limit on processor time",
                Controller::Accounting => "the count of processor time",
                Controller::Freezer => "a pause",
            };
            write!(f, "{}{limit}: {missing}", if number == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnenforceableLimits {}
