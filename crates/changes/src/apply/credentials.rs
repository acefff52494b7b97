//! With whose rights a project is written.
//!
//! Root writes into a directory of another user with the rights of that user: whatever links or races the user prepares
//! there, the kernel decides as if the user had done it. Only handles are opened, and what they refer to is checked, as root.

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::failure::Failure;

/// The credentials of the thread that applies changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credentials {
    owner: Uid,
    group: Gid,
    /// Whether the caller is root, who can take the owner's place.
    root: bool,
}

// === impl Credentials ===

impl Credentials {
    /// Those for a project of this owner.
    pub(super) fn of((uid, gid): (u32, u32)) -> Self {
        let root = rustix::process::geteuid().is_root();
        Self { owner: Uid::from_raw(uid), group: Gid::from_raw(gid), root }
    }

    pub(super) fn is_root(&self) -> bool {
        self.root
    }

    /// Whether a directory of this user has to be writable for its owner before anything is written there.
    pub(super) fn opens(&self, uid: u32) -> bool {
        if self.root { !self.owner.is_root() } else { rustix::process::geteuid().as_raw() == uid }
    }

    pub(super) fn owner(&self) -> (Uid, Gid) {
        (self.owner, self.group)
    }

    /// Does work in a thread of its own, which has given up all groups but the owner's: they do not come back.
    pub(super) fn run<T: Send, E: Send + From<Failure>>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        if !self.root {
            return work();
        }
        std::thread::scope(|scope| {
            let work = || {
                let failed = || Failure::at("take the rights of the owner of", b"");
                set_thread_groups(&[self.group]).map_err(failed())?;
                set_thread_res_gid(None, self.group, None).map_err(failed())?;
                work()
            };
            let thread = std::thread::Builder::new().name("apply".to_owned()).spawn_scoped(scope, work);
            let thread = thread.map_err(Failure::at("start a thread for", b""))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes one call with the rights of the owner. The real and the saved user stay root, so that the owner can neither
    /// signal nor trace this process.
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
