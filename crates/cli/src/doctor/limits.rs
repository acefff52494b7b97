//! Checks which limits this host enforces, and through which cgroup hierarchy.

use carrel_sandbox::cgroup::{Controller, ControllerLocation, HostCgroups};

use super::{CheckStatus, HostCheck};

/// Each limit, and the status without it: a run has the first two by default.
const LIMITS: [(&str, Controller, CheckStatus); 4] = [
    ("memory limit", Controller::Memory, CheckStatus::Fail),
    ("process limit", Controller::Pids, CheckStatus::Fail),
    ("processor limit", Controller::Cpu, CheckStatus::Warn),
    ("pause", Controller::Freezer, CheckStatus::Warn),
];

pub(super) fn checks() -> Vec<HostCheck> {
    match HostCgroups::detect() {
        Ok(host) => {
            LIMITS.into_iter().map(|(name, which, without)| check(name, host.location(which), without)).collect()
        }
        Err(error) => vec![HostCheck::fail("cgroups", error.to_string(), "mount -t proc proc /proc")],
    }
}

fn check(name: &'static str, place: &ControllerLocation, without: CheckStatus) -> HostCheck {
    match place {
        ControllerLocation::V1(mount) => HostCheck::ok(name, format!("cgroup v1, {}", mount.display())),
        ControllerLocation::V2(mount) => HostCheck::ok(name, format!("cgroup v2, {}", mount.display())),
        ControllerLocation::Missing(missing) => {
            let (found, remedy) = (missing.to_string(), missing.remedy());
            if without == CheckStatus::Fail {
                let remedy = format!("{remedy}; or run without it: carrel run --allow-unenforced-limits");
                HostCheck::fail(name, found, remedy)
            } else {
                HostCheck::warn(name, found, remedy)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_sandbox::cgroup::MissingController;

    use super::*;

    #[test]
    fn an_enforced_limit_names_its_hierarchy() {
        let v1 = check("memory limit", &ControllerLocation::V1("/c/memory".into()), CheckStatus::Fail);
        assert_eq!((v1.status, v1.found.as_str()), (CheckStatus::Ok, "cgroup v1, /c/memory"));
        let v2 = check("memory limit", &ControllerLocation::V2("/c".into()), CheckStatus::Fail);
        assert_eq!((v2.status, v2.found.as_str()), (CheckStatus::Ok, "cgroup v2, /c"));
    }

    //= carrel.command.doctor-checks-host-gives
    #[test]
    fn a_limit_that_cannot_be_enforced_fails_with_its_remedy() {
        let missing = ControllerLocation::Missing(MissingController::Disabled("memory"));
        let check = check("memory limit", &missing, CheckStatus::Fail);
        assert_eq!(check.status, CheckStatus::Fail);
        assert!(check.remedy.unwrap().starts_with("remove cgroup_disable=memory from the kernel's command line"));
    }
}
