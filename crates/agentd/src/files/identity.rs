//! Acts as another user: the kernel itself enforces that user's permissions.

use rustix::process::Gid;

use super::FsError;
use crate::sys;
use crate::users::AccountDatabase;

/// While it exists, files are opened and created as another user.
pub(crate) struct FsIdentity {
    /// The agent's own groups, while they are replaced.
    own: Option<Vec<Gid>>,
}

// === impl FsIdentity ===

impl FsIdentity {
    /// Assumes the identity of a user; `None` keeps the agent's own.
    pub(crate) fn take(what: &'static str, user: Option<&str>) -> Result<Self, FsError> {
        let Some(spec) = user else { return Ok(Self { own: None }) };
        let user = AccountDatabase::read().resolve(spec).map_err(|error| FsError::other(what, error.to_string()))?;
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        let own = rustix::process::getgroups().map_err(|errno| FsError::new(what, errno))?;
        let identity = Self { own: Some(own) };
        rustix::thread::set_thread_groups(&groups).map_err(|errno| FsError::new(what, errno))?;
        sys::set_filesystem_ids(user.uid, user.gid).map_err(|errno| FsError::new(what, errno))?;
        Ok(identity)
    }
}

impl Drop for FsIdentity {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            // The agent can always return to its own identity: only the file-system ids were changed.
            let _returned = sys::set_filesystem_ids(uid, gid);
            let _returned = rustix::thread::set_thread_groups(own);
        }
    }
}
