//! A directory that nothing leaves: every path in it is opened by handle, and no link is ever followed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::path::RelativePath;

/// A directory, open, and all that is below it on the same file system.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

/// What is known of a file without opening it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) kind: Kind,
    /// Permissions, with the bits that raise privileges.
    pub(crate) mode: u32,
    pub(crate) size: u64,
    /// Bytes that are really there.
    pub(crate) allocated: u64,
    /// Nanoseconds.
    pub(crate) modified: i64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// It has more than one name.
    pub(crate) shared: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// A device with the numbers 0 and 0: in a layer, the mark of something deleted.
    pub(crate) zero_device: bool,
}

// === impl Tree ===

impl Tree {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens a directory; the empty path is the tree's own.
    pub(crate) fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a regular file for reading. Whatever else is there is not waited for.
    pub(crate) fn file(&self, path: &RelativePath) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = self.open(path.as_bytes(), flags)?;
        match Meta::of(&rustix::fs::fstat(&file)?).kind {
            Kind::File => Ok(file.into()),
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn meta(&self, path: &RelativePath) -> Result<Meta, Errno> {
        meta_in(&self.directory(path.directory())?, path.name())
    }

    /// What a link points to.
    pub(crate) fn target(&self, path: &RelativePath) -> Result<Vec<u8>, Errno> {
        target_in(&self.directory(path.directory())?, path.name())
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::CLOEXEC;
        rustix::io::retry_on_intr(|| {
            rustix::fs::openat2(&self.root, OsStr::from_bytes(path), flags, Mode::empty(), resolve)
        })
    }
}

// === impl Meta ===

impl Meta {
    pub(crate) fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Kind::Device,
        };
        let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            modified: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
            device: stat.st_dev,
            inode: stat.st_ino,
            shared: stat.st_nlink > 1,
            uid: stat.st_uid,
            gid: stat.st_gid,
            zero_device: FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0,
        }
    }

    /// Permissions, without the bits that raise privileges.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o777
    }
}

/// What is known of a name in an open directory.
pub(crate) fn meta_in(directory: &OwnedFd, name: &[u8]) -> Result<Meta, Errno> {
    rustix::fs::statat(directory, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW).map(|stat| Meta::of(&stat))
}

/// Whether something is mounted on a name in an open directory.
pub(crate) fn is_mount_point(directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(directory, OsStr::from_bytes(name), flags, StatxFlags::empty())?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

pub(crate) fn target_in(directory: &OwnedFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    rustix::fs::readlinkat(directory, OsStr::from_bytes(name), Vec::new()).map(std::ffi::CString::into_bytes)
}

/// The names in an open directory, in order, but never more than a limit: then it is the directory that is too large.
pub(crate) fn names_in(directory: &impl AsFd, limit: u64) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            if u64::try_from(names.len()).is_ok_and(|count| count >= limit) {
                return Err(Errno::FBIG);
            }
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}
