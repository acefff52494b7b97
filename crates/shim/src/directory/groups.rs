//! Groups whose sandboxes nobody finds any more: known by their owners, and those by their ranges of ids.

use std::path::Path;

use carrel_sandbox::cgroup::{Cgroup, CgroupError, Host};
use carrel_sandbox::{IdRange, SUPERVISORS};
use rustix::io::Errno;

use super::{DirectoryError, Unkillable};

/// How often a group is ended that somebody else is ending too.
const TRIES: usize = 8;

/// Ends and removes the groups of supervisors that are dead, whatever became of their directories. Returns how many.
///
/// `ids` has to be where all supervisors of this host take their ranges of ids: whoever owns a group has the range of that
/// user for as long as anything of its sandbox is there.
pub fn sweep_groups(ids: &Path) -> Result<usize, DirectoryError> {
    let host = Host::detect()?;
    let (mut swept, mut first) = (0, None);
    for name in Cgroup::list(&host)? {
        // One that cannot be swept does not keep the others.
        match sweep_group(&host, ids, &name) {
            Ok(removed) => swept += usize::from(removed),
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.map_or(Ok(swept), Err)
}

/// Ends one group, if it is that of a dead supervisor.
fn sweep_group(host: &Host, ids: &Path, name: &str) -> Result<bool, DirectoryError> {
    let group = match Cgroup::adopt(host, name) {
        Ok(group) => group,
        Err(CgroupError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Those of sandboxes that are only being made are ours.
    let Some(owner) = group.owner().filter(|owner| *owner > SUPERVISORS) else { return Ok(false) };
    let number = owner - SUPERVISORS - 1;
    // Held to the end: nobody else becomes that user meanwhile.
    let Some(_range) = IdRange::claim(ids, number)? else { return Ok(false) };
    match is_looked_after(&group, owner) {
        Ok(true) => Ok(false),
        Ok(false) => end(host, name, group).map_err(|error| match unkillable(host, name, &error) {
            Some(unkillable) => unkillable.into(),
            None => error.into(),
        }),
        // Whoever sweeps its directory is there already.
        Err(CgroupError::Read { errno: Errno::NOENT | Errno::NODEV, .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Ends a group and removes it; says whether it was us. Somebody else may be doing the same, in one hierarchy after the
/// other.
pub(super) fn end(host: &Host, name: &str, mut group: Cgroup) -> Result<bool, CgroupError> {
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

/// The processes of a group that do not end, where that is why it could not be ended.
pub(super) fn unkillable(host: &Host, name: &str, error: &CgroupError) -> Option<Unkillable> {
    let CgroupError::Late { .. } = error else { return None };
    let group = Cgroup::adopt(host, name).ok()?;
    let pids = group.processes().ok()?.into_iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    Some(Unkillable(pids))
}

/// Whether a supervisor of that user has a child in the group, or somebody is in it whom we cannot see: then it belongs to
/// others that share our groups and not our ranges, as containers may.
fn is_looked_after(group: &Cgroup, owner: u32) -> Result<bool, CgroupError> {
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
    use crate::directory::sweep::tests::Grouped;
    use crate::directory::tests::alone;

    #[test]
    fn a_group_lives_as_long_as_somebody_holds_the_range_of_its_owner() {
        let _alone = alone();
        let ids = tempfile::tempdir().unwrap();
        let (host, name) = (Host::detect().unwrap(), format!("groups-held-{}", std::process::id()));
        // Held, so that nobody else on this host takes it for left.
        let real = IdRange::allocate(Path::new("/run/carrel/ids")).unwrap();
        let number = real.supervisor() - SUPERVISORS - 1;
        let range = IdRange::claim(ids.path(), number).unwrap().unwrap();
        let mut grouped = Grouped::start(&name, Some(range.supervisor()));
        assert!(!sweep_group(&host, ids.path(), &name).unwrap());
        assert!(grouped.lives() && grouped.is_there());
        drop(range);
        assert!(sweep_group(&host, ids.path(), &name).unwrap());
        assert!(!grouped.is_there());
        assert!(!grouped.child.wait().unwrap().success());
        assert!(!sweep_group(&host, ids.path(), &name).unwrap(), "there is nothing left");
        assert!(IdRange::claim(ids.path(), number).unwrap().is_some(), "others can have the range");
    }

    #[test]
    fn two_who_end_one_group_do_not_disturb_each_other() {
        let _alone = alone();
        let host = Host::detect().unwrap();
        let both = std::sync::Barrier::new(2);
        for round in 0..20 {
            let name = format!("groups-both-{round}-{}", std::process::id());
            let mut grouped = Grouped::start(&name, None);
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
    fn a_group_that_is_no_supervisors_is_left_alone() {
        let _alone = alone();
        let ids = tempfile::tempdir().unwrap();
        let host = Host::detect().unwrap();
        for (number, owner) in [None, Some(1000), Some(SUPERVISORS)].into_iter().enumerate() {
            let name = format!("groups-other-{number}-{}", std::process::id());
            let mut grouped = Grouped::start(&name, owner);
            assert!(!sweep_group(&host, ids.path(), &name).unwrap());
            assert!(grouped.lives() && grouped.is_there(), "{owner:?}");
        }
    }
}
