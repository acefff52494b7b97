//! Who pays for a sandbox: whatever the kernel counts for users beyond a user namespace (watches of files, namespaces,
//! queued signals) is counted for who made the namespace, and that is not to be the host's root.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::process::Uid;

use crate::ids::IdRange;
use crate::sys::{self, CloneResult};

/// Clones this process into new namespaces of a sandbox, made by the first of the sandbox's own ids. For that moment
/// this process is, in effect, that user, with all its capabilities.
pub(crate) fn clone(namespaces: u64, ids: &IdRange, cgroup: Option<BorrowedFd<'_>>) -> Result<CloneResult, Errno> {
    let before = rustix::thread::capabilities(None)?;
    // The kernel takes these back from whoever changes its ids.
    let dumpable = rustix::process::dumpable_behavior()?;
    let signal = rustix::process::parent_process_death_signal()?;
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    rustix::thread::set_thread_res_uid(real, Uid::from_raw(ids.base()), effective)?;
    let cloned = rustix::thread::set_capabilities(None, before).and_then(|()| sys::clone(namespaces, cgroup));
    if matches!(cloned, Ok(CloneResult::Child)) {
        return cloned;
    }
    // A new process that is not let go ends by itself.
    rustix::thread::set_thread_res_uid(real, effective, effective)?;
    rustix::thread::set_capabilities(None, before)?;
    rustix::process::set_dumpable_behavior(dumpable)?;
    rustix::process::set_parent_process_death_signal(signal)?;
    cloned
}
