//! Attaches trees of the host; read-only ones become the lower layer of an overlay.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Gid, Uid};

use super::ASSEMBLY;
use super::overlay::read_only;
use super::sandbox_root::SandboxRoot;
use crate::host_tree::HostTree;
use crate::mount::{attach as attach_by_path, nodev};
use crate::stage::{SetupStage, StageError};
use crate::{disk, mount};

/// The mount point of a tree while its overlay is created.
const LOWER: &str = "lower";
/// The mode of a directory that is not visible yet.
const PRIVATE_MODE: Mode = Mode::RWXU;

/// Attaches a tree at an open directory or file with the given path, and then the mounts below it.
pub(super) fn attach(shown: &HostTree, root: &mut SandboxRoot, place: &OwnedFd, path: &Path) -> Result<(), StageError> {
    let at = StageError::about(SetupStage::Tree, path);
    let overlay = shown.passive.then(|| passive(&shown.mount, root.count())).transpose();
    let overlay = overlay.map_err(StageError::about(SetupStage::ReadOnlyOverlay, path))?;
    let top = overlay.as_ref().unwrap_or(&shown.mount);
    root.attach(top, place, path).map_err(&at)?;
    for (relative, below) in &shown.below {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(top, relative, flags, Mode::empty(), resolve) {
            Ok(place) => attach(below, root, &place, &path.join(relative))?,
            // Its mount point is gone, or inside an excluded mount.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(at(errno)),
        }
    }
    Ok(())
}

/// Creates an overlay over a tree, so that the sandbox cannot communicate with the host through it. The number is unique.
fn passive(tree: &OwnedFd, number: usize) -> Result<OwnedFd, Errno> {
    let directory = format!("{ASSEMBLY}/{}", disk::TREES);
    let (empty, lower) = (format!("{directory}/{number}"), format!("{directory}/{LOWER}"));
    // On a persistent disk, the directory may exist from an earlier start, but it is empty.
    match rustix::fs::statat(CWD, &lower, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => {}
        Err(Errno::NOENT) => assembly(&directory)?,
        Err(errno) => return Err(errno),
    }
    rustix::fs::mkdirat(CWD, &empty, PRIVATE_MODE)?;
    // The root of an overlay has the attributes of its uppermost layer: they are set to those of the tree.
    let stat = rustix::fs::fstat(tree)?;
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(CWD, &empty, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmodat(CWD, &empty, Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())?;
    attach_by_path(tree, CWD, &lower)?;
    let overlay = read_only(&empty, &lower);
    // The overlay holds its own reference.
    rustix::mount::unmount(&lower, UnmountFlags::DETACH)?;
    overlay
}

/// A tmpfs for empty directories and a tree, so that nothing of it is left on a persistent disk.
fn assembly(directory: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(CWD, directory, PRIVATE_MODE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let memory = mount::new("tmpfs", &[("mode", "700")], nodev())?;
    rustix::fs::mkdirat(&memory, LOWER, PRIVATE_MODE)?;
    attach_by_path(&memory, CWD, directory)
}
