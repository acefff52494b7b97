//! A directory of the host that is written to through its handle, so that no name leads out of it.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::file_name::FileName;

/// How many temporary names are tried.
const TRIES: usize = 16;

#[derive(Debug)]
pub(crate) struct HostDirectory {
    handle: OwnedFd,
    /// For messages.
    path: PathBuf,
}

/// A file that is being written under a temporary name. It is removed if it is dropped unfinished.
#[derive(Debug)]
pub(crate) struct PartialFile {
    directory: Arc<HostDirectory>,
    temporary: String,
    file: File,
}

/// The attributes that a copy preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreservedAttributes {
    pub(crate) mode: u32,
    /// The modification time in seconds since 1970.
    pub(crate) modified: Option<i64>,
}

/// Why something could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostDirectoryError {
    /// A system call failed.
    System { path: String, what: &'static str, errno: Errno },
    /// Something exists that is not replaced.
    Occupied { path: String, what: &'static str },
}

// === impl HostDirectory ===

impl HostDirectory {
    /// Opens a directory that the user named: links in that path are followed.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { handle: rustix::fs::openat(CWD, path, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// Opens a subdirectory, and creates it if it does not exist; a link is refused. Returns whether it was created.
    pub(crate) fn open_or_create(&self, name: &FileName) -> Result<(Self, bool), HostDirectoryError> {
        let made = match rustix::fs::mkdirat(&self.handle, name.as_str(), Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(self.system(name, "cannot create the directory", errno)),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.handle, name.as_str(), flags, Mode::empty());
        let handle = opened.map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP => self.occupied(name, "a file that is not a directory"),
            errno => self.system(name, "cannot open the directory", errno),
        })?;
        Ok((Self { handle, path: self.path.join(name.as_str()) }, made))
    }

    /// Creates a file under a temporary name.
    pub(crate) fn create_file(self: &Arc<Self>) -> Result<PartialFile, HostDirectoryError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let owner_alone = Mode::RUSR | Mode::WUSR;
        let (temporary, file) =
            self.with_temporary_name(|temporary| rustix::fs::openat(&self.handle, temporary, flags, owner_alone))?;
        Ok(PartialFile { directory: Arc::clone(self), temporary, file: file.into() })
    }

    /// Creates a symbolic link, replacing a file or link of that name.
    pub(crate) fn link(
        &self,
        name: &FileName,
        target: &str,
        attributes: PreservedAttributes,
    ) -> Result<(), HostDirectoryError> {
        self.check_replaceable(name)?;
        let (temporary, ()) =
            self.with_temporary_name(|temporary| rustix::fs::symlinkat(target, &self.handle, temporary))?;
        let times = attributes.times();
        let done = rustix::fs::utimensat(&self.handle, &temporary, &times, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| rustix::fs::renameat(&self.handle, &temporary, &self.handle, name.as_str()));
        done.map_err(|errno| {
            self.remove(&temporary);
            self.system(name, "cannot create the link", errno)
        })
    }

    /// Sets the attributes of the directory itself; its mode only if this copy created it.
    pub(crate) fn set_attributes(&self, attributes: PreservedAttributes, ours: bool) -> Result<(), HostDirectoryError> {
        let set = set_attributes(&self.handle, ours.then_some(attributes.mode & 0o1777), attributes);
        let path = self.path.display().to_string();
        set.map_err(|errno| HostDirectoryError::System { path, what: "cannot set its attributes", errno })
    }

    /// Creates something under an unused temporary name.
    fn with_temporary_name<T>(
        &self,
        make: impl Fn(&str) -> Result<T, Errno>,
    ) -> Result<(String, T), HostDirectoryError> {
        let mut last = Errno::EXIST;
        for _ in 0..TRIES {
            let temporary = temporary().map_err(|errno| self.failed("no random name", errno))?;
            match make(&temporary) {
                Ok(made) => return Ok((temporary, made)),
                Err(Errno::EXIST) => last = Errno::EXIST,
                Err(errno) => return Err(self.failed("cannot write to the directory", errno)),
            }
        }
        Err(self.failed("cannot write to the directory", last))
    }

    /// Fails if the name exists and is neither a file nor a link.
    fn check_replaceable(&self, name: &FileName) -> Result<(), HostDirectoryError> {
        match rustix::fs::statat(&self.handle, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.system(name, "stat failed", errno)),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink => Ok(()),
                FileType::Directory => Err(self.occupied(name, "a directory")),
                _ => Err(self.occupied(name, "a device, a pipe or a socket")),
            },
        }
    }

    fn remove(&self, temporary: &str) {
        // A file that cannot be removed is left behind.
        let _removed = rustix::fs::unlinkat(&self.handle, temporary, AtFlags::empty());
    }

    fn occupied(&self, name: &FileName, what: &'static str) -> HostDirectoryError {
        HostDirectoryError::Occupied { path: self.path.join(name.as_str()).display().to_string(), what }
    }

    fn system(&self, name: &FileName, what: &'static str, errno: Errno) -> HostDirectoryError {
        HostDirectoryError::System { path: self.path.join(name.as_str()).display().to_string(), what, errno }
    }

    fn failed(&self, what: &'static str, errno: Errno) -> HostDirectoryError {
        HostDirectoryError::System { path: self.path.display().to_string(), what, errno }
    }
}

// === impl PartialFile ===

impl PartialFile {
    /// Another handle of the file, to write to.
    pub(crate) fn writer(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// Sets its attributes and renames it, replacing a file or link of that name.
    pub(crate) fn finish(self, name: &FileName, attributes: PreservedAttributes) -> Result<(), HostDirectoryError> {
        let (directory, handle) = (&self.directory, &self.directory.handle);
        directory.check_replaceable(name)?;
        // Set-user-ID and set-group-ID bits are cleared.
        set_attributes(&self.file, Some(attributes.mode & 0o777), attributes)
            .and_then(|()| rustix::fs::renameat(handle, &self.temporary, handle, name.as_str()))
            .map_err(|errno| directory.system(name, "cannot be finished", errno))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After the rename, nothing has the temporary name.
        self.directory.remove(&self.temporary);
    }
}

// === impl HostDirectoryError ===

impl fmt::Display for HostDirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { path, what, errno } => write!(f, "{path}: {what}: {errno}"),
            Self::Occupied { path, what } => write!(f, "{path}: {what} exists, and is not replaced"),
        }
    }
}

// === impl PreservedAttributes ===

impl PreservedAttributes {
    fn times(self) -> Timestamps {
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let modified = self.modified.map_or(omitted, |tv_sec| Timespec { tv_sec, tv_nsec: 0 });
        Timestamps { last_access: omitted, last_modification: modified }
    }
}

fn set_attributes(handle: impl AsFd, mode: Option<u32>, attributes: PreservedAttributes) -> Result<(), Errno> {
    mode.map_or(Ok(()), |mode| rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode)))?;
    rustix::fs::futimens(&handle, &attributes.times())
}

/// A random temporary name.
fn temporary() -> Result<String, Errno> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".carrel-{:016x}", u64::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests;
