//! Who needs an image, and so keeps it from being removed.
//!
//! What runs holds a shared lock, which ends with it. What is kept has a link to its own directory among the users of
//! the image: it outlasts every process, and counts for nothing once that directory is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{IMAGES, LOCK, Store, USERS, files};
use crate::digest::Digest;
use crate::error::StoreError;
use crate::{lock, staging};

/// An image that stays for as long as this is held, also by a process that inherits the descriptor.
#[derive(Debug)]
pub struct Hold {
    lock: OwnedFd,
    image: OwnedFd,
}

/// What became of locking an image.
pub(super) enum Locked {
    Held(Hold),
    /// Somebody holds it.
    Used,
    /// There is no such image.
    Gone,
}

// === impl Store ===

impl Store {
    /// Keeps an image from being removed while the value lives.
    pub fn hold(&self, digest: Digest) -> Result<Hold, StoreError> {
        let unknown = || StoreError::Unknown(digest.to_string());
        let lock = |file: &OwnedFd| lock::flock(file, FlockOperation::LockShared).map(|()| true);
        match self.locked(digest, lock).map_err(|error| self.failed(error))? {
            Locked::Held(held) => Ok(held),
            Locked::Gone | Locked::Used => Err(unknown()),
        }
    }

    /// Keeps an image from being removed while the directory of its owner is there, whatever happens to any process.
    pub fn need(&self, digest: Digest, id: &str, owner: &Path) -> Result<(), StoreError> {
        check(id)?;
        if !owner.is_absolute() || !owner.is_dir() {
            return Err(StoreError::NoOwner(owner.to_owned()));
        }
        let held = self.hold(digest)?;
        let target = self.seen_from_users(owner);
        let link = || -> io::Result<()> {
            let users = files::directory(&held.image, USERS)?;
            let new = format!(".{}", staging::random()?);
            rustix::fs::symlinkat(&target, &users, &new)?;
            rustix::fs::renameat(&users, &new, &users, id)?;
            rustix::fs::fsync(&users)?;
            Ok(())
        };
        let linked = link().map_err(|error| self.failed(error));
        held.end();
        linked
    }

    /// Ends that. An image that is gone is needed by nobody.
    pub fn forget(&self, digest: Digest, id: &str) -> Result<(), StoreError> {
        check(id)?;
        let path = format!("{IMAGES}/{}/{USERS}", digest.hex());
        let users = files::existing(&self.handle, &path).map_err(|error| self.failed(error))?;
        users.map_or(Ok(()), |users| files::unlink(&users, id)).map_err(|error| self.failed(error))
    }

    /// The directory of an owner as a link among the users of an image names it: what is in the home of the store moves
    /// with it.
    fn seen_from_users(&self, owner: &Path) -> PathBuf {
        let owner = std::fs::canonicalize(owner).unwrap_or_else(|_| owner.to_owned());
        // `images`, `images/images`, the image, and its users.
        let up = Path::new("../../../..");
        match self.path.parent().and_then(|home| owner.strip_prefix(home).ok()) {
            Some(below) => up.join(below),
            None => owner,
        }
    }

    /// Locks an image.
    pub(super) fn locked(&self, digest: Digest, lock: impl Fn(&OwnedFd) -> io::Result<bool>) -> io::Result<Locked> {
        let path = format!("{IMAGES}/{}", digest.hex());
        let Some(image) = files::existing(&self.handle, &path)? else { return Ok(Locked::Gone) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&image, LOCK, flags, Mode::empty()) {
            // It is being removed.
            Err(Errno::NOENT) => return Ok(Locked::Gone),
            outcome => outcome?,
        };
        if !lock(&file)? {
            return Ok(Locked::Used);
        }
        // It may have been removed before it was locked.
        let there = lock::is_at(&image, &self.handle, &path)?;
        Ok(if there { Locked::Held(Hold { lock: file, image }) } else { Locked::Gone })
    }
}

// === impl Hold ===

impl Hold {
    /// Lets go of it, which no process has inherited for longer than it takes to start one.
    pub(super) fn end(self) {
        lock::release(&self.lock);
    }

    /// Who needs the image for as long as a directory is there. Those whose directory is gone go with the image.
    pub(super) fn users(&self) -> io::Result<Vec<String>> {
        let Some(users) = files::existing(&self.image, USERS)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for id in files::all_names(&self.image, USERS)? {
            match rustix::fs::statat(&users, &id, AtFlags::empty()) {
                // A link that is only being made belongs to somebody who holds the image, or did not live to use it.
                Ok(_) if id.starts_with('.') => {}
                Ok(_) => found.push(id),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // What cannot be looked at may be there.
                Err(_) => found.push(id),
            }
        }
        Ok(found)
    }
}

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

/// Whether an id can be the name of a file.
fn check(id: &str) -> Result<(), StoreError> {
    if id.is_empty() || id.len() > 200 || id.starts_with('.') || id.contains(['/', '\0']) {
        return Err(StoreError::BadName(id.chars().take(64).collect()));
    }
    Ok(())
}
