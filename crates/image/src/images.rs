//! The store of images: every archive is unpacked once, whoever asks and however often.
//!
//! ```text
//! $HOME/images/            0700: what is in there has owners and set-id bits of its own
//!   archives/<state>       the digest of an archive, by what the system says about the file; also its lock
//!   trees/<sha256>/        what an archive unpacked to; complete, and never changed again
//!   staging/<random>/      a tree that is not complete yet, locked by whoever works on it
//! ```
//!
//! A tree is named by the digest of a plain tar, which is also how a layer of a container image is identified. Layers
//! with marks for what they remove do not unpack to the same trees, so they are to have a directory of their own.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::archive::{self, ArchiveError, Limits, Unpacked};
use crate::digest::{Digest, Digesting};
use crate::index::{self, Key};
use crate::staging::Staged;
use crate::{Found, ImageError, ImageRef, RootFs};

const ARCHIVES: &str = "archives";
const TREES: &str = "trees";
const STAGING: &str = "staging";
/// How much of an archive is read at a time.
const BUFFER: usize = 256 << 10;

/// The store of images.
#[derive(Debug)]
pub struct Images {
    path: PathBuf,
    handle: OwnedFd,
    limits: Limits,
}

/// An image that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its root file system.
    pub root: RootFs,
    /// The digest of its archive, if it is one.
    pub digest: Option<Digest>,
    /// What was unpacked for it just now. Nothing is for an archive that has been before.
    pub unpacked: Option<Unpacked>,
}

// === impl Images ===

impl Images {
    /// Opens the store below a home, and makes it where there is none.
    pub fn open(home: &Path) -> Result<Self, ImageError> {
        let path = std::path::absolute(home).map(|home| home.join("images"));
        let path = path.map_err(|source| ImageError::Store { path: home.to_owned(), source })?;
        let store = |source| ImageError::Store { path: path.clone(), source };
        let handle = open(&path).map_err(store)?;
        // What it names is named without links, so that none has to be followed.
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        Ok(Self { path, handle, limits: Limits::default() })
    }

    /// The same store, with other limits for what it unpacks.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Finds what a reference stands for; an archive is unpacked where it has not been.
    pub fn resolve(&self, reference: &ImageRef) -> Result<RootFs, ImageError> {
        Ok(self.find(reference)?.root)
    }

    /// The same, with what else is known of the image.
    pub fn find(&self, reference: &ImageRef) -> Result<Image, ImageError> {
        if let ImageRef::Path(path) = reference {
            if let Found::File = crate::find(path)? {
                return self.archive(path);
            }
        }
        Ok(Image { root: RootFs::resolve(reference)?, digest: None, unpacked: None })
    }

    fn archive(&self, path: &Path) -> Result<Image, ImageError> {
        let store = |source| ImageError::Store { path: self.path.clone(), source };
        let missing = |source: io::Error| ImageError::Missing { path: path.to_owned(), source };
        let status = rustix::fs::stat(path).map_err(|errno| missing(errno.into()))?;
        if let Some(digest) = self.known(&Key::new(&status)).map_err(store)? {
            return Ok(self.image(digest, None));
        }
        index::settle(&status);
        // Nothing else than a file may be here by now, and opening it must not wait for anybody.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let archive = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| missing(errno.into()))?;
        let status = rustix::fs::fstat(&archive).map_err(|errno| missing(errno.into()))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(ImageError::Neither(path.to_owned()));
        }
        let key = Key::new(&status);
        let archives = self.directory(ARCHIVES).map_err(store)?;
        let locked = index::lock(&archives, &key).map_err(store)?;
        if let Some(digest) = locked.get().map_err(store)? {
            if self.has(digest).map_err(store)? {
                return Ok(self.image(digest, None));
            }
        }
        let outcome = self.unpack(path, &archive.into(), &key);
        match outcome {
            Ok((digest, unpacked)) => {
                locked.put(digest).map_err(store)?;
                Ok(self.image(digest, Some(unpacked)))
            }
            Err(error) => {
                index::forget(&archives, &key);
                Err(error)
            }
        }
    }

    /// Unpacks an archive while it is digested, so that the tree is that of its digest whatever happens to the file.
    fn unpack(&self, path: &Path, file: &File, key: &Key) -> Result<(Digest, Unpacked), ImageError> {
        let store = |source| ImageError::Store { path: self.path.clone(), source };
        let archive = |source| ImageError::Archive { path: path.to_owned(), source };
        let staging = self.directory(STAGING).map_err(store)?;
        let trees = self.directory(TREES).map_err(store)?;
        let staged = Staged::new(staging, &self.path.join(STAGING)).map_err(store)?;
        let mut reader = BufReader::with_capacity(BUFFER, Digesting::new(file));
        let unpacked = archive::unpack(&mut reader, staged.handle(), self.limits).map_err(archive)?;
        // Behind the end there is nothing to unpack, but it counts for the digest.
        io::copy(&mut reader, &mut io::sink()).map_err(|error| archive(ArchiveError::Read(error)))?;
        let digest = reader.into_inner().digest();
        let now = rustix::fs::fstat(file).map_err(|errno| archive(ArchiveError::Read(errno.into())))?;
        if Key::new(&now) != *key {
            return Err(ImageError::Changed(path.to_owned()));
        }
        if holds_layers(staged.handle()) {
            return Err(ImageError::Layers(path.to_owned()));
        }
        staged.keep(trees, &digest.to_string()).map_err(store)?;
        Ok((digest, unpacked))
    }

    /// The digest of an archive whose tree is there.
    fn known(&self, key: &Key) -> io::Result<Option<Digest>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let archives = match rustix::fs::openat(&self.handle, ARCHIVES, flags, Mode::empty()) {
            Ok(archives) => archives,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        match index::get(archives, key)? {
            Some(digest) if self.has(digest)? => Ok(Some(digest)),
            _ => Ok(None),
        }
    }

    fn has(&self, digest: Digest) -> io::Result<bool> {
        match rustix::fs::statat(&self.handle, format!("{TREES}/{digest}"), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(FileType::from_raw_mode(status.st_mode) == FileType::Directory),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn image(&self, digest: Digest, unpacked: Option<Unpacked>) -> Image {
        let tree = self.path.join(TREES).join(digest.to_string());
        Image { root: RootFs::layer(tree), digest: Some(digest), unpacked }
    }

    /// A directory of the store, made where there is none.
    fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        match rustix::fs::mkdirat(&self.handle, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.handle, name, flags, Mode::empty())?)
    }
}

/// Opens the directory of the store: ours alone, since a tree in it can hold programs that raise privileges.
fn open(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::DirBuilderExt;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            if let Some(home) = path.parent() {
                std::fs::create_dir_all(home)?;
            }
            match std::fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => rustix::fs::open(path, flags, Mode::empty())?,
            }
        }
        outcome => outcome?,
    };
    let status = rustix::fs::fstat(&handle)?;
    if status.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else"));
    }
    if status.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(0o700))?;
    }
    Ok(handle)
}

/// Whether a tree is that of an image in layers instead of a root file system.
fn holds_layers(tree: &OwnedFd) -> bool {
    let there = |name: &str| rustix::fs::statat(tree, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    (there("oci-layout") || there("manifest.json")) && !["usr", "bin", "etc"].into_iter().any(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_changes_while_it_is_read_is_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let images = Images::open(home.path()).unwrap();
        let path = home.path().join("image.tar");
        let mut archive = tar::Builder::new(File::create(&path).unwrap());
        archive.append_dir("etc", home.path()).unwrap();
        archive.finish().unwrap();
        let file = File::open(&path).unwrap();
        let before = Key::new(&rustix::fs::fstat(&file).unwrap());
        index::settle(&rustix::fs::fstat(&file).unwrap());
        File::options().append(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(matches!(images.unpack(&path, &file, &before), Err(ImageError::Changed(_))));
        for directory in [STAGING, TREES] {
            assert_eq!(std::fs::read_dir(home.path().join("images").join(directory)).unwrap().count(), 0);
        }
        let now = Key::new(&rustix::fs::fstat(&file).unwrap());
        assert_ne!(now, before);
        // The first attempt has read it to its end.
        images.unpack(&path, &File::open(&path).unwrap(), &now).unwrap();
    }
}
