//! Persistent disks: a directory of the host whose size is limited by a quota, an image with a file system of its own, or a
//! directory without a limit.
//!
//! The files are stored with the ids inside the sandbox, and id-mapped to its current range. Only the host's root can enter
//! the directory, so no other user can start a set-user-id program that a sandbox leaves there.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::fsck::DiskRepair;
use super::space::FreeSpace;
use super::{image, quota};

/// The image with a file system.
const IMAGE: &str = "disk.img";
/// Beside the image: whether it was closed after everything written to it was fsynced.
const STATE: &str = "disk.state";
const OPEN: &[u8; 7] = b"open  \n";
const CLOSED: &[u8; 7] = b"closed\n";
/// The directory with a quota.
const FILES: &str = "files";
/// The directory without a quota.
const TREE: &str = "tree";

/// A persistent disk, locked: one process at a time has it open.
///
/// Processes of a sandbox that was killed may still be exiting. For an image [`open`](Self::open) waits for them; for a
/// directory of the host, the caller makes sure that the sandbox has exited.
#[derive(Debug)]
pub struct PersistentDisk {
    kind: DiskKind,
    /// The directory on the host, locked.
    directory: OwnedFd,
    /// A detached mount of its files.
    mount: OwnedFd,
    /// The root directory of an image, for `syncfs`: its file system is not that of the host's directory.
    image: Option<OwnedFd>,
    /// The state file of an image, which records that it was closed.
    state: Option<File>,
}

/// Why an image is checked although its superblock is clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckReason {
    /// No reason: it is not checked.
    None,
    /// The state file does not say that it was closed.
    NotClosed,
    /// A file on it could not be used.
    Damage,
}

/// How the size of a disk is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// By a project quota of the host's file system.
    Quota,
    /// By a file system of its own in a sparse file, on a loop device that is detached when its last user closes it.
    Image,
    /// Not at all: it is a directory of the host's file system.
    Plain,
}

/// The limits of a project quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskQuota {
    pub bytes: u64,
    /// In inodes; the default is one for each 4 KiB, and 1,024 more.
    pub inodes: Option<u64>,
}

/// Why an operation on a disk failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory cannot be used.
    #[error("the disk {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The directory contains a disk already.
    #[error("{} is a disk already", .0.display())]
    Exists(PathBuf),
    /// There is no disk in the directory.
    #[error("{} is not a disk", .0.display())]
    Absent(PathBuf),
    /// Another process has it open.
    #[error("the disk {} is in use", .0.display())]
    InUse(PathBuf),
    /// `mkfs.ext4` is missing.
    #[error(
        "mkfs.ext4 is missing: install the package e2fsprogs, or enable project quotas on the file system of the disks"
    )]
    NoMkfs,
    /// `mkfs.ext4` failed.
    #[error("mkfs.ext4: {0}")]
    Mkfs(String),
    /// `e2fsck` is missing.
    #[error("the disk {} has to be checked, and e2fsck is missing: install the package e2fsprogs", .0.display())]
    NoFsck(PathBuf),
    /// The file system is damaged, and could not be repaired.
    #[error("the disk {} is damaged, and e2fsck could not repair it ({report})", path.display())]
    Unrepaired {
        /// The image.
        path: PathBuf,
        /// The output of `e2fsck`.
        report: String,
    },
    /// This host has no loop devices.
    #[error("no loop device ({0}): load the module loop, or enable project quotas on the file system of the disks")]
    NoLoop(std::io::Error),
    /// A step failed.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

// === impl PersistentDisk ===

impl PersistentDisk {
    /// Creates a disk of the given size in a directory of the host, which is created if it does not exist.
    pub fn create(directory: &Path, bytes: u64) -> Result<Self, DiskError> {
        Self::create_with(directory, |locked| {
            if quota::enforced(locked) {
                quota::create(locked, FILES, DiskQuota { bytes, inodes: None })
            } else {
                image::create(&directory.join(IMAGE), bytes)
            }
        })
    }

    /// Creates a disk without a size limit, which takes no time.
    pub fn create_unlimited(directory: &Path) -> Result<Self, DiskError> {
        Self::create_with(directory, plain)
    }

    /// Creates a disk with a quota where the file system of the host enforces project quotas, and without a limit elsewhere:
    /// either takes no time.
    pub fn create_within(directory: &Path, quota: DiskQuota) -> Result<Self, DiskError> {
        Self::create_with(directory, |locked| {
            if quota::enforced(locked) { quota::create(locked, FILES, quota) } else { plain(locked) }
        })
    }

    fn create_with(directory: &Path, fill: impl FnOnce(&OwnedFd) -> Result<(), DiskError>) -> Result<Self, DiskError> {
        let created = std::fs::DirBuilder::new().recursive(true).create(directory);
        created
            .and_then(|()| std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)))
            .map_err(|source| DiskError::Directory { path: directory.to_owned(), source })?;
        let locked = lock(directory)?;
        if kind(&locked).is_some() {
            return Err(DiskError::Exists(directory.to_owned()));
        }
        fill(&locked).and_then(|()| Self::attach(directory, locked)).inspect_err(|_| {
            // An incomplete disk is removed.
            let _removed = empty(directory);
        })
    }

    /// Opens an existing disk.
    pub fn open(directory: &Path) -> Result<Self, DiskError> {
        let locked = lock(directory)?;
        Self::attach(directory, locked)
    }

    /// Whether a directory of the host has a disk: its image, or the directory of its files.
    pub fn exists(directory: &Path) -> std::io::Result<bool> {
        for name in [IMAGE, FILES, TREE] {
            if directory.join(name).try_exists()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks the file system of an unused disk that was not closed, or whose superblock records an error; with
    /// `is_damaged`, in any case. Returns what was repaired. Only images are checked.
    pub fn check(directory: &Path, is_damaged: bool) -> Result<Option<DiskRepair>, DiskError> {
        let locked = lock(directory)?;
        let checked = if kind(&locked) == Some(DiskKind::Image) { check(directory, is_damaged) } else { Ok(None) };
        // A process that another thread is just starting has inherited the descriptor, and must not keep the lock.
        let _unlocked = rustix::fs::flock(&locked, FlockOperation::Unlock);
        checked
    }

    /// Whether the size of disks in a directory of the host is limited by project quotas.
    pub fn has_quotas(directory: &Path) -> std::io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(quota::enforced(&rustix::fs::open(directory, flags, Mode::empty())?))
    }

    /// Removes an unused disk with all its files.
    pub fn remove(directory: &Path) -> Result<(), DiskError> {
        let locked = lock(directory)?;
        if kind(&locked) == Some(DiskKind::Quota) {
            quota::remove(&locked, FILES).map_err(system("remove the quota"))?;
        }
        let failed = |source| DiskError::Directory { path: directory.to_owned(), source };
        crate::remove::empty(&locked, None).and_then(|()| std::fs::remove_dir(directory)).map_err(failed)
    }

    fn attach(path: &Path, directory: OwnedFd) -> Result<Self, DiskError> {
        let kind = kind(&directory).ok_or_else(|| DiskError::Absent(path.to_owned()))?;
        let state = if kind == DiskKind::Image { open_state(&path.join(STATE)) } else { None };
        let mount = match kind {
            DiskKind::Quota => quota::mount(&path.join(FILES)).map_err(system("mount the files"))?,
            DiskKind::Image => image::mount(&path.join(IMAGE))?,
            DiskKind::Plain => quota::mount(&path.join(TREE)).map_err(system("mount the files"))?,
        };
        let image = (kind == DiskKind::Image).then(|| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&mount, ".", flags, Mode::empty()).map_err(system("open the image"))
        });
        Ok(Self { kind, directory, mount, image: image.transpose()?, state })
    }

    /// How its size is limited.
    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    /// A detached mount of its files.
    pub(super) fn mount(&self) -> &OwnedFd {
        &self.mount
    }

    /// The upper directory over the layers of an image, open; none without layers. Owners are the ids inside the sandbox.
    pub fn upper(&self) -> std::io::Result<Option<OwnedFd>> {
        Ok(super::upper(&self.mount)?)
    }

    /// The free space on the host's own disk for users other than root.
    pub fn host_free(&self) -> std::io::Result<FreeSpace> {
        Ok(FreeSpace::of(&self.directory)?)
    }

    /// Flushes its file system to the disk of the host (`syncfs`).
    pub fn sync(&self) -> std::io::Result<()> {
        // An image is a file of the host, so the host's file system is flushed as well.
        self.image.iter().chain([&self.directory]).try_for_each(|root| Ok(rustix::fs::syncfs(root)?))
    }

    /// Flushes an image to the host's disk, and records that it was closed. No process may write to it any more. Has no
    /// effect on a directory of the host.
    pub fn close(&self) -> std::io::Result<()> {
        if let (Some(image), Some(state)) = (&self.image, &self.state) {
            rustix::fs::syncfs(image)?;
            state.write_all_at(CLOSED, 0)?;
        }
        Ok(())
    }
}

/// Checks an image whose directory is locked.
fn check(directory: &Path, is_damaged: bool) -> Result<Option<DiskRepair>, DiskError> {
    let state = directory.join(STATE);
    let reason = match std::fs::read(&state) {
        _ if is_damaged => CheckReason::Damage,
        Ok(state) if state != CLOSED => CheckReason::NotClosed,
        // An earlier release had no state file.
        _ => CheckReason::None,
    };
    let repaired = image::check(&directory.join(IMAGE), reason)?;
    if reason != CheckReason::None {
        // If this fails, the next start checks again.
        let _recorded = std::fs::write(&state, CLOSED);
    }
    Ok(repaired)
}

/// Whether an error indicates a damaged file system.
pub fn is_damage(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| [Errno::BADMSG, Errno::UCLEAN, Errno::IO, Errno::STALE].contains(&errno))
}

/// Records that an image is in use. On a full disk this may fail, and the image is used all the same.
fn open_state(path: &Path) -> Option<File> {
    let options = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let opened = options.open(path).and_then(|state| state.write_all_at(OPEN, 0).map(|()| state));
    opened.inspect_err(|_| drop(std::fs::remove_file(path))).ok()
}

fn plain(locked: &OwnedFd) -> Result<(), DiskError> {
    rustix::fs::mkdirat(locked, TREE, Mode::from_raw_mode(0o755)).map_err(system("create a directory"))
}

/// Opens a directory as a handle that cannot be escaped, and locks it until the descriptor is closed.
fn lock(path: &Path) -> Result<OwnedFd, DiskError> {
    let failed = |source| DiskError::Directory { path: path.to_owned(), source };
    let directory = crate::directory_handle::open_handle(path).map_err(failed)?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(Errno::WOULDBLOCK) => Err(DiskError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn kind(directory: &OwnedFd) -> Option<DiskKind> {
    let exists =
        |name: &str| rustix::fs::openat(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok();
    if exists(IMAGE) {
        Some(DiskKind::Image)
    } else if exists(FILES) {
        Some(DiskKind::Quota)
    } else if exists(TREE) {
        Some(DiskKind::Plain)
    } else {
        None
    }
}

fn empty(directory: &Path) -> std::io::Result<()> {
    let handle = crate::directory_handle::open_handle(directory)?;
    [IMAGE, STATE, FILES, TREE].into_iter().try_for_each(|name| crate::remove::discard(&handle, name))
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> DiskError {
    move |errno| DiskError::System(what, errno.into())
}
