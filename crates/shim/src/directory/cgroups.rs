//! Cgroups without a discoverable sandbox: identified by their owners, and those by their id ranges.

use std::path::Path;

use carrel_sandbox::cgroup::{Cgroup, CgroupError, HostCgroups};
use carrel_sandbox::{IdRange, SUPERVISORS};
use rustix::io::Errno;

use super::{DirectoryError, UnkillableProcesses};

/// How often the removal of a cgroup is retried while another process removes it too.
const TRIES: usize = 8;

/// Terminates and removes the cgroups of dead shims, whatever happened to their directories. Returns how many.
///
/// `ids` has to be the directory where all shims of this host lock their id ranges: the owner of a cgroup holds the
/// range of that user for as long as anything of its sandbox exists.
pub fn sweep_groups(ids: &Path) -> Result<usize, DirectoryError> {
    let host = HostCgroups::detect()?;
    let (mut swept, mut first) = (0, None);
    for name in Cgroup::list(&host)? {
        // A cgroup that cannot be swept does not affect the others.
        match sweep_group(&host, ids, &name) {
            Ok(removed) => swept += usize::from(removed),
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.map_or(Ok(swept), Err)
}

/// Terminates one cgroup, if it belongs to a dead shim.
fn sweep_group(host: &HostCgroups, ids: &Path, name: &str) -> Result<bool, DirectoryError> {
    let group = match Cgroup::adopt(host, name) {
        Ok(group) => group,
        Err(CgroupError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Cgroups of sandboxes that are being created are ours.
    let Some(owner) = group.owner().filter(|owner| *owner > SUPERVISORS) else { return Ok(false) };
    let number = owner - SUPERVISORS - 1;
    // Held to the end: no other shim becomes that user meanwhile.
    let Some(_range) = IdRange::claim(ids, number)? else { return Ok(false) };
    match belongs_to_another_system(&group, owner) {
        Ok(true) => Ok(false),
        Ok(false) => end(host, name, group).map_err(|error| match unkillable(host, name, &error) {
            Some(unkillable) => unkillable.into(),
            None => error.into(),
        }),
        // Another process is sweeping its directory.
        Err(CgroupError::Read { errno: Errno::NOENT | Errno::NODEV, .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Terminates and removes a cgroup; returns whether this process did. Another process may be doing the same, one
/// hierarchy after the other.
pub(super) fn end(host: &HostCgroups, name: &str, mut group: Cgroup) -> Result<bool, CgroupError> {
    let owner = group.owner();
    for _ in 0..TRIES {
        let error = match group.kill_all().and_then(|()| group.remove()) {
            Ok(()) => return Ok(true),
            Err(error @ CgroupError::Late { .. }) => return Err(error),
            Err(error) => error,
        };
        match Cgroup::adopt(host, name) {
            Ok(rest) if rest.owner() == owner => group = rest,
            Ok(_) | Err(CgroupError::NotFound { .. }) => return Ok(false),
            Err(_) => return Err(error),
        }
    }
    group.kill_all().and_then(|()| group.remove()).map(|()| true)
}

/// The unkillable processes of a cgroup, if they are the cause of a failure.
pub(super) fn unkillable(host: &HostCgroups, name: &str, error: &CgroupError) -> Option<UnkillableProcesses> {
    let CgroupError::Late { .. } = error else { return None };
    let group = Cgroup::adopt(host, name).ok()?;
    let pids = group.processes().ok()?.into_iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    Some(UnkillableProcesses(pids))
}

/// Whether a shim of that user has a child in the cgroup, or a process in it is invisible to us: then it belongs to
/// another system that shares our cgroups and not our id ranges, such as a container.
fn belongs_to_another_system(group: &Cgroup, owner: u32) -> Result<bool, CgroupError> {
    let processes = group.processes()?;
    if processes.is_empty() {
        return Ok(group.statistics()?.pids.is_some_and(|pids| pids > 0));
    }
    let parents = processes.iter().filter_map(|process| status(process.as_raw_nonzero().get(), "PPid:"));
    Ok(parents.filter_map(|parent| status(parent, "Uid:")).any(|user| u32::try_from(user) == Ok(owner)))
}

/// The first number of a line about a process.
fn status(pid: i32, line: &str) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|found| found.strip_prefix(line))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sweep::tests::CgroupProcess;
    use crate::directory::tests::alone;

    #[test]
    fn a_cgroup_is_kept_while_the_id_range_of_its_owner_is_locked() {
        let _alone = alone();
        let ids = tempfile::tempdir().unwrap();
        let (host, name) = (HostCgroups::detect().unwrap(), format!("groups-held-{}", std::process::id()));
        // Locked, so that no other process on this host considers it abandoned.
        let real = IdRange::allocate(Path::new("/run/carrel/ids")).unwrap();
        let number = real.supervisor() - SUPERVISORS - 1;
        let range = IdRange::claim(ids.path(), number).unwrap().unwrap();
        let mut grouped = CgroupProcess::start(&name, Some(range.supervisor()));
        assert!(!sweep_group(&host, ids.path(), &name).unwrap());
        assert!(grouped.lives() && grouped.is_there());
        drop(range);
        assert!(sweep_group(&host, ids.path(), &name).unwrap());
        assert!(!grouped.is_there());
        assert!(!grouped.child.wait().unwrap().success());
        assert!(!sweep_group(&host, ids.path(), &name).unwrap(), "nothing is left");
        assert!(IdRange::claim(ids.path(), number).unwrap().is_some(), "the range is free");
    }

    #[test]
    fn concurrent_removals_of_a_cgroup_do_not_conflict() {
        let _alone = alone();
        let host = HostCgroups::detect().unwrap();
        let both = std::sync::Barrier::new(2);
        for round in 0..20 {
            let name = format!("groups-both-{round}-{}", std::process::id());
            let mut grouped = CgroupProcess::start(&name, None);
            let found = [(); 2].map(|()| Cgroup::adopt(&host, &name).unwrap());
            let ended = std::thread::scope(|scope| {
                let enders = found.map(|group| {
                    scope.spawn(|| {
                        both.wait();
                        end(&host, &name, group)
                    })
                });
                enders.map(|ender| ender.join().unwrap().unwrap())
            });
            assert!(ended.contains(&true), "{round}");
            assert!(!grouped.is_there());
            grouped.child.wait().unwrap();
        }
    }

    #[test]
    fn a_cgroup_that_belongs_to_no_shim_is_left_alone() {
        let _alone = alone();
        let ids = tempfile::tempdir().unwrap();
        let host = HostCgroups::detect().unwrap();
        for (number, owner) in [None, Some(1000), Some(SUPERVISORS)].into_iter().enumerate() {
            let name = format!("groups-other-{number}-{}", std::process::id());
            let mut grouped = CgroupProcess::start(&name, owner);
            assert!(!sweep_group(&host, ids.path(), &name).unwrap());
            assert!(grouped.lives() && grouped.is_there(), "{owner:?}");
        }
    }
}
