//! The disk of a sandbox, prepared by the parent: a tmpfs, or a persistent disk.
//!
//! Either has the same directories, which have no path in the sandbox: the root for an image without layers, or the upper
//! directory over its layers; the upper directory of the project; and mount points for lower layers.

mod fsck;
mod image;
mod persistent;
mod quota;
mod space;
mod upper_root;

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

pub use self::fsck::DiskRepair;
pub use self::persistent::{DiskError, DiskKind, DiskQuota, PersistentDisk, is_damage};
pub use self::space::{FreeSpace, FreeSpaceReserve, ResumeThreshold, resume_free_bytes};
use crate::host_tree::ProjectLower;
use crate::ids::IdRange;
use crate::layers::Layers;
use crate::mount;
use crate::spec::Disk;

/// The root of an image without layers; with layers, the mount point of their overlay.
pub(crate) const ROOT: &str = "root";
/// The upper directory over the layers of the image.
pub(crate) const UPPER: &str = "upper";
/// Its overlay work directory.
pub(crate) const WORK: &str = "work";
/// The upper directory of the project.
pub(crate) const PROJECT: &str = "project";
/// Its overlay work directory.
pub(crate) const PROJECT_WORK: &str = "project-work";
/// The mount point of the project's lower layer.
pub(crate) const PROJECT_LOWER: &str = "project-lower";
/// The mount point of short names for layers, for kernels that need them.
pub(crate) const NAMES: &str = "names";
/// The mount point of read-only host trees while their overlays are created.
pub(crate) const TREES: &str = "trees";
/// The marker that all files of the image were added.
pub(crate) const FILLED: &str = "filled";
/// The size of `/dev/shm` of a sandbox with a persistent disk; its memory limit covers it.
const SHARED_MEMORY: u64 = 256 << 20;

/// A disk with its directories.
pub(crate) struct PreparedDisk {
    /// A detached mount.
    pub(crate) mount: OwnedFd,
    /// The project's upper directory, open: it outlives the sandbox.
    pub(crate) changes: Option<OwnedFd>,
    /// Whether no files of the image were added yet.
    pub(crate) fresh: bool,
    /// Whether its files are stored with the ids of the sandbox, so that it has to be id-mapped.
    pub(crate) mapped: bool,
    /// Whether it has a file system of its own, in an image.
    pub(crate) is_image: bool,
    /// The size of `/dev/shm`.
    pub(crate) shared_memory: u64,
}

/// The mount point of a layer of the image.
pub(crate) fn lower(number: usize) -> String {
    format!("lower{number}")
}

/// The upper directory over the layers of an image, from the open disk of a sandbox; none without layers.
pub fn upper(disk: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |name| match rustix::fs::openat(&disk, name, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    };
    // One of these names could be any directory; all of them identify a disk.
    Ok(match (open(UPPER)?, open(WORK)?, open(ROOT)?) {
        (upper, Some(_), Some(_)) => upper,
        _ => None,
    })
}

/// Prepares the directories of the disk for the layers and the project.
pub(crate) fn prepare(
    disk: &Disk,
    ids: &IdRange,
    layers: &Layers,
    project: Option<&ProjectLower>,
) -> Result<PreparedDisk, Errno> {
    // A persistent disk is stored with the sandbox's own ids, whatever its current range is.
    let (mount, first, mapped, shared_memory) = match disk {
        Disk::Memory { bytes } => (memory(*bytes, ids.base())?, ids.base(), false, *bytes),
        Disk::Persistent(disk) => (disk.mount().try_clone().map_err(|_| Errno::MFILE)?, 0, true, SHARED_MEMORY),
    };
    let make = |name: &str, owner: (u32, u32), mode| make(&mount, name, (first + owner.0, first + owner.1), mode);
    let plain = |name: &str| make(name, (0, 0), 0o755);
    match layers.top()? {
        None => plain(ROOT)?,
        Some(top) => {
            (0..layers.mounts().len()).try_for_each(|number| plain(&lower(number)))?;
            [WORK, ROOT].into_iter().try_for_each(plain)?;
            // The root of an overlay has the attributes of its upper directory.
            upper_root::create_like(&mount, UPPER, &top, first)?;
        }
    }
    let mut changes = None;
    if let Some(below) = project {
        plain(PROJECT_LOWER)?;
        plain(PROJECT_WORK)?;
        make(PROJECT, below.owner, below.mode)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        changes = Some(rustix::fs::openat(&mount, PROJECT, flags, Mode::empty())?);
    }
    let filled = rustix::fs::accessat(&mount, FILLED, rustix::fs::Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW);
    let fresh = !mapped || filled.is_err();
    let is_image = matches!(disk, Disk::Persistent(disk) if disk.kind() == DiskKind::Image);
    Ok(PreparedDisk { mount, changes, fresh, mapped, is_image, shared_memory })
}

/// Creates a directory of the disk with owner and mode; an existing one is unchanged.
fn make(disk: impl AsFd, name: &str, (user, group): (u32, u32), mode: u32) -> Result<(), Errno> {
    match rustix::fs::mkdirat(&disk, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    rustix::fs::chownat(&disk, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmodat(&disk, name, Mode::from_raw_mode(mode), AtFlags::empty())
}

fn memory(bytes: u64, owner: u32) -> Result<OwnedFd, Errno> {
    let owner = owner.to_string();
    let options = [("size", bytes.to_string()), ("mode", "755".into()), ("uid", owner.clone()), ("gid", owner)];
    mount::new("tmpfs", &options.each_ref().map(|(key, value)| (*key, value.as_str())), mount::nodev())
}
