//! Files and directories of the store.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::staging;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the store's directory, which must be private: trees in it may contain set-id programs.
pub(super) fn root(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::DirBuilderExt;
    if let Some(handle) = existing_root(path)? {
        return Ok(handle);
    }
    if let Some(home) = path.parent() {
        std::fs::create_dir_all(home)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => existing_root(path)?.ok_or_else(|| Errno::NOENT.into()),
    }
}

/// Like [`root`], but only if the directory exists.
pub(super) fn existing_root(path: &Path) -> io::Result<Option<OwnedFd>> {
    let Some(handle) = none_if_missing(rustix::fs::open(path, DIRECTORY, Mode::empty()))? else { return Ok(None) };
    let status = rustix::fs::fstat(&handle)?;
    if status.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if status.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(0o700))?;
    }
    Ok(Some(handle))
}

/// Opens a directory, and creates it if needed.
pub(super) fn directory(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Opens a directory, if it exists.
pub(super) fn existing(parent: impl AsFd, name: &str) -> io::Result<Option<OwnedFd>> {
    none_if_missing(rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()))
}

/// Opens a file for reading, if it exists.
pub(super) fn open(parent: impl AsFd, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(none_if_missing(rustix::fs::openat(parent, name, flags, Mode::empty()))?.map(File::from))
}

/// Reads a file, if it exists.
pub(super) fn read(parent: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = open(parent, name)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

pub(super) fn create(parent: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?.into())
}

/// Replaces a file atomically and syncs it.
pub(super) fn replace(parent: impl AsFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = format!("{NEW}{}", staging::random()?);
    let mut file = create(&parent, &new)?;
    let outcome = file.write_all(bytes).and_then(|()| file.sync_all());
    let outcome = outcome.and_then(|()| Ok(rustix::fs::renameat(&parent, &new, &parent, name)?));
    let outcome = outcome.and_then(|()| Ok(rustix::fs::fsync(&parent)?));
    if outcome.is_err() {
        // Report the first error.
        let _removed = unlink(&parent, &new);
    }
    outcome
}

/// The prefix of a temporary file that is about to be renamed.
const NEW: &str = "new-";

/// Removes a file, if it exists.
pub(super) fn unlink(parent: impl AsFd, name: &str) -> io::Result<()> {
    none_if_missing(rustix::fs::unlinkat(parent, name, AtFlags::empty()))?;
    Ok(())
}

/// The sorted names in a directory, without temporary files; none if it does not exist.
pub(super) fn names(parent: impl AsFd, name: &str) -> io::Result<Vec<String>> {
    let mut names = all_names(parent, name)?;
    names.retain(|name| !name.starts_with(NEW));
    Ok(names)
}

/// The same, with temporary files.
pub(super) fn all_names(parent: impl AsFd, name: &str) -> io::Result<Vec<String>> {
    let Some(directory) = existing(parent, name)? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&directory)? {
        let name = String::from_utf8_lossy(entry?.file_name().to_bytes()).into_owned();
        if !matches!(name.as_str(), "." | "..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The size of a file, if it exists.
pub(super) fn size(parent: impl AsFd, name: &str) -> io::Result<Option<u64>> {
    let status = none_if_missing(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW))?;
    Ok(status.map(|status| u64::try_from(status.st_size).unwrap_or(0)))
}

fn none_if_missing<T>(outcome: Result<T, Errno>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
