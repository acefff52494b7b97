//! Trees of the host as detached mounts.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::ids::COUNT;
use crate::launch::LaunchError;
use crate::mount;
use crate::owner_namespaces::OwnerNamespaces;
use crate::request_error::MountError;
use crate::spec::{HostMount, HostMountAccess, HostOwner, ProjectMount};
use crate::{submounts, sys};

/// A tree of the host, ready to be attached.
pub(crate) struct HostTree {
    pub(crate) mount: OwnedFd,
    pub(crate) directory: bool,
    pub(crate) writable: bool,
    /// Whether it becomes the lower layer of an overlay, which isolates its sockets, FIFOs and locks from the host.
    pub(crate) passive: bool,
    /// The mounts below it, parents first.
    pub(crate) below: Vec<(PathBuf, HostTree)>,
}

/// The lower layer of a project, and the attributes of its directory.
pub(crate) struct ProjectLower {
    pub(crate) mount: OwnedFd,
    pub(crate) mode: u32,
    /// The user and the group in the sandbox that map to its owner.
    pub(crate) owner: (u32, u32),
}

/// A read-only tree of the image.
pub(crate) fn image_tree(source: &Path) -> Result<HostTree, MountError> {
    let failed = failed(source);
    let mount = mount::copy(&open_path(source).map_err(&failed)?).map_err(&failed)?;
    sys::set_mount(mount.as_fd(), sys::READ_ONLY_ATTRIBUTES, None).map_err(failed)?;
    let directory = rustix::fs::fstat(&mount).is_ok_and(|stat| is_directory(&stat));
    Ok(HostTree { mount, directory, writable: false, passive: false, below: Vec::new() })
}

/// A requested tree, with its owner mapped to a user in the sandbox.
pub(crate) fn requested_tree(given: &HostMount, owners: &mut OwnerNamespaces) -> Result<HostTree, LaunchError> {
    let failed = failed(&given.source);
    let source = open_no_symlinks(&given.source).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    let host = given.owner.unwrap_or(HostOwner { user: stat.st_uid, group: stat.st_gid });
    if let HostMountAccess::Writable { user, group } = given.access {
        let mount = mount::copy(&source).map_err(&failed)?;
        map_owner(&mount, host, sys::WRITABLE_ATTRIBUTES, (user, group), &given.source, owners)?;
        return Ok(HostTree {
            mount,
            directory: is_directory(&stat),
            writable: true,
            passive: false,
            below: Vec::new(),
        });
    }
    if let Some(kind) = special_kind(&stat) {
        return Err(MountError::SpecialFile { path: given.source.display().to_string(), kind }.into());
    }
    let mut read = |place: &OwnedFd, path: &Path| read_only(place, path, host, given.access, owners);
    let mut shown = read(&source, &given.source)?;
    if shown.directory {
        for submount in submounts::below(&source, &given.source).map_err(&failed)? {
            let stat = rustix::fs::fstat(&submount.place).map_err(&failed)?;
            // Special files inside the directory's own mount are covered by its overlay.
            if special_kind(&stat).is_none() {
                let path = given.source.join(&submount.path);
                shown.below.push((submount.path, read(&submount.place, &path)?));
            }
        }
    }
    Ok(shown)
}

/// One read-only mount of a tree, without the mounts below it.
fn read_only(
    place: &OwnedFd,
    path: &Path,
    host: HostOwner,
    access: HostMountAccess,
    owners: &mut OwnerNamespaces,
) -> Result<HostTree, LaunchError> {
    let failed = failed(path);
    let directory = is_directory(&rustix::fs::fstat(place).map_err(&failed)?);
    let mount = mount::copy_without_submounts(place).map_err(&failed)?;
    match map_owner(&mount, host, sys::READ_ONLY_ATTRIBUTES, (access.user(), access.group()), path, owners) {
        Err(LaunchError::Mount(MountError::Ids { .. })) => {
            sys::set_mount(mount.as_fd(), sys::READ_ONLY_ATTRIBUTES, None).map_err(&failed)?;
        }
        outcome => outcome?,
    }
    // A regular file connects to nothing, and the layers of an overlay are directories.
    Ok(HostTree { mount, directory, writable: false, passive: directory, below: Vec::new() })
}

/// The kind of a file through which processes communicate.
fn special_kind(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Some("a socket"),
        FileType::Fifo => Some("a FIFO"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        _ => None,
    }
}

/// The directory of a project, without the mounts below it: an overlay layer is one file system.
pub(crate) fn project_lower(project: &ProjectMount, owners: &mut OwnerNamespaces) -> Result<ProjectLower, LaunchError> {
    let failed = failed(&project.source);
    let source = open_no_symlinks(&project.source).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    if !is_directory(&stat) {
        return Err(failed(Errno::NOTDIR).into());
    }
    // Another directory replaced it since the caller opened it.
    if project.identity.is_some_and(|identity| identity != (stat.st_dev, stat.st_ino)) {
        return Err(failed(Errno::STALE).into());
    }
    refuse_host_root(&stat, &project.source)?;
    let mount = mount::copy_without_submounts(&source).map_err(&failed)?;
    let owner = (project.user, project.group);
    let host = HostOwner { user: stat.st_uid, group: stat.st_gid };
    map_owner(&mount, host, sys::READ_ONLY_ATTRIBUTES, owner, &project.source, owners)?;
    Ok(ProjectLower { mount, mode: stat.st_mode & 0o7777, owner })
}

/// Refuses the root of the host.
pub(crate) fn refuse_host_root(stat: &Stat, path: &Path) -> Result<(), MountError> {
    let root = rustix::fs::stat(c"/").map_err(failed(path))?;
    if (root.st_dev, root.st_ino) == (stat.st_dev, stat.st_ino) {
        return Err(MountError::WholeHost { path: path.display().to_string() });
    }
    Ok(())
}

/// Maps the host owner of a tree to a user and a group in the sandbox.
fn map_owner(
    mount: &OwnedFd,
    host: HostOwner,
    attributes: u64,
    owner: (u32, u32),
    path: &Path,
    owners: &mut OwnerNamespaces,
) -> Result<(), LaunchError> {
    if let Some(id) = [owner.0, owner.1].into_iter().find(|id| *id >= COUNT) {
        return Err(MountError::UnknownId { id }.into());
    }
    let namespace = owners.namespace(host, owner).map_err(|errno| LaunchError::System("map an owner", errno.into()))?;
    Ok(sys::set_mount(mount.as_fd(), attributes, Some(namespace)).map_err(idmap_error(path))?)
}

/// The error of an id-mapped mount.
pub(crate) fn idmap_error(path: &Path) -> impl Fn(Errno) -> MountError {
    move |errno| match errno {
        // The file system does not support it, or the mount is already id-mapped.
        Errno::INVAL | Errno::PERM => MountError::Ids { path: path.display().to_string(), source: errno.into() },
        errno => failed(path)(errno),
    }
}

/// Opens a path of the host with `O_PATH`.
pub(crate) fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The same for a path without symbolic links: fails if one was put there meanwhile.
pub(crate) fn open_no_symlinks(path: &Path) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(rustix::fs::CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(crate) fn failed(path: &Path) -> impl Fn(Errno) -> MountError {
    move |errno| MountError::Source { path: path.display().to_string(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use carrel_image::GuestPath;

    use super::*;

    #[test]
    fn a_project_that_became_a_link_or_another_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (source, moved) = (dir.path().join("project"), dir.path().join("moved"));
        std::fs::create_dir(&source).unwrap();
        let meta = std::fs::metadata(&source).unwrap();
        let identity = Some((meta.dev(), meta.ino()));
        let target = GuestPath::new("/workspace").unwrap();
        let project = ProjectMount { source: source.clone(), target, user: 0, group: 0, identity };
        let found = || match project_lower(&project, &mut OwnerNamespaces::new(100_000)) {
            Err(LaunchError::Mount(MountError::Source { source, .. })) => source.raw_os_error(),
            // Without root, the test ends here.
            Ok(_) | Err(_) => None,
        };
        assert_eq!(found(), None);
        std::fs::rename(&source, &moved).unwrap();
        symlink(&moved, &source).unwrap();
        assert_eq!(found(), Some(Errno::LOOP.raw_os_error()));
        std::fs::remove_file(&source).unwrap();
        std::fs::create_dir(&source).unwrap();
        assert_eq!(found(), Some(Errno::STALE.raw_os_error()));
    }
}
