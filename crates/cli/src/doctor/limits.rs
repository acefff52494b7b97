//! Which limits this host enforces, and by which hierarchy.

use carrel_sandbox::cgroup::{Controller, ControllerLocation, Host};

use super::{Check, Status};

/// Each limit, and how bad it is to be without: a run has the first two unless it says otherwise.
const LIMITS: [(&str, Controller, Status); 4] = [
    ("memory limit", Controller::Memory, Status::Fail),
    ("process limit", Controller::Pids, Status::Fail),
    ("processor limit", Controller::Cpu, Status::Warn),
    ("pause", Controller::Freezer, Status::Warn),
];

pub(super) fn checks() -> Vec<Check> {
    match Host::detect() {
        Ok(host) => LIMITS.into_iter().map(|(name, which, without)| check(name, host.place(which), without)).collect(),
        Err(error) => vec![Check::fail("cgroups", error.to_string(), "mount -t proc proc /proc")],
    }
}

fn check(name: &'static str, place: &ControllerLocation, without: Status) -> Check {
    match place {
        ControllerLocation::V1(mount) => Check::ok(name, format!("cgroup v1, {}", mount.display())),
        ControllerLocation::V2(mount) => Check::ok(name, format!("cgroup v2, {}", mount.display())),
        ControllerLocation::Missing(missing) => {
            let (found, remedy) = (missing.to_string(), missing.remedy());
            if without == Status::Fail {
                let remedy = format!("{remedy}; or run without it: carrel run --allow-unenforced-limits");
                Check::fail(name, found, remedy)
            } else {
                Check::warn(name, found, remedy)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_sandbox::cgroup::MissingController;

    use super::*;

    #[test]
    fn a_limit_is_where_it_is() {
        let v1 = check("memory limit", &ControllerLocation::V1("/c/memory".into()), Status::Fail);
        assert_eq!((v1.status, v1.found.as_str()), (Status::Ok, "cgroup v1, /c/memory"));
        let v2 = check("memory limit", &ControllerLocation::V2("/c".into()), Status::Fail);
        assert_eq!((v2.status, v2.found.as_str()), (Status::Ok, "cgroup v2, /c"));
    }

    //= carrel.command.doctor-checks-host-gives
    #[test]
    fn a_limit_that_cannot_be_enforced_fails_with_its_remedy() {
        let missing = ControllerLocation::Missing(MissingController::Disabled("memory"));
        let check = check("memory limit", &missing, Status::Fail);
        assert_eq!(check.status, Status::Fail);
        assert!(check.remedy.unwrap().starts_with("remove cgroup_disable=memory from the kernel's command line"));
    }
}
