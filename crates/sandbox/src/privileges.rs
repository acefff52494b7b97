//! What a supervisor gives up once its sandbox runs: whoever takes it over from then on, by what a sandbox sends it,
//! has taken nothing.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{DumpableBehavior, Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::ids::SUPERVISORS;
use crate::launch::has_private_mounts;
use crate::mount;
use crate::ruleset;
use crate::seccomp::{Filter, SeccompError};
use crate::sys;

/// Where the empty root is attached for a moment. Any directory that every host has.
const ASSEMBLY: &str = "/tmp";

/// What a supervisor keeps. Everything else it gives up.
#[derive(Clone, Copy, Debug)]
pub struct RetainedPrivileges<'a> {
    /// Whether it may still signal processes of other users: what it takes to end its sandbox.
    pub kill: bool,
    /// The user it becomes, in the group [`SUPERVISORS`](crate::SUPERVISORS). What it still has to change on the host was
    /// given to that user before.
    pub user: Option<u32>,
    /// The directories whose files it still uses. By name, no other file can be opened any more, whatever is left open,
    /// where the kernel has Landlock.
    pub directories: &'a [BorrowedFd<'a>],
}

/// A step that failed. Those before it stay done: end the process.
#[derive(Debug, thiserror::Error)]
pub enum DropPrivilegesError {
    /// The process sees the host's mounts, which would go with its root.
    #[error("the host's mounts were not left before")]
    HostMounts,
    /// A call failed.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    /// The ruleset of Landlock could not be enforced, although the kernel has it.
    #[error("restrict the supervisor to its files: {0}")]
    Ruleset(#[from] landlock::RulesetError),
    /// The system-call filter could not be built or installed.
    #[error(transparent)]
    Filter(#[from] SeccompError),
}

/// Gives up what a supervisor does not need, for good.
///
/// Its root becomes an empty directory that stays empty; files that are open stay open, and handles (see
/// [`handle`](crate::handle())) lead to what is beneath them and no further. Its capabilities go, it is opaque to
/// others and can gain nothing by executing a program, Landlock holds it to the directories that it keeps, and its system
/// calls are those of [`Filter::supervisor`].
///
/// The calling process is root, has one thread, and has called [`leave_host_mounts`](crate::leave_host_mounts).
pub fn drop_privileges(kept: RetainedPrivileges<'_>) -> Result<(), DropPrivilegesError> {
    if !has_private_mounts() {
        return Err(DropPrivilegesError::HostMounts);
    }
    let filter = Filter::supervisor()?;
    enter_empty_root().map_err(failed("enter an empty root"))?;
    if let Some(user) = kept.user {
        become_user(user).map_err(failed("become another user"))?;
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("become opaque"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    drop_capabilities(if kept.kill { CapabilitySet::KILL } else { CapabilitySet::empty() })
        .map_err(failed("give up capabilities"))?;
    // After the last change of its mounts and ids, which the ruleset refuses, and before the filter refuses the ruleset.
    ruleset::enforce(kept.directories)?;
    Ok(filter.install()?)
}

/// Gives back memory that was needed for a while and is not any more: a supervisor is there as often as there are
/// sandboxes.
pub fn release_memory() {
    sys::release_memory();
}

/// Becomes another user, with the capabilities it has: they go in the next step.
fn become_user(user: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(SUPERVISORS));
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // Those that it may have are no longer those that it uses.
    let all = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: all.permitted, ..all })
}

fn enter_empty_root() -> Result<(), Errno> {
    let nothing = mount::empty()?;
    mount::attach(&nothing, rustix::fs::CWD, ASSEMBLY)?;
    rustix::process::fchdir(&nothing)?;
    sys::pivot_to_working_directory()?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn drop_capabilities(kept: CapabilitySet) -> Result<(), Errno> {
    rustix::thread::clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

fn failed(what: &'static str) -> impl Fn(Errno) -> DropPrivilegesError {
    move |errno| DropPrivilegesError::System(what, errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.supervisor.could-host-cannot-once
    #[test]
    fn nobody_takes_the_root_of_the_host_away() {
        assert!(matches!(
            drop_privileges(RetainedPrivileges { kill: true, user: None, directories: &[] }),
            Err(DropPrivilegesError::HostMounts)
        ));
        assert!(std::path::Path::new("/proc/self").exists());
    }
}
