//! Users of an image, which keep it from being removed.
//!
//! A running user holds a shared lock, which the kernel releases. A persistent user has a symlink to its own directory
//! in `users/`: it outlives every process, and a dangling one does not count.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{IMAGES, ImageStore, LOCK, USERS, files};
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::{lock, staging};

/// Keeps an image from being removed, also while another process has inherited the descriptor.
#[derive(Debug)]
pub struct ImagePin {
    lock: OwnedFd,
    image: OwnedFd,
}

/// The result of locking an image.
pub(super) enum ImageLock {
    Held(ImagePin),
    /// It is in use.
    Used,
    /// The store has no such image.
    Gone,
}

// === impl ImageStore ===

impl ImageStore {
    /// Keeps an image from being removed while the value exists.
    pub fn hold(&self, digest: Digest) -> Result<ImagePin, ImageStoreError> {
        let unknown = || ImageStoreError::Unknown(digest.to_string());
        let lock = |file: &OwnedFd| lock::flock(file, FlockOperation::LockShared).map(|()| true);
        match self.locked(digest, lock).map_err(|error| self.failed(error))? {
            ImageLock::Held(held) => Ok(held),
            ImageLock::Gone | ImageLock::Used => Err(unknown()),
        }
    }

    /// Keeps an image from being removed while the directory of its owner exists, independent of any process.
    pub fn need(&self, digest: Digest, id: &str, owner: &Path) -> Result<(), ImageStoreError> {
        check(id)?;
        if !owner.is_absolute() || !owner.is_dir() {
            return Err(ImageStoreError::MissingOwner(owner.to_owned()));
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

    /// Removes a persistent user. It is not an error if the image is gone.
    pub fn forget(&self, digest: Digest, id: &str) -> Result<(), ImageStoreError> {
        check(id)?;
        let path = format!("{IMAGES}/{}/{USERS}", digest.hex());
        let users = files::existing(&self.handle, &path).map_err(|error| self.failed(error))?;
        users.map_or(Ok(()), |users| files::unlink(&users, id)).map_err(|error| self.failed(error))
    }

    /// The symlink target for an owner's directory: relative if it is in the store's home, so that the home can be
    /// moved.
    fn seen_from_users(&self, owner: &Path) -> PathBuf {
        let owner = std::fs::canonicalize(owner).unwrap_or_else(|_| owner.to_owned());
        // `images`, `images/images`, the image, and its users.
        let up = Path::new("../../../..");
        match self.path.parent().and_then(|home| owner.strip_prefix(home).ok()) {
            Some(below) => up.join(below),
            None => owner,
        }
    }

    pub(super) fn locked(&self, digest: Digest, lock: impl Fn(&OwnedFd) -> io::Result<bool>) -> io::Result<ImageLock> {
        let path = format!("{IMAGES}/{}", digest.hex());
        let Some(image) = files::existing(&self.handle, &path)? else { return Ok(ImageLock::Gone) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&image, LOCK, flags, Mode::empty()) {
            // It is being removed.
            Err(Errno::NOENT) => return Ok(ImageLock::Gone),
            outcome => outcome?,
        };
        if !lock(&file)? {
            return Ok(ImageLock::Used);
        }
        // It may have been removed before it was locked.
        let there = lock::is_same_file(&image, &self.handle, &path)?;
        Ok(if there { ImageLock::Held(ImagePin { lock: file, image }) } else { ImageLock::Gone })
    }
}

// === impl ImagePin ===

impl ImagePin {
    /// Releases the lock explicitly, since a concurrent fork may have inherited it.
    pub(super) fn end(self) {
        lock::release(&self.lock);
    }

    /// Persistent users whose directory exists.
    pub(super) fn users(&self) -> io::Result<Vec<String>> {
        let Some(users) = files::existing(&self.image, USERS)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for id in files::all_names(&self.image, USERS)? {
            match rustix::fs::statat(&users, &id, AtFlags::empty()) {
                // A temporary link belongs to a process that holds the image, or that was killed.
                Ok(_) if id.starts_with('.') => {}
                Ok(_) => found.push(id),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // If it cannot be checked, it may exist.
                Err(_) => found.push(id),
            }
        }
        Ok(found)
    }
}

impl AsFd for ImagePin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

/// Whether an ID is a valid file name.
fn check(id: &str) -> Result<(), ImageStoreError> {
    if id.is_empty() || id.len() > 200 || id.starts_with('.') || id.contains(['/', '\0']) {
        return Err(ImageStoreError::InvalidName(id.chars().take(64).collect()));
    }
    Ok(())
}
