//! A fake v2 hierarchy of plain files for unit tests: it shows which files are written with what, not what a kernel then does.

use std::fs;
use std::path::Path;

use super::directory::CgroupDirectory;
use super::host::{HostCgroups, MountAccess, UnifiedRoot};

/// The files that the kernel creates in a new group.
const BORN: &[(&str, &str)] = &[
    ("cgroup.controllers", "cpu memory pids\n"),
    ("cgroup.events", "populated 0\nfrozen 0\n"),
    ("cgroup.freeze", "0\n"),
    ("cgroup.kill", ""),
    ("cgroup.procs", ""),
    ("cgroup.subtree_control", ""),
    ("cgroup.type", "domain\n"),
    ("cpu.max", "max 100000\n"),
    (
        "cpu.stat",
        "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\nnr_periods 3\nnr_throttled 2\nthrottled_usec 70\n",
    ),
    ("memory.current", "4096\n"),
    ("memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n"),
    ("memory.max", "max\n"),
    ("memory.peak", "8192\n"),
    ("memory.swap.max", "max\n"),
    ("pids.current", "6\n"),
    ("pids.max", "max\n"),
];
/// Lists the files that the fake kernel does not have; its presence marks a fake hierarchy.
const LACKS: &str = ".lacks";

/// Creates a fake hierarchy whose groups lack some files.
pub(super) fn host(root: &Path, lacks: &[&str]) -> HostCgroups {
    fs::write(root.join(LACKS), lacks.join("\n")).unwrap();
    fs::write(root.join("cgroup.subtree_control"), "cpu\n").unwrap();
    let mountinfo = format!("30 23 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.display());
    let top = |_: &Path| UnifiedRoot {
        controllers: "cpuset cpu io memory pids".into(),
        enabled: "cpu".into(),
        top: true,
        occupied: true,
    };
    HostCgroups::locate_all(&mountinfo, "", |_| MountAccess::Usable, top)
}

/// What the kernel does when a group is created.
pub(super) fn fill(parent: &CgroupDirectory, name: &str) {
    let Some(lacks) = lacks(parent.path()) else { return };
    for (file, text) in BORN.iter().filter(|(file, _)| !lacks.lines().any(|lack| lack == *file)) {
        fs::write(parent.join(name).join(file), text).unwrap();
    }
}

/// What the kernel does when a group is removed.
pub(super) fn empty(parent: &CgroupDirectory, name: &str) {
    if lacks(parent.path()).is_some() {
        for (file, _) in BORN {
            let _gone = fs::remove_file(parent.join(name).join(file));
        }
    }
}

fn lacks(directory: &Path) -> Option<String> {
    directory.ancestors().find_map(|ancestor| fs::read_to_string(ancestor.join(LACKS)).ok())
}
