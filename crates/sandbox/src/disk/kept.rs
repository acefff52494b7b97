//! Disks that stay: a directory of the host, limited in size by a quota or by being a file system of its own, or not at
//! all.
//!
//! What is on one is stored with the ids of the sandbox, and shown with those that it has this time. Its directory is
//! for the host's root only: a program with raised privileges that a sandbox leaves there can be started by nobody
//! else.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::fsck::DiskRepair;
use super::space::FreeSpace;
use super::{image, quota};

/// The file system of its own.
const IMAGE: &str = "disk.img";
/// Beside it: whether all that was written to it is on the disk of the host.
const STATE: &str = "disk.state";
const OPEN: &[u8; 7] = b"open  \n";
const CLOSED: &[u8; 7] = b"closed\n";
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
    /// Where it is noted that an image was closed in order.
    state: Option<File>,
}

/// Why an image is checked although its superblock is clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// It is not.
    None,
    /// Nobody noted that it was closed in order.
    NotClosed,
    /// Something on it could not be used.
    Damage,
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
    /// The program that checks file systems is missing.
    #[error("the disk {} has to be checked, and e2fsck is missing: install the package e2fsprogs", .0.display())]
    NoFsck(PathBuf),
    /// The file system is damaged, and could not be repaired.
    #[error("the disk {} is damaged, and e2fsck could not repair it ({report})", path.display())]
    Unrepaired {
        /// The image.
        path: PathBuf,
        /// What `e2fsck` said.
        report: String,
    },
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

    /// Checks the file system of a disk that nobody uses and that was not closed in order, or has an error on record; with
    /// `is_damaged`, in any case. Returns what was repaired. A disk without a file system of its own has nothing to check.
    pub fn check(directory: &Path, is_damaged: bool) -> Result<Option<DiskRepair>, DiskError> {
        let locked = lock(directory)?;
        let checked = if kind(&locked) == Some(DiskKind::Image) { check(directory, is_damaged) } else { Ok(None) };
        // A process that another thread is just starting has the descriptor too, but not the lock.
        let _unlocked = rustix::fs::flock(&locked, FlockOperation::Unlock);
        checked
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
        let state = if kind == DiskKind::Image { open_state(&path.join(STATE)) } else { None };
        let mount = match kind {
            DiskKind::Quota => quota::mount(&path.join(FILES)).map_err(system("show the files"))?,
            DiskKind::Image => image::mount(&path.join(IMAGE))?,
            DiskKind::Plain => quota::mount(&path.join(TREE)).map_err(system("show the files"))?,
        };
        let image = (kind == DiskKind::Image).then(|| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&mount, ".", flags, Mode::empty()).map_err(system("open the image"))
        });
        Ok(Self { kind, directory, mount, image: image.transpose()?, state })
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

    /// Writes what is in memory of an image to the host's disk, and notes that it was closed in order. Nobody may write to it
    /// any more. For a directory of the host there is nothing to do.
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
    let suspicion = match std::fs::read(&state) {
        _ if is_damaged => Suspicion::Damage,
        Ok(state) if state != CLOSED => Suspicion::NotClosed,
        // An earlier release noted nothing.
        _ => Suspicion::None,
    };
    let repaired = image::check(&directory.join(IMAGE), suspicion)?;
    if suspicion != Suspicion::None {
        // If it cannot be noted, the next start checks again.
        let _noted = std::fs::write(&state, CLOSED);
    }
    Ok(repaired)
}

/// Whether a failed call says that a file system is damaged.
pub fn is_damage(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| [Errno::BADMSG, Errno::UCLEAN, Errno::IO, Errno::STALE].contains(&errno))
}

/// Notes that an image is in use. On a full disk it may be that nothing can be noted, and the image is used all the same.
fn open_state(path: &Path) -> Option<File> {
    let options = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
    let opened = options.open(path).and_then(|state| state.write_all_at(OPEN, 0).map(|()| state));
    opened.inspect_err(|_| drop(std::fs::remove_file(path))).ok()
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
    [IMAGE, STATE, FILES, TREE].into_iter().try_for_each(|name| crate::remove::discard(&handle, name))
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> DiskError {
    move |errno| DiskError::System(what, errno.into())
}
