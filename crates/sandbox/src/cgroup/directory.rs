//! A directory of a hierarchy, by its handle: every file is opened relative to it.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

/// A directory with its path, which is for messages only.
#[derive(Debug)]
pub(super) struct CgroupDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

// === impl CgroupDirectory ===

impl CgroupDirectory {
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        let fd = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, for messages.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn open_child(&self, name: &str) -> Result<Self, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Self { fd, path: self.join(name) })
    }

    /// The same as a detached mount: `..` of it, and of everything opened through it, does not lead above it.
    pub(super) fn open_child_detached(&self, name: &str) -> Result<Self, Errno> {
        let fd = crate::directory_handle::open_detached(&self.fd, name)?;
        Ok(Self { fd, path: self.join(name) })
    }

    pub(super) fn make_child(&self, name: &str) -> Result<(), Errno> {
        rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755))?;
        #[cfg(test)]
        super::fake::fill(self, name);
        Ok(())
    }

    pub(super) fn remove_child(&self, name: &str) -> Result<(), Errno> {
        #[cfg(test)]
        super::fake::empty(self, name);
        rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)
    }

    /// The owner.
    pub(super) fn owner(&self) -> Result<u32, Errno> {
        Ok(rustix::fs::fstat(&self.fd)?.st_uid)
    }

    /// Lets a group of users create directories in it, of which each may remove only its own (sticky bit).
    pub(super) fn share(&self, group: u32) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&self.fd)?;
        if stat.st_gid != group {
            rustix::fs::fchown(&self.fd, None, Some(Gid::from_raw(group)))?;
        }
        if stat.st_mode & 0o7777 != 0o1775 {
            rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(0o1775))?;
        }
        Ok(())
    }

    /// Changes the owner of an entry, or of the directory itself.
    pub(super) fn chown(&self, file: &str, user: u32) -> Result<(), Errno> {
        rustix::fs::chownat(&self.fd, file, Some(Uid::from_raw(user)), None, AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(super) fn open_file(&self, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.fd, file, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    pub(super) fn read(&self, file: &str) -> Result<String, Errno> {
        let mut file = File::from(self.open_file(file, OFlags::RDONLY)?);
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::ILSEQ))?;
        Ok(text)
    }

    /// Writes a value in one call: the kernel takes each write as a whole value.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), Errno> {
        let fd = self.open_file(file, OFlags::WRONLY | OFlags::TRUNC)?;
        match rustix::io::retry_on_intr(|| rustix::io::write(&fd, value.as_bytes()))? {
            written if written == value.len() => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    pub(super) fn has(&self, file: &str) -> bool {
        rustix::fs::accessat(&self.fd, file, Access::EXISTS, AtFlags::empty()).is_ok()
    }

    /// The names of its subdirectories.
    pub(super) fn children(&self) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            if let (FileType::Directory, Ok(name)) = (entry.file_type(), entry.file_name().to_str())
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

impl AsFd for CgroupDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
