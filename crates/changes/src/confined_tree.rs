//! Access to a directory tree by handles, without following any symlink.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::path::RelativePath;

/// An open directory, and everything below it on the same file system.
#[derive(Debug)]
pub(crate) struct ConfinedTree {
    root: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

/// The result of `stat`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileMetadata {
    pub(crate) kind: FileKind,
    /// Permissions, with set-id bits.
    pub(crate) mode: u32,
    pub(crate) size: u64,
    /// Allocated bytes.
    pub(crate) allocated: u64,
    /// Nanoseconds.
    pub(crate) modified: i64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Whether it has more than one link.
    pub(crate) shared: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// A character device 0:0: a whiteout in a layer.
    pub(crate) zero_device: bool,
}

// === impl ConfinedTree ===

impl ConfinedTree {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens a directory; the empty path is the tree itself.
    pub(crate) fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a regular file for reading, without blocking on other types.
    pub(crate) fn file(&self, path: &RelativePath) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = self.open(path.as_bytes(), flags)?;
        match FileMetadata::of(&rustix::fs::fstat(&file)?).kind {
            FileKind::File => Ok(file.into()),
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn meta(&self, path: &RelativePath) -> Result<FileMetadata, Errno> {
        meta_in(&self.directory(path.directory())?, path.name())
    }

    /// The target of a symlink.
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

// === impl FileMetadata ===

impl FileMetadata {
    pub(crate) fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => FileKind::Device,
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

    /// Permissions without set-id bits.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o777
    }
}

/// Calls `stat` for a name in an open directory.
pub(crate) fn meta_in(directory: &OwnedFd, name: &[u8]) -> Result<FileMetadata, Errno> {
    rustix::fs::statat(directory, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)
        .map(|stat| FileMetadata::of(&stat))
}

/// Whether a name in an open directory is a mount point.
pub(crate) fn is_mount_point(directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(directory, OsStr::from_bytes(name), flags, StatxFlags::empty())?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

pub(crate) fn target_in(directory: &OwnedFd, name: &[u8]) -> Result<Vec<u8>, Errno> {
    rustix::fs::readlinkat(directory, OsStr::from_bytes(name), Vec::new()).map(std::ffi::CString::into_bytes)
}

/// The sorted names in an open directory; an error if there are more than `limit`.
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
