//! Disks that stay: a directory of the host, limited in size by a quota or by being a file system of its own, or not at
//! all.
//!
//! What is on one is stored with the ids of the sandbox, and shown with those that it has this time. Its directory is
//! for the host's root only: a program with raised privileges that a sandbox leaves there can be started by nobody
//! else.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::space::FreeSpace;
use super::{image, quota};

/// The file system of its own.
const IMAGE: &str = "disk.img";
/// The directory with a quota.
const FILES: &str = "files";
/// The directory without one.
const TREE: &str = "tree";

/// A disk that stays. It is in use for as long as it is held, and by one.
///
/// Whoever held it before and was killed may have processes that are still ending. For an image [`open`](Self::open)
/// waits for them; for a directory of the host, the caller makes sure that the sandbox is gone.
#[derive(Debug)]
pub struct KeptDisk {
    kind: DiskKind,
    /// The directory on the host, locked.
    directory: OwnedFd,
    /// What is on it, attached nowhere.
    mount: OwnedFd,
    /// The root of an image, open: its file system is another than that of the directory.
    image: Option<OwnedFd>,
}

/// How the size of a disk is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// By a project quota of the host's file system.
    Quota,
    /// By a file system of its own in a sparse file, on a loop device that goes with its last user.
    Image,
    /// By nothing: it is a directory of the host's file system, and ends where that does.
    Plain,
}

/// How much a disk may take where a project quota holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// In bytes.
    pub bytes: u64,
    /// In inodes; none is one for each 4 KiB of them, and 1,024 more.
    pub inodes: Option<u64>,
}

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory cannot be used.
    #[error("the disk {}: {source}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is something in the directory already.
    #[error("{} is a disk already", .0.display())]
    Exists(PathBuf),
    /// There is no disk in the directory.
    #[error("{} is not a disk", .0.display())]
    Absent(PathBuf),
    /// Somebody has it.
    #[error("the disk {} is in use", .0.display())]
    InUse(PathBuf),
    /// The program that makes file systems is missing.
    #[error("mkfs.ext4 is missing: install e2fsprogs, or switch on project quotas where disks are kept")]
    NoMkfs,
    /// The program that makes file systems failed.
    #[error("mkfs.ext4: {0}")]
    Mkfs(String),
    /// This host has no loop devices.
    #[error("no loop device ({0}): load the module loop, or switch on project quotas where disks are kept")]
    NoLoop(std::io::Error),
    /// A step failed.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

// === impl KeptDisk ===

impl KeptDisk {
    /// Makes a disk of some size in a directory of the host, which is made if it is not there.
    pub fn create(directory: &Path, bytes: u64) -> Result<Self, DiskError> {
        Self::make(directory, |locked| {
            if quota::enforced(locked) {
                quota::create(locked, FILES, Quota { bytes, inodes: None })
            } else {
                image::create(&directory.join(IMAGE), bytes)
            }
        })
    }

    /// Makes a disk that has no size of its own: there is nothing to prepare, and nothing to wait for.
    pub fn create_unlimited(directory: &Path) -> Result<Self, DiskError> {
        Self::make(directory, plain)
    }

    /// Makes a disk that is held by a quota where the file system of the host has project quotas, and by nothing where
    /// it has none: either takes no time to prepare.
    pub fn create_within(directory: &Path, quota: Quota) -> Result<Self, DiskError> {
        Self::make(
            directory,
            |locked| {
                if quota::enforced(locked) { quota::create(locked, FILES, quota) } else { plain(locked) }
            },
        )
    }

    fn make(directory: &Path, fill: impl FnOnce(&OwnedFd) -> Result<(), DiskError>) -> Result<Self, DiskError> {
        let made = std::fs::DirBuilder::new().recursive(true).create(directory);
        made.and_then(|()| std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)))
            .map_err(|source| DiskError::Directory { path: directory.to_owned(), source })?;
        let locked = lock(directory)?;
        if kind(&locked).is_some() {
            return Err(DiskError::Exists(directory.to_owned()));
        }
        fill(&locked).and_then(|()| Self::attach(directory, locked)).inspect_err(|_| {
            // What was made only half is no disk.
            let _gone = empty(directory);
        })
    }

    /// Opens a disk that was made before.
    pub fn open(directory: &Path) -> Result<Self, DiskError> {
        let locked = lock(directory)?;
        Self::attach(directory, locked)
    }

    /// Whether the size of disks in a directory of the host is held by project quotas.
    pub fn has_quotas(directory: &Path) -> std::io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(quota::enforced(&rustix::fs::open(directory, flags, Mode::empty())?))
    }

    /// Removes a disk that nobody uses, with all that is on it.
    pub fn remove(directory: &Path) -> Result<(), DiskError> {
        let locked = lock(directory)?;
        if kind(&locked) == Some(DiskKind::Quota) {
            quota::lift(&locked, FILES).map_err(system("lift the quota"))?;
        }
        let failed = |source| DiskError::Directory { path: directory.to_owned(), source };
        crate::remove::empty(&locked, None).and_then(|()| std::fs::remove_dir(directory)).map_err(failed)
    }

    fn attach(path: &Path, directory: OwnedFd) -> Result<Self, DiskError> {
        let kind = kind(&directory).ok_or_else(|| DiskError::Absent(path.to_owned()))?;
        let mount = match kind {
            DiskKind::Quota => quota::mount(&path.join(FILES)).map_err(system("show the files"))?,
            DiskKind::Image => image::mount(&path.join(IMAGE))?,
            DiskKind::Plain => quota::mount(&path.join(TREE)).map_err(system("show the files"))?,
        };
        let image = (kind == DiskKind::Image).then(|| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&mount, ".", flags, Mode::empty()).map_err(system("open the image"))
        });
        Ok(Self { kind, directory, mount, image: image.transpose()? })
    }

    /// How its size is held.
    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    /// What is on it, attached nowhere.
    pub(super) fn mount(&self) -> &OwnedFd {
        &self.mount
    }

    /// What was written over the layers of an image: the upper directory of an overlay, open. None was, if it is not
    /// there. Owners are the ids inside.
    pub fn upper(&self) -> std::io::Result<Option<OwnedFd>> {
        Ok(super::upper(&self.mount)?)
    }

    /// What is free on the host's own disk, for those who are not root.
    pub fn host_free(&self) -> std::io::Result<FreeSpace> {
        Ok(FreeSpace::of(&self.directory)?)
    }

    /// Writes what is in memory of its file system to the disk of the host, and waits for that.
    pub fn sync(&self) -> std::io::Result<()> {
        // What an image holds is a file of the host, which has to be there as well.
        self.image.iter().chain([&self.directory]).try_for_each(|root| Ok(rustix::fs::syncfs(root)?))
    }
}

fn plain(locked: &OwnedFd) -> Result<(), DiskError> {
    rustix::fs::mkdirat(locked, TREE, Mode::from_raw_mode(0o755)).map_err(system("make a directory"))
}

/// Opens a directory and takes it for oneself, until the descriptor is closed. It cannot be left by `..`.
fn lock(path: &Path) -> Result<OwnedFd, DiskError> {
    let failed = |source| DiskError::Directory { path: path.to_owned(), source };
    let directory = crate::handle::handle(path).map_err(failed)?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(Errno::WOULDBLOCK) => Err(DiskError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn kind(directory: &OwnedFd) -> Option<DiskKind> {
    let there = |name: &str| rustix::fs::openat(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok();
    if there(IMAGE) {
        Some(DiskKind::Image)
    } else if there(FILES) {
        Some(DiskKind::Quota)
    } else if there(TREE) {
        Some(DiskKind::Plain)
    } else {
        None
    }
}

fn empty(directory: &Path) -> std::io::Result<()> {
    let handle = crate::handle::handle(directory)?;
    [IMAGE, FILES, TREE].into_iter().try_for_each(|name| crate::remove::discard(&handle, name))
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> DiskError {
    move |errno| DiskError::System(what, errno.into())
}
