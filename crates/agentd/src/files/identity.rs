//! Acting on behalf of a user: the kernel itself decides what that user may do.

use rustix::process::Gid;

use super::FileError;
use crate::sys;
use crate::users::Accounts;

/// While it lives, files are opened and made as another user. Dropped, the agent is itself again.
pub(crate) struct Identity {
    /// The agent's own groups, while it has another's.
    own: Option<Vec<Gid>>,
}

// === impl Identity ===

impl Identity {
    /// Takes on the identity of a user, or stays as it is for nobody.
    pub(crate) fn take(what: &'static str, user: Option<&str>) -> Result<Self, FileError> {
        let Some(spec) = user else { return Ok(Self { own: None }) };
        let user = Accounts::read().resolve(spec).map_err(|error| FileError::other(what, error.to_string()))?;
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        let own = rustix::process::getgroups().map_err(|errno| FileError::new(what, errno))?;
        let identity = Self { own: Some(own) };
        rustix::thread::set_thread_groups(&groups).map_err(|errno| FileError::new(what, errno))?;
        sys::set_filesystem_ids(user.uid, user.gid).map_err(|errno| FileError::new(what, errno))?;
        Ok(identity)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            // The agent keeps the right to return to what it is: only the file-system identity was changed.
            let _returned = sys::set_filesystem_ids(uid, gid);
            let _returned = rustix::thread::set_thread_groups(own);
        }
    }
}
