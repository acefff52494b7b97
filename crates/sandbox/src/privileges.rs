//! Drops the privileges of a shim once its sandbox runs: a sandbox that compromises its shim from then on gains nothing.

use std::os::fd::BorrowedFd;

use carrel_seccomp::{SeccompError, SeccompFilter};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{DumpableBehavior, Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::ids::SUPERVISORS;
use crate::landlock;
use crate::launch::has_private_mounts;
use crate::mount;
use crate::sys;

/// Where the empty root is attached briefly. Any directory that every host has.
const ASSEMBLY: &str = "/tmp";

/// The privileges that a shim retains.
#[derive(Clone, Copy, Debug)]
pub struct RetainedPrivileges<'a> {
    /// Whether it may signal processes of other users, which it needs to kill its sandbox.
    pub kill: bool,
    /// The user that it becomes, in the group [`SUPERVISORS`](crate::SUPERVISORS). Files that it still has to change belong to
    /// that user already.
    pub user: Option<u32>,
    /// The directories whose files it still uses. Where the kernel has Landlock, no other file can be opened by path, whatever
    /// descriptors are open.
    pub directories: &'a [BorrowedFd<'a>],
}

/// A step that failed. The steps before it are not undone: exit the process.
#[derive(Debug, thiserror::Error)]
pub enum DropPrivilegesError {
    /// The process is in the host's mount namespace, which would lose its root.
    #[error("the process is still in the host's mount namespace")]
    HostMounts,
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
    /// The Landlock ruleset could not be enforced, although the kernel has Landlock.
    #[error("restrict the shim to its files: {0}")]
    Ruleset(#[from] ::landlock::RulesetError),
    /// The system-call filter could not be built or installed.
    #[error(transparent)]
    Filter(#[from] SeccompError),
}

/// Drops all privileges that a shim does not need, permanently.
///
/// Its root becomes an empty read-only directory; open files stay open, and handles (see
/// [`open_handle`](crate::open_handle())) give access to what is beneath them only. It loses its capabilities, is not
/// dumpable, gains nothing by executing a program, is restricted by Landlock to its directories, and by
/// [`SeccompFilter::supervisor`] to its system calls.
///
/// The calling process is root, has one thread, and has called [`leave_host_mounts`](crate::leave_host_mounts).
pub fn drop_privileges(kept: RetainedPrivileges<'_>) -> Result<(), DropPrivilegesError> {
    if !has_private_mounts() {
        return Err(DropPrivilegesError::HostMounts);
    }
    let filter = SeccompFilter::supervisor()?;
    enter_empty_root().map_err(failed("enter an empty root"))?;
    if let Some(user) = kept.user {
        become_user(user).map_err(failed("become another user"))?;
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("become opaque"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    drop_capabilities(if kept.kill { CapabilitySet::KILL } else { CapabilitySet::empty() })
        .map_err(failed("drop capabilities"))?;
    // After the last change of mounts and ids, which the ruleset forbids, and before the filter, which forbids the ruleset.
    landlock::enforce(kept.directories)?;
    Ok(filter.install()?)
}

/// Returns freed memory to the system: there is one shim per sandbox.
pub fn release_memory() {
    sys::release_memory();
}

/// Becomes another user, keeping its capabilities, which the next step drops.
fn become_user(user: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(SUPERVISORS));
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // Makes the permitted capabilities effective again.
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
            // Unknown to this kernel.
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
    fn a_process_in_the_hosts_mount_namespace_is_refused() {
        assert!(matches!(
            drop_privileges(RetainedPrivileges { kill: true, user: None, directories: &[] }),
            Err(DropPrivilegesError::HostMounts)
        ));
        assert!(std::path::Path::new("/proc/self").exists());
    }
}
