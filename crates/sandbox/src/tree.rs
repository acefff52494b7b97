//! Trees of the host, as mounts that are attached nowhere yet.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

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

/// What lies below a project, and what its directory is like on the host.
pub(crate) struct Below {
    pub(crate) mount: OwnedFd,
    pub(crate) mode: u32,
}

/// A copy of a tree of the host's mounts with all that is mounted in it, attached nowhere.
pub(crate) fn copy(path: &Path) -> Result<OwnedFd, LaunchError> {
    let failed = failed(path);
    mount::copy(&named(path).map_err(&failed)?).map_err(failed)
}

/// A tree of an image's, to be read by everybody whom it lets.
pub(crate) fn shown(source: &Path) -> Result<Shown, LaunchError> {
    let mount = copy(source)?;
    sys::set_mount(mount.as_fd(), sys::SHOWN, None).map_err(failed(source))?;
    let directory = rustix::fs::fstat(&mount).is_ok_and(|stat| is_directory(&stat));
    Ok(Shown { mount, directory })
}

/// A tree of the operator's, whose owner somebody inside stands for.
pub(crate) fn given(given: &Mount, owners: &mut Owners) -> Result<Shown, LaunchError> {
    let failed = failed(&given.source);
    let source = named(&given.source).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    let mount = mount::copy(&source).map_err(&failed)?;
    let attributes = match given.access {
        Access::ReadOnly { .. } => sys::SHOWN,
        Access::Writable { .. } => sys::GIVEN,
    };
    match (stand_for(&mount, &stat, attributes, given.access.user(), &given.source, owners), given.access) {
        (Err(LaunchError::Ids { .. }), Access::ReadOnly { .. }) => {
            sys::set_mount(mount.as_fd(), attributes, None).map_err(&failed)?;
        }
        (outcome, _) => outcome?,
    }
    Ok(Shown { mount, directory: is_directory(&stat) })
}

/// The directory of a project, without what is mounted in it: an overlay sees one file system.
pub(crate) fn below(project: &Project, owners: &mut Owners) -> Result<Below, LaunchError> {
    let failed = failed(&project.source);
    let source = named(&project.source).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    if !is_directory(&stat) {
        return Err(failed(Errno::NOTDIR));
    }
    let mount = mount::copy_alone(&source).map_err(&failed)?;
    stand_for(&mount, &stat, sys::SHOWN, project.user, &project.source, owners)?;
    Ok(Below { mount, mode: stat.st_mode & 0o7777 })
}

/// Shows a tree so that a user inside stands for its owner.
fn stand_for(
    mount: &OwnedFd,
    stat: &Stat,
    attributes: u64,
    user: u32,
    path: &Path,
    owners: &mut Owners,
) -> Result<(), LaunchError> {
    if user >= COUNT {
        return Err(LaunchError::User { user });
    }
    let namespace = owners.namespace(stat, user).map_err(|errno| LaunchError::System("map an owner", errno.into()))?;
    sys::set_mount(mount.as_fd(), attributes, Some(namespace)).map_err(|errno| match errno {
        // A file system that has no notion of it, or a mount that already shows other ids than are stored.
        Errno::INVAL | Errno::PERM => LaunchError::Ids { path: path.display().to_string(), source: errno.into() },
        errno => failed(path)(errno),
    })
}

fn named(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(crate) fn failed(path: &Path) -> impl Fn(Errno) -> LaunchError {
    move |errno| LaunchError::Tree { path: path.display().to_string(), source: errno.into() }
}
