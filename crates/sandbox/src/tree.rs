//! Trees of the host, as mounts that are attached nowhere yet.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::asked::MountError;
use crate::ids::COUNT;
use crate::launch::LaunchError;
use crate::mount;
use crate::owner::Owners;
use crate::spec::{Access, Mount, Project};
use crate::sys;

/// A tree that waits to be attached.
pub(crate) struct Shown {
    pub(crate) mount: OwnedFd,
    pub(crate) directory: bool,
}

/// What lies below a project, and what its directory is like.
pub(crate) struct Below {
    pub(crate) mount: OwnedFd,
    pub(crate) mode: u32,
    /// Who inside stands for its owner: a user and a group.
    pub(crate) owner: (u32, u32),
}

/// A tree of an image's, to be read by everybody whom it lets.
pub(crate) fn shown(source: &Path) -> Result<Shown, MountError> {
    let failed = failed(source);
    let mount = mount::copy(&named(source).map_err(&failed)?).map_err(&failed)?;
    sys::set_mount(mount.as_fd(), sys::SHOWN, None).map_err(failed)?;
    let directory = rustix::fs::fstat(&mount).is_ok_and(|stat| is_directory(&stat));
    Ok(Shown { mount, directory })
}

/// A tree of the operator's, whose owner somebody inside stands for.
pub(crate) fn given(given: &Mount, owners: &mut Owners) -> Result<Shown, LaunchError> {
    let failed = failed(&given.source);
    let source = plain(&given.source).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    let mount = mount::copy(&source).map_err(&failed)?;
    let attributes = match given.access {
        Access::ReadOnly { .. } => sys::SHOWN,
        Access::Writable { .. } => sys::GIVEN,
    };
    let owner = (given.access.user(), given.access.group());
    match (stand_for(&mount, &stat, attributes, owner, &given.source, owners), given.access) {
        (Err(LaunchError::Mount(MountError::Ids { .. })), Access::ReadOnly { .. }) => {
            sys::set_mount(mount.as_fd(), attributes, None).map_err(&failed)?;
        }
        (outcome, _) => outcome?,
    }
    Ok(Shown { mount, directory: is_directory(&stat) })
}

/// The directory of a project, without what is mounted in it: an overlay sees one file system.
pub(crate) fn below(project: &Project, owners: &mut Owners) -> Result<Below, LaunchError> {
    let failed = failed(&project.source);
    let source = plain(&project.source).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    if !is_directory(&stat) {
        return Err(failed(Errno::NOTDIR).into());
    }
    // Another directory has taken its place since the caller opened it.
    if project.identity.is_some_and(|identity| identity != (stat.st_dev, stat.st_ino)) {
        return Err(failed(Errno::STALE).into());
    }
    below_the_root(&stat, &project.source)?;
    let mount = mount::copy_alone(&source).map_err(&failed)?;
    let owner = (project.user, project.group);
    stand_for(&mount, &stat, sys::SHOWN, owner, &project.source, owners)?;
    Ok(Below { mount, mode: stat.st_mode & 0o7777, owner })
}

/// Refuses the root of the host.
pub(crate) fn below_the_root(stat: &Stat, path: &Path) -> Result<(), MountError> {
    let root = rustix::fs::stat(c"/").map_err(failed(path))?;
    if (root.st_dev, root.st_ino) == (stat.st_dev, stat.st_ino) {
        return Err(MountError::WholeHost { path: path.display().to_string() });
    }
    Ok(())
}

/// Shows a tree so that a user and a group inside stand for its owner.
fn stand_for(
    mount: &OwnedFd,
    stat: &Stat,
    attributes: u64,
    owner: (u32, u32),
    path: &Path,
    owners: &mut Owners,
) -> Result<(), LaunchError> {
    if let Some(id) = [owner.0, owner.1].into_iter().find(|id| *id >= COUNT) {
        return Err(MountError::User { id }.into());
    }
    let namespace = owners.namespace(stat, owner).map_err(|errno| LaunchError::System("map an owner", errno.into()))?;
    Ok(sys::set_mount(mount.as_fd(), attributes, Some(namespace)).map_err(unmapped(path))?)
}

/// Why a tree cannot be shown with other ids.
pub(crate) fn unmapped(path: &Path) -> impl Fn(Errno) -> MountError {
    move |errno| match errno {
        // A file system that has no notion of it, or a mount that already shows other ids than are stored.
        Errno::INVAL | Errno::PERM => MountError::Ids { path: path.display().to_string(), source: errno.into() },
        errno => failed(path)(errno),
    }
}

/// A path of the host, open only to be named.
pub(crate) fn named(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The same for one that was found to have no links: whoever has put one in it since is not followed.
pub(crate) fn plain(path: &Path) -> Result<OwnedFd, Errno> {
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
    fn a_project_that_became_a_link_or_another_directory_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let (source, moved) = (dir.path().join("project"), dir.path().join("moved"));
        std::fs::create_dir(&source).unwrap();
        let meta = std::fs::metadata(&source).unwrap();
        let identity = Some((meta.dev(), meta.ino()));
        let target = GuestPath::new("/workspace").unwrap();
        let project = Project { source: source.clone(), target, user: 0, group: 0, identity };
        let found = || match below(&project, &mut Owners::new(100_000)) {
            Err(LaunchError::Mount(MountError::Source { source, .. })) => source.raw_os_error(),
            // Whoever is not root goes no further than this.
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
