//! Accesses files of the host with the rights of a caller.

use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::Caller;

/// A user and a group of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIds {
    /// The user id.
    pub user: u32,
    /// The group id. Supplementary groups do not count.
    pub group: u32,
}

// === impl HostIds ===

impl HostIds {
    /// A caller that is no user of the host: it may read what all users may.
    pub const UNKNOWN: Self = Self { user: u32::MAX - 1, group: u32::MAX - 1 };

    /// Runs a function that accesses files with the rights of this user and group only.
    pub fn act<T: Send>(self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        // In a thread of its own, because the identity belongs to the thread and the process keeps its own.
        std::thread::scope(|scope| {
            let acting = std::thread::Builder::new().name("caller".to_owned()).spawn_scoped(scope, move || {
                self.assume()?;
                Ok(work())
            });
            acting?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Makes this the identity of the calling thread, permanently.
    fn assume(self) -> Result<(), Errno> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        if rustix::process::geteuid() == user && rustix::process::getegid() == group {
            return Ok(());
        }
        rustix::thread::set_thread_groups(&[])?;
        // Only the effective ids, which decide the access to files: processes of that user must not be able to send
        // signals to this one.
        rustix::thread::set_thread_res_gid(None, group, None)?;
        rustix::thread::set_thread_res_uid(None, user, None)?;
        if user.is_root() {
            return Ok(());
        }
        // The kernel drops the capabilities of a thread that is not root any more, unless this process is configured to
        // keep them.
        let sets = rustix::thread::capabilities(None)?;
        rustix::thread::set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })
    }
}

impl From<&Caller> for HostIds {
    fn from(caller: &Caller) -> Self {
        if caller.user == Caller::KEY.user { Self::UNKNOWN } else { Self { user: caller.user, group: caller.group } }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_caller_reads_what_is_its_own_and_what_is_for_everybody() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let put = |name: &str, owner: u32, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            chown(&path, Some(owner), Some(owner)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let caller = HostIds { user: 4242, group: 4242 };
        for (path, caller, expected) in [
            (put("own", 4242, 0o600), caller, true),
            (put("other", 4243, 0o600), caller, false),
            (put("root", 0, 0o600), caller, false),
            (put("root", 0, 0o600), HostIds { user: 0, group: 0 }, true),
            (put("open", 0, 0o604), caller, true),
            (put("open", 0, 0o604), HostIds::UNKNOWN, true),
            (put("own", 4242, 0o660), HostIds::UNKNOWN, false),
        ] {
            let read = caller.act(|| fs::read(&path).is_ok()).unwrap();
            assert_eq!(read, expected, "{caller:?} {}", path.display());
        }
        assert!(fs::read(directory.path().join("root")).is_ok(), "this thread is who it was");
    }
}
