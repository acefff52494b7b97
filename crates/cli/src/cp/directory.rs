//! A directory of the host that is written to by its handle: whatever a name says, it stays beneath.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::file_name::FileName;

/// How often another name is tried for what is not finished.
const TRIES: usize = 16;

/// A directory of the host.
#[derive(Debug)]
pub(crate) struct HostDirectory {
    handle: OwnedFd,
    /// Where it is, for people.
    path: PathBuf,
}

/// A file that is being written. Dropped unfinished, it is gone.
#[derive(Debug)]
pub(crate) struct PartialFile {
    directory: Arc<HostDirectory>,
    temporary: String,
    file: File,
}

/// What is kept of the attributes of what is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreservedAttributes {
    pub(crate) mode: u32,
    /// When it was modified, in seconds since 1970.
    pub(crate) modified: Option<i64>,
}

/// Why something could not be put there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostDirectoryError {
    /// The system refused.
    System { path: String, what: &'static str, errno: Errno },
    /// Something is there that is not replaced.
    Occupied { path: String, what: &'static str },
}

// === impl HostDirectory ===

impl HostDirectory {
    /// A directory that its user named: links in that path are theirs.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { handle: rustix::fs::openat(CWD, path, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// A directory in it, made if it is not there; a link is none. Tells whether it was made.
    pub(crate) fn enter(&self, name: &FileName) -> Result<(Self, bool), HostDirectoryError> {
        let made = match rustix::fs::mkdirat(&self.handle, name.as_str(), Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(self.system(name, "cannot make the directory", errno)),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.handle, name.as_str(), flags, Mode::empty());
        let handle = opened.map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP => self.occupied(name, "something else than a directory"),
            errno => self.system(name, "cannot open the directory", errno),
        })?;
        Ok((Self { handle, path: self.path.join(name.as_str()) }, made))
    }

    /// Begins a file, which has no name of its own yet.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<PartialFile, HostDirectoryError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let owner_alone = Mode::RUSR | Mode::WUSR;
        let (temporary, file) =
            self.unnamed(|temporary| rustix::fs::openat(&self.handle, temporary, flags, owner_alone))?;
        Ok(PartialFile { directory: Arc::clone(self), temporary, file: file.into() })
    }

    /// Makes a symbolic link as it is, in place of a file or a link of that name.
    pub(crate) fn link(
        &self,
        name: &FileName,
        target: &str,
        kept: PreservedAttributes,
    ) -> Result<(), HostDirectoryError> {
        self.replaceable(name)?;
        let (temporary, ()) = self.unnamed(|temporary| rustix::fs::symlinkat(target, &self.handle, temporary))?;
        let times = kept.times();
        let done = rustix::fs::utimensat(&self.handle, &temporary, &times, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| rustix::fs::renameat(&self.handle, &temporary, &self.handle, name.as_str()));
        done.map_err(|errno| {
            self.forget(&temporary);
            self.system(name, "cannot make the link", errno)
        })
    }

    /// Gives the directory itself what is kept: its mode only if it is ours.
    pub(crate) fn settle(&self, kept: PreservedAttributes, ours: bool) -> Result<(), HostDirectoryError> {
        let set = settle(&self.handle, ours.then_some(kept.mode & 0o1777), kept);
        let path = self.path.display().to_string();
        set.map_err(|errno| HostDirectoryError::System { path, what: "cannot set its attributes", errno })
    }

    /// Makes something under a name that is not taken.
    fn unnamed<T>(&self, make: impl Fn(&str) -> Result<T, Errno>) -> Result<(String, T), HostDirectoryError> {
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

    /// Refuses to take the place of anything but a file or a link.
    fn replaceable(&self, name: &FileName) -> Result<(), HostDirectoryError> {
        match rustix::fs::statat(&self.handle, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.system(name, "cannot be looked at", errno)),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Symlink => Ok(()),
                FileType::Directory => Err(self.occupied(name, "a directory")),
                _ => Err(self.occupied(name, "a device, a pipe or a socket")),
            },
        }
    }

    fn forget(&self, temporary: &str) {
        // Nothing more can be done about what cannot be removed.
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
    /// Another handle of it, to write through.
    pub(crate) fn writer(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// Gives it its name and what is kept, in place of a file or a link of that name.
    pub(crate) fn finish(self, name: &FileName, kept: PreservedAttributes) -> Result<(), HostDirectoryError> {
        let (directory, handle) = (&self.directory, &self.directory.handle);
        directory.replaceable(name)?;
        // Neither the user nor the group of a file is borrowed by whoever runs it.
        settle(&self.file, Some(kept.mode & 0o777), kept)
            .and_then(|()| rustix::fs::renameat(handle, &self.temporary, handle, name.as_str()))
            .map_err(|errno| directory.system(name, "cannot be finished", errno))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Once it has its name, there is nothing under this one.
        self.directory.forget(&self.temporary);
    }
}

// === impl HostDirectoryError ===

impl fmt::Display for HostDirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { path, what, errno } => write!(f, "{path}: {what}: {errno}"),
            Self::Occupied { path, what } => write!(f, "{path}: {what} is there, and is not replaced"),
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

fn settle(handle: impl AsFd, mode: Option<u32>, kept: PreservedAttributes) -> Result<(), Errno> {
    mode.map_or(Ok(()), |mode| rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode)))?;
    rustix::fs::futimens(&handle, &kept.times())
}

/// A name that nobody else has.
fn temporary() -> Result<String, Errno> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".carrel-{:016x}", u64::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests;
