//! The root: a disk, what the image and the operator put over it, and the project.

use std::os::fd::{AsFd, OwnedFd};

use carrel_image::GuestPath;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{Gid, Uid};

use super::place::{directory, file, open_directory, open_path, parent};
use super::{ASSEMBLY, Part, Plan};
use crate::disk;
use crate::mount::{attach, attach_at, copy, nodev};
use crate::stage::{Stage, StageError};

/// The file system everything is put into: a directory of the disk, or layers below one.
pub(super) fn base(plan: &Plan<'_>) -> Result<OwnedFd, StageError> {
    let at = StageError::at(Stage::Base);
    let disk = &plan.disk.mount;
    attach(disk, CWD, ASSEMBLY).map_err(&at)?;
    let root = if plan.layers.is_empty() {
        // A copy, so that the directory is the root of a mount, and what is beside it cannot be named.
        copy(&open_directory(disk, disk::ROOT.as_ref()).map_err(&at)?).map_err(&at)?
    } else {
        let at = StageError::at(Stage::Layers);
        let mut lower = Vec::new();
        for (number, layer) in plan.layers.iter().enumerate() {
            let name = disk::lower(number);
            attach_at(layer, &open_directory(disk, name.as_ref()).map_err(&at)?).map_err(&at)?;
            lower.push(format!("{ASSEMBLY}/{name}"));
        }
        overlay(&lower.join(":"), disk::UPPER, disk::WORK).map_err(&at)?
    };
    attach(&root, CWD, &format!("{ASSEMBLY}/{}", disk::ROOT)).map_err(&at)?;
    Ok(root)
}

/// Layers, and a directory of the disk that takes what is written over them.
///
/// In a user namespace the kernel keeps its notes in attributes that the owner of a file could write, and for that
/// reason believes none that points elsewhere: nothing in the upper directory refers to what is below it. The options
/// say so too, whatever this kernel was built to do by default.
fn overlay(lower: &str, upper: &str, work: &str) -> Result<OwnedFd, Errno> {
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(overlay.as_fd(), "lowerdir", lower)?;
    fsconfig_set_string(overlay.as_fd(), "upperdir", format!("{ASSEMBLY}/{upper}"))?;
    fsconfig_set_string(overlay.as_fd(), "workdir", format!("{ASSEMBLY}/{work}"))?;
    fsconfig_set_flag(overlay.as_fd(), "userxattr")?;
    for (option, value) in [("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off")] {
        fsconfig_set_string(overlay.as_fd(), option, value)?;
    }
    fsconfig_create(overlay.as_fd())?;
    fsmount(overlay.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, nodev())
}

/// What the image and the operator put into the root.
pub(super) fn fill(plan: &Plan<'_>, root: &OwnedFd) -> Result<(), StageError> {
    let at = StageError::at;
    for made in &plan.spec.root.directories {
        if there(plan, root, &made.path) {
            continue;
        }
        let place = directory(root, made.path.as_path(), made.mode)?;
        let owner = (Uid::from_raw(made.owner), Gid::from_raw(made.owner));
        rustix::fs::chownat(&place, c"", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH)
            .map_err(at(Stage::Directory))?;
    }
    for (name, mode) in [("tmp", 0o1777), ("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("workspace", 0o755)] {
        directory(root, name.as_ref(), mode)?;
    }
    for link in &plan.spec.root.links {
        if there(plan, root, &link.path) {
            continue;
        }
        let (parent, name) = parent(root, link.path.as_path())?;
        match rustix::fs::symlinkat(&link.target, &parent, &name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(at(Stage::Link)(errno)),
        }
    }
    for part in &plan.parts {
        put(part, plan, root)?;
    }
    for made in &plan.spec.root.files {
        if !there(plan, root, &made.path) {
            file(root, made.path.as_path(), &made.content, made.mode)?;
        }
    }
    if plan.disk.mapped && plan.disk.fresh {
        file(&plan.disk.mount, disk::FILLED.as_ref(), &[], 0o600)?;
    }
    Ok(())
}

/// Whether something of the image was put in when this disk was new, and still is: what the sandbox made of it since is
/// the sandbox's.
fn there(plan: &Plan<'_>, root: &OwnedFd, path: &GuestPath) -> bool {
    !plan.disk.fresh && open_path(root, path.as_path()).is_ok()
}

fn put(part: &Part, plan: &Plan<'_>, root: &OwnedFd) -> Result<(), StageError> {
    match part {
        Part::Tree(target, shown) => {
            let place = if shown.directory {
                directory(root, target.as_path(), 0o755)?
            } else {
                file(root, target.as_path(), &[], 0o644)?
            };
            attach_at(&shown.mount, &place).map_err(StageError::at(Stage::Tree))
        }
        Part::Project(target, below) => {
            let at = StageError::at(Stage::Project);
            let lower = open_directory(&plan.disk.mount, disk::PROJECT_LOWER.as_ref()).map_err(&at)?;
            attach_at(below, &lower).map_err(&at)?;
            let lower = format!("{ASSEMBLY}/{}", disk::PROJECT_LOWER);
            let project = overlay(&lower, disk::PROJECT, disk::PROJECT_WORK).map_err(&at)?;
            attach_at(&project, &directory(root, target.as_path(), 0o755)?).map_err(&at)
        }
    }
}
