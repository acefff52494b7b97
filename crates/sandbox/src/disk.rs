//! What a sandbox writes to, made outside: memory, or a disk that stays.
//!
//! Either has the same directories, which nobody inside can name: the root itself for an image without layers, or
//! what is written over layers; what is written over the project; and places for what lies below.

mod fsck;
mod image;
mod kept;
mod quota;
mod space;
mod top;

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

pub use self::fsck::DiskRepair;
pub use self::kept::{DiskError, DiskKind, KeptDisk, Quota, is_damage};
pub(crate) use self::space::binary_size;
pub use self::space::{FreeSpace, Reserve, ResumeThreshold, room_again};
use crate::host_tree::ProjectLower;
use crate::ids::IdRange;
use crate::layers::Layers;
use crate::mount;
use crate::spec::Disk;

/// The root of an image without layers; over layers, where the two become one.
pub(crate) const ROOT: &str = "root";
/// What is written over the layers of the image.
pub(crate) const UPPER: &str = "upper";
/// Where the kernel prepares that.
pub(crate) const WORK: &str = "work";
/// What is written over the project.
pub(crate) const PROJECT: &str = "project";
/// Where the kernel prepares that.
pub(crate) const PROJECT_WORK: &str = "project-work";
/// Where the project is put, to lie below.
pub(crate) const PROJECT_LOWER: &str = "project-lower";
/// Where layers have short names, for kernels that need them.
pub(crate) const NAMES: &str = "names";
/// Where read-only trees of the host are put while overlays are made of them.
pub(crate) const TREES: &str = "trees";
/// There once everything that an image brings has been put in.
pub(crate) const FILLED: &str = "filled";
/// How much shared memory a sandbox on a disk that stays has: the most that its limit of memory lets it use.
const SHARED_MEMORY: u64 = 256 << 20;

/// A disk with its directories in place.
pub(crate) struct PreparedDisk {
    /// Attached nowhere yet.
    pub(crate) mount: OwnedFd,
    /// What the project's upper layer is, open: it outlives the sandbox.
    pub(crate) changes: Option<OwnedFd>,
    /// Whether nothing has been put in yet.
    pub(crate) fresh: bool,
    /// Whether what it holds is stored with the ids of the sandbox, and has to be shown with the host's.
    pub(crate) mapped: bool,
    /// How much shared memory goes with it.
    pub(crate) shared_memory: u64,
}

/// Where layers of the image are put, to lie below.
pub(crate) fn lower(number: usize) -> String {
    format!("lower{number}")
}

/// What was written over the layers of an image, by the disk of a sandbox that is open; none if that has no layers.
pub fn upper(disk: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |name| match rustix::fs::openat(&disk, name, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    };
    // A name alone could be anybody's; all of them are a disk's.
    Ok(match (open(UPPER)?, open(WORK)?, open(ROOT)?) {
        (upper, Some(_), Some(_)) => upper,
        _ => None,
    })
}

/// Makes the disk ready to lie over layers, and for a project above what lies below it.
pub(crate) fn prepare(
    disk: &Disk,
    ids: &IdRange,
    layers: &Layers,
    project: Option<&ProjectLower>,
) -> Result<PreparedDisk, Errno> {
    // A disk that stays is stored with the sandbox's own ids, whatever range it has this time.
    let (mount, first, mapped, shared_memory) = match disk {
        Disk::Memory { bytes } => (memory(*bytes, ids.base())?, ids.base(), false, *bytes),
        Disk::Kept(kept) => (kept.mount().try_clone().map_err(|_| Errno::MFILE)?, 0, true, SHARED_MEMORY),
    };
    let make = |name: &str, owner: (u32, u32), mode| make(&mount, name, (first + owner.0, first + owner.1), mode);
    let plain = |name: &str| make(name, (0, 0), 0o755);
    match layers.top()? {
        None => plain(ROOT)?,
        Some(top) => {
            (0..layers.mounts().len()).try_for_each(|number| plain(&lower(number)))?;
            [WORK, ROOT].into_iter().try_for_each(plain)?;
            // The root of an overlay is that of what is written.
            top::make_like(&mount, UPPER, &top, first)?;
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
    Ok(PreparedDisk { mount, changes, fresh, mapped, shared_memory })
}

/// A directory of the disk, with its owner and mode; one that is there stays as it is.
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
