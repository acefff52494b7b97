//! Checks what limits the disk usage of sandboxes.

use std::path::Path;

use carrel_daemon::{Config, LimitsConfig};
use carrel_sandbox::cgroup::{Controller, ControllerLocation, HostCgroups};
use carrel_sandbox::{FreeSpace, PersistentDisk};
use carrel_units::ByteSize;

use super::HostCheck;
use crate::home::CarrelHome;

/// Magic numbers of file systems.
const FILE_SYSTEMS: [(u64, &str); 6] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
];

pub(super) fn checks() -> Vec<HostCheck> {
    // A missing home and an invalid configuration are reported by other checks.
    let Ok(home) = CarrelHome::find() else { return Vec::new() };
    let limits = Config::load(None).unwrap_or_default().limits;
    check_home(home.path(), &limits).into_iter().collect()
}

fn check_home(home: &Path, limits: &LimitsConfig) -> Option<HostCheck> {
    let stat = rustix::fs::statfs(home).ok()?;
    let number = u64::try_from(stat.f_type).ok()?;
    let name = FILE_SYSTEMS.iter().find(|(one, _)| *one == number).map_or("file system", |(_, name)| name);
    let opened = std::fs::File::open(home).ok()?;
    let counts = FreeSpace::of(&opened).ok()?.inodes.is_some();
    Some(check(name, PersistentDisk::has_quotas(home).ok()?, counts, limits, no_freezer().as_ref()))
}

/// Why this host cannot pause sandboxes, and the remedy.
fn no_freezer() -> Option<(String, String)> {
    match HostCgroups::detect().as_ref().map(|host| host.location(Controller::Freezer)) {
        Ok(ControllerLocation::V1(_) | ControllerLocation::V2(_)) => None,
        Ok(ControllerLocation::Missing(missing)) => Some((missing.to_string(), missing.remedy())),
        Err(error) => Some((error.to_string(), "mount -t proc proc /proc".to_owned())),
    }
}

fn check(
    name: &str,
    quotas: bool,
    counts: bool,
    limits: &LimitsConfig,
    no_freezer: Option<&(String, String)>,
) -> HostCheck {
    let quota = match (quotas, limits.sandbox_disk) {
        (true, 0) => {
            "with project quotas, but no default size: a persistent disk has a size only with --disk".to_owned()
        }
        (true, size) => {
            format!("with project quotas: a persistent disk has {} unless --disk says otherwise", ByteSize(size))
        }
        (false, _) => "without project quotas: a persistent disk has a size only with --disk".to_owned(),
    };
    let found = format!("{name} {quota}");
    if limits.host_free == 0 {
        let found = format!("{found}; host_free is 0: nothing stops a sandbox that fills the file system");
        return HostCheck::warn(
            "disk",
            found,
            "set host_free in [limits] of the configuration, such as host_free = \"1g\"",
        );
    }
    if let Some((missing, remedy)) = no_freezer {
        let found = format!("{found}; a sandbox that fills the file system cannot be paused: {missing}");
        return HostCheck::warn("disk", found, format!("{remedy}; or limit each sandbox: create --disk SIZE"));
    }
    let inodes = if counts { "" } else { "; inodes are not counted here" };
    let free = ByteSize(limits.host_free);
    HostCheck::ok("disk", format!("{found}; the daemon pauses writing sandboxes to keep {free} free{inodes}"))
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn missing_protection_is_reported() {
        let limits = Config::default().limits;
        let found = |quotas, counts, limits: &LimitsConfig| check("ext4", quotas, counts, limits, None).found;
        assert_eq!(
            found(false, true, &limits),
            "ext4 without project quotas: a persistent disk has a size only with --disk; the daemon pauses \
             writing sandboxes to keep 1 GiB free"
        );
        assert!(
            found(true, true, &limits).starts_with("ext4 with project quotas: a persistent disk has 10 GiB unless")
        );
        assert!(found(false, false, &limits).ends_with("inodes are not counted here"));
        let none = LimitsConfig { host_free: 0, sandbox_disk: 0, ..limits };
        let found = check("xfs", true, true, &none, None);
        assert_eq!(found.status, CheckStatus::Warn);
        assert!(found.found.contains("no default size") && found.found.contains("nothing stops"), "{}", found.found);
        let missing = ("the freezer controller is not mounted".to_owned(), "mount it".to_owned());
        let found = check("ext4", false, true, &Config::default().limits, Some(&missing));
        assert_eq!(found.status, CheckStatus::Warn);
        assert!(found.found.contains("not mounted") && !found.found.contains("the daemon pauses"), "{}", found.found);
        assert!(found.remedy.unwrap().contains("--disk SIZE"));
    }

    #[test]
    fn the_file_system_of_the_home_is_checked() {
        let home = tempfile::tempdir().unwrap();
        assert!(check_home(home.path(), &Config::default().limits).is_some());
        assert!(check_home(&home.path().join("missing"), &Config::default().limits).is_none());
    }
}
