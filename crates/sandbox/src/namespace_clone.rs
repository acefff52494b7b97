//! Clones into new namespaces on the account of the sandbox: resources that the kernel charges beyond a user namespace
//! (inotify watches, namespaces, queued signals) are charged to the creator of the namespace, which is not to be the host's
//! root.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::process::Uid;

use crate::ids::IdRange;
use crate::sys::{self, CloneResult};

/// Clones this process into the namespaces of a sandbox, created by the sandbox's first id. Meanwhile the effective user of
/// this process is that id, with all its capabilities.
pub(crate) fn clone(namespaces: u64, ids: &IdRange, cgroup: Option<BorrowedFd<'_>>) -> Result<CloneResult, Errno> {
    let before = rustix::thread::capabilities(None)?;
    // The kernel resets these when the ids change.
    let dumpable = rustix::process::dumpable_behavior()?;
    let signal = rustix::process::parent_process_death_signal()?;
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    rustix::thread::set_thread_res_uid(real, Uid::from_raw(ids.base()), effective)?;
    let cloned = rustix::thread::set_capabilities(None, before).and_then(|()| sys::clone(namespaces, cgroup));
    if matches!(cloned, Ok(CloneResult::Child)) {
        return cloned;
    }
    // If restoring fails, the child exits by itself, since it never gets the go-ahead.
    rustix::thread::set_thread_res_uid(real, effective, effective)?;
    rustix::thread::set_capabilities(None, before)?;
    rustix::process::set_dumpable_behavior(dumpable)?;
    rustix::process::set_parent_process_death_signal(signal)?;
    cloned
}
