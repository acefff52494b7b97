//! Names in the new root, each opened alone and without following anything.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::stage::{Stage, StageError};

/// Opens one name without following anything.
pub(super) fn open_path(parent: &OwnedFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// A directory of the new root, made with its parents. An image may have put a link or a file in its place: then that
/// goes, from the layer of this sandbox only.
pub(super) fn directory(root: &OwnedFd, path: &Path, mode: u32) -> Result<OwnedFd, StageError> {
    let at = StageError::at(Stage::Directory);
    let mut place = root.try_clone().map_err(|_| at(Errno::MFILE))?;
    let last = path.components().count();
    for (number, part) in path.components().enumerate() {
        let name = part.as_os_str();
        let mode = Mode::from_raw_mode(if number + 1 == last { mode } else { 0o755 });
        place = match rustix::fs::mkdirat(&place, name, mode) {
            Ok(()) => open_path(&place, name).map_err(&at)?,
            Err(Errno::EXIST) => match open_directory(&place, name) {
                Ok(there) => there,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    rustix::fs::unlinkat(&place, name, AtFlags::empty()).map_err(&at)?;
                    rustix::fs::mkdirat(&place, name, mode).map_err(&at)?;
                    open_path(&place, name).map_err(&at)?
                }
                Err(errno) => return Err(at(errno)),
            },
            Err(errno) => return Err(at(errno)),
        };
    }
    Ok(place)
}

pub(super) fn open_directory(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

/// The directory that a path lies in, and its name there.
pub(super) fn parent(root: &OwnedFd, path: &Path) -> Result<(OwnedFd, OsString), StageError> {
    let name = path.file_name().ok_or_else(|| StageError::at(Stage::Directory)(Errno::INVAL))?;
    let above = path.parent().unwrap_or_else(|| Path::new(""));
    Ok((directory(root, above, 0o755)?, name.to_owned()))
}

/// A file of the new root; whatever was in its place goes, from the layer of this sandbox only.
pub(super) fn file(root: &OwnedFd, path: &Path, content: &[u8], mode: u32) -> Result<OwnedFd, StageError> {
    let at = StageError::at(Stage::File);
    let (parent, name) = parent(root, path)?;
    match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(at(errno)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&parent, &name, flags, Mode::from_raw_mode(mode)).map_err(&at)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).map_err(&at)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    open_path(&parent, &name).map_err(&at)
}
