//! Assembles the root: the disk, then the files of the image, then the requested mounts.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use carrel_image::GuestPath;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::overlay::{UpperDirectories, overlay};
use super::sandbox_root::{SandboxRoot, directory, file, open_directory, parent};
use super::{ASSEMBLY, LaunchPlan, RequestedMount, host_tree};
use crate::disk;
use crate::gvisor::BundleMount;
use crate::layers::LayerLocation;
use crate::mount::{attach, attach_at, copy};
use crate::stage::{SetupStage, StageError};

/// Mounts the base of the root: a directory of the disk, or an overlay of the layers with one.
pub(super) fn mount_base(plan: &LaunchPlan<'_>) -> Result<SandboxRoot, StageError> {
    let at = StageError::at(SetupStage::Base);
    let disk = &plan.disk.mount;
    attach(disk, CWD, ASSEMBLY).map_err(&at)?;
    let root = if plan.layers.is_empty() {
        // A copy, so that the directory is the root of a mount and its siblings cannot be named.
        copy(&open_directory(disk, disk::ROOT.as_ref()).map_err(&at)?).map_err(&at)?
    } else {
        let at = StageError::at(SetupStage::Layers);
        for (number, mount) in plan.layers.mounts().enumerate() {
            let place = open_directory(disk, disk::lower(number).as_ref()).map_err(&at)?;
            attach_at(mount, &place).map_err(&at)?;
        }
        let lower: Result<Vec<_>, _> = plan.layers.locations().iter().map(lower).collect();
        overlay(&lower.map_err(&at)?, UpperDirectories { upper: disk::UPPER, work: disk::WORK }).map_err(&at)?
    };
    attach(&root, CWD, &format!("{ASSEMBLY}/{}", disk::ROOT)).map_err(&at)?;
    SandboxRoot::new(root).map_err(&at)
}

/// The path of a layer while the root is assembled.
fn lower(place: &LayerLocation) -> Result<String, Errno> {
    let mount = format!("{ASSEMBLY}/{}", disk::lower(place.mount));
    match place.path.to_str() {
        Some("") => Ok(mount),
        Some(below) => Ok(format!("{mount}/{below}")),
        None => Err(Errno::ILSEQ),
    }
}

/// Adds the files of the image. No requested mount is attached yet, so everything that is created and replaced here belongs to
/// the sandbox.
pub(super) fn populate(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<(), StageError> {
    for made in &plan.spec.root.directories {
        if is_populated(plan, root, &made.path) {
            continue;
        }
        let place = directory(&root.directory, made.path.as_path(), made.mode)?;
        let owner = (Uid::from_raw(made.owner), Gid::from_raw(made.owner));
        rustix::fs::chownat(&place, c"", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH)
            .map_err(StageError::about(SetupStage::Directory, made.path.as_path()))?;
    }
    for (name, mode) in [("tmp", 0o1777), ("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("workspace", 0o755)] {
        directory(&root.directory, name.as_ref(), mode)?;
    }
    for link in &plan.spec.root.links {
        if is_populated(plan, root, &link.path) {
            continue;
        }
        let (parent, name) = parent(&root.directory, link.path.as_path())?;
        match rustix::fs::symlinkat(&link.target, &parent, &name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(StageError::about(SetupStage::Link, link.path.as_path())(errno)),
        }
    }
    for (target, shown) in &plan.trees {
        let target = target.as_path();
        let place = if shown.directory {
            directory(&root.directory, target, 0o755)?
        } else {
            file(&root.directory, target, &[], 0o644)?
        };
        host_tree::attach(shown, root, &place, target)?;
    }
    for made in &plan.spec.root.files {
        if root.has_lost_content(made.path.as_path(), made.content.len()) || !is_populated(plan, root, &made.path) {
            file(&root.directory, made.path.as_path(), &made.content, made.mode)?;
        }
    }
    if plan.disk.is_image && plan.disk.fresh {
        // Otherwise the host may have no space for these files when the kernel writes them.
        let at = StageError::at(SetupStage::Sync);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let disk = rustix::fs::openat(&plan.disk.mount, ".", flags, Mode::empty()).map_err(&at)?;
        rustix::fs::syncfs(disk).map_err(at)?;
    }
    let brought = &plan.spec.root;
    let nothing = brought.directories.is_empty() && brought.links.is_empty() && brought.files.is_empty();
    if plan.disk.mapped && plan.disk.fresh && !nothing {
        file(&plan.disk.mount, disk::FILLED.as_ref(), &[], 0o600)?;
    }
    Ok(())
}

/// Whether a path of the image was added when the disk was new, and still exists: the sandbox may have changed it since, and
/// so links on its path.
fn is_populated(plan: &LaunchPlan<'_>, root: &SandboxRoot, path: &GuestPath) -> bool {
    !plan.disk.fresh && root.has(path.as_path())
}

/// Attaches the requested mounts, parents first. Returns the paths of host trees, without links.
pub(super) fn attach_requested(plan: &LaunchPlan<'_>, root: &mut SandboxRoot) -> Result<Vec<BundleMount>, StageError> {
    let mut trees = Vec::new();
    for part in &plan.requested_mounts {
        let target = part.target().as_path();
        match part {
            RequestedMount::Tree(_, shown) => {
                let place = root.mount_point(target, shown.directory)?;
                if plan.runtime.is_some() {
                    let path = name(&place).map_err(StageError::about(SetupStage::Tree, target))?;
                    trees.push(BundleMount { path, writable: shown.writable });
                }
                host_tree::attach(shown, root, &place, target)?;
            }
            RequestedMount::Project(_, below) => {
                let at = StageError::about(SetupStage::Project, target);
                let lower = open_directory(&plan.disk.mount, disk::PROJECT_LOWER.as_ref()).map_err(&at)?;
                attach_at(below, &lower).map_err(&at)?;
                let lower = format!("{ASSEMBLY}/{}", disk::PROJECT_LOWER);
                let written = UpperDirectories { upper: disk::PROJECT, work: disk::PROJECT_WORK };
                let project = overlay(&[lower], written).map_err(&at)?;
                let place = root.mount_point(target, true)?;
                root.attach(&project, &place, target).map_err(&at)?;
            }
        }
    }
    Ok(trees)
}

/// The path of an open file relative to the new root.
fn name(place: &OwnedFd) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    let path = rustix::fs::readlinkat(CWD, link, Vec::new())?;
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    let root = format!("{ASSEMBLY}/{}", disk::ROOT);
    path.strip_prefix(root).map(Path::to_owned).map_err(|_| Errno::XDEV)
}
