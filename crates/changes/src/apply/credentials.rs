//! The user whose rights are used to write the project.
//!
//! Root writes into another user's directory with the rights of that user: whatever symlinks or races that user
//! prepares, the kernel checks access as for the user. Root only opens handles and checks what they refer to.

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::path_error::PathError;

/// The credentials of the thread that applies changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerCredentials {
    owner: Uid,
    group: Gid,
    /// Whether the caller is root and can switch to the owner.
    root: bool,
}

// === impl OwnerCredentials ===

impl OwnerCredentials {
    /// The credentials for a project of this owner.
    pub(super) fn of((uid, gid): (u32, u32)) -> Self {
        let root = rustix::process::geteuid().is_root();
        Self { owner: Uid::from_raw(uid), group: Gid::from_raw(gid), root }
    }

    pub(super) fn is_root(&self) -> bool {
        self.root
    }

    /// Whether a directory of this user must be made writable for its owner first.
    pub(super) fn opens(&self, uid: u32) -> bool {
        if self.root { !self.owner.is_root() } else { rustix::process::geteuid().as_raw() == uid }
    }

    pub(super) fn owner(&self) -> (Uid, Gid) {
        (self.owner, self.group)
    }

    /// Runs `work` in its own thread, with the owner's groups only; a thread cannot regain groups.
    pub(super) fn run<T: Send, E: Send + From<PathError>>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        if !self.root {
            return work();
        }
        std::thread::scope(|scope| {
            let work = || {
                let failed = || PathError::at("take the rights of the owner of", b"");
                set_thread_groups(&[self.group]).map_err(failed())?;
                set_thread_res_gid(None, self.group, None).map_err(failed())?;
                work()
            };
            let thread = std::thread::Builder::new().name("apply".to_owned()).spawn_scoped(scope, work);
            let thread = thread.map_err(PathError::at("start a thread for", b""))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes one call with the owner's rights. The real and saved UIDs stay root, so that the owner can neither signal
    /// nor trace this process.
    pub(super) fn as_owner<T>(&self, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if !self.root || self.owner.is_root() {
            return call();
        }
        set_thread_res_uid(None, self.owner, None)?;
        let outcome = call();
        set_thread_res_uid(None, Uid::ROOT, None)?;
        outcome
    }
}
