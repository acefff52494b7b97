//! Paths in the new root: those of the image are resolved without following links, those of mount points within the root, and
//! nothing is ever created or removed in another mount.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::mount::attach_at;
use crate::stage::{SetupStage, StageError};
use crate::submounts::mount_id;

/// The new root with its attached mounts.
pub(crate) struct SandboxRoot {
    pub(crate) directory: OwnedFd,
    /// The mount id of the root itself: the sandbox owns nothing in other mounts.
    own: u64,
    /// The attached mounts by their ids.
    shown: Vec<(u64, PathBuf)>,
}

// === impl SandboxRoot ===

impl SandboxRoot {
    pub(crate) fn new(directory: OwnedFd) -> Result<Self, Errno> {
        let own = mount_id(&directory)?;
        Ok(Self { directory, own, shown: Vec::new() })
    }

    /// Attaches a mount at an open file or directory with the given path.
    pub(crate) fn attach(&mut self, mount: &OwnedFd, place: &OwnedFd, path: &Path) -> Result<(), Errno> {
        attach_at(mount, place)?;
        self.shown.push((mount_id(mount)?, path.to_owned()));
        Ok(())
    }

    /// How many mounts were attached.
    pub(super) fn count(&self) -> usize {
        self.shown.len()
    }

    /// Whether a path exists, with links in it resolved as in the sandbox.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, path, PATH_NOFOLLOW, Mode::empty(), resolve).is_ok()
    }

    /// Whether a regular file that was written with this length lost its content: it is empty, or has only zeros. A power
    /// failure causes that on a disk that was not fsynced, and a full disk of the host in an image.
    pub(crate) fn has_lost_content(&self, path: &Path, length: usize) -> bool {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let open = |flags| rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve);
        let stat = open(PATH_NOFOLLOW).and_then(rustix::fs::fstat);
        let is_regular = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        match stat.ok().filter(is_regular).and_then(|stat| usize::try_from(stat.st_size).ok()) {
            Some(0) => length > 0,
            Some(size) if size == length => {
                let mut content = Vec::with_capacity(length);
                let file = open(OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC).map(File::from);
                let read = file.map(|file| file.take(length as u64).read_to_end(&mut content));
                matches!(read, Ok(Ok(_))) && content.iter().all(|byte| *byte == 0)
            }
            _ => false,
        }
    }

    /// The mount point of a requested mount: a directory or a file. In the sandbox's own root it is created, and replaces a
    /// link, or a file where a directory is needed. In an attached mount, which may belong to the host, it must exist.
    pub(crate) fn mount_point(&self, path: &Path, directory: bool) -> Result<OwnedFd, StageError> {
        let at = StageError::about(SetupStage::MountPoint, path);
        let name = path.file_name().ok_or_else(|| at(Errno::INVAL))?;
        let parent = self.parent_of(path)?;
        let there = match rustix::fs::openat(&parent, name, PATH_NOFOLLOW, Mode::empty()) {
            Ok(there) => Some(there),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(at(errno)),
        };
        if let Some(there) = there {
            let stat = rustix::fs::fstat(&there).map_err(&at)?;
            match (FileType::from_raw_mode(stat.st_mode), directory) {
                (FileType::Directory, true) => return Ok(there),
                (FileType::Directory, false) => return Err(at(Errno::ISDIR)),
                (FileType::Symlink, _) if !self.owns(&there).map_err(&at)? => return Err(at(Errno::LOOP)),
                (FileType::Symlink, _) => {}
                (_, false) => return Ok(there),
                (_, true) if !self.owns(&there).map_err(&at)? => return Err(at(Errno::NOTDIR)),
                (_, true) => {}
            }
            rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(&at)?;
        } else {
            self.check_owned(&parent, &at)?;
        }
        if directory {
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)).map_err(&at)?;
        } else {
            rustix::fs::openat(&parent, name, CREATE_NEW, Mode::from_raw_mode(0o644)).map_err(&at)?;
        }
        rustix::fs::openat(&parent, name, PATH_NOFOLLOW, Mode::empty()).map_err(at)
    }

    /// The parent directory of a mount point, with links resolved as in the sandbox.
    fn parent_of(&self, path: &Path) -> Result<OwnedFd, StageError> {
        let at = StageError::about(SetupStage::MountPointParent, path);
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut place = self.directory.try_clone().map_err(|_| at(Errno::MFILE))?;
        let mut walked = PathBuf::new();
        for name in path.parent().into_iter().flat_map(Path::components) {
            walked.push(name);
            place = match retry(|| rustix::fs::openat2(&self.directory, &walked, flags, Mode::empty(), resolve)) {
                Ok(place) => place,
                Err(Errno::NOENT) => {
                    self.check_owned(&place, &at)?;
                    match rustix::fs::mkdirat(&place, name.as_os_str(), Mode::from_raw_mode(0o755)) {
                        Ok(()) => {}
                        // It exists after all: it is a dangling link.
                        Err(Errno::EXIST) => return Err(at(Errno::NOENT)),
                        Err(errno) => return Err(at(errno)),
                    }
                    open_directory(&place, name.as_os_str()).map_err(&at)?
                }
                Err(errno) => return Err(at(errno)),
            };
        }
        Ok(place)
    }

    /// Fails if a directory is not in the sandbox's own mount.
    fn check_owned(&self, parent: &OwnedFd, at: impl Fn(Errno) -> StageError) -> Result<(), StageError> {
        let mount = mount_id(parent).map_err(&at)?;
        if mount == self.own {
            return Ok(());
        }
        let shown = self.shown.iter().find(|(shown, _)| *shown == mount).map(|(_, path)| path.as_path());
        Err(at(Errno::NOENT).within(shown.unwrap_or_else(|| Path::new(""))))
    }

    /// Whether a file is in the sandbox's own mount.
    fn owns(&self, place: &OwnedFd) -> Result<bool, Errno> {
        Ok(mount_id(place)? == self.own)
    }
}

/// How many times to retry on `EAGAIN`.
const MAX_RETRIES: usize = 1000;
/// Opens a path without following a final link.
const PATH_NOFOLLOW: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Creates a file that must not exist.
const CREATE_NEW: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Retries on `EAGAIN`, which `openat2` returns for `..` in a link while anything on this host is renamed or mounted.
fn retry<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MAX_RETRIES {
        match open() {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
    open()
}

/// Opens a path without following links.
pub(crate) fn open_path(parent: &OwnedFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Creates a directory of the new root with its parents. If the image has a link or a file there, it is replaced in the
/// layer of this sandbox only. All mounts that are attached by then belong to the image and are read-only.
pub(crate) fn directory(root: &OwnedFd, path: &Path, mode: u32) -> Result<OwnedFd, StageError> {
    let at = StageError::about(SetupStage::Directory, path);
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

pub(crate) fn open_directory(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

/// The parent directory of a path, and the file name.
pub(crate) fn parent(root: &OwnedFd, path: &Path) -> Result<(OwnedFd, OsString), StageError> {
    let name = path.file_name().ok_or_else(|| StageError::about(SetupStage::Directory, path)(Errno::INVAL))?;
    let above = path.parent().unwrap_or_else(|| Path::new(""));
    Ok((directory(root, above, 0o755)?, name.to_owned()))
}

/// Creates a file of the new root, replacing an existing one in the layer of this sandbox only.
pub(crate) fn file(root: &OwnedFd, path: &Path, content: &[u8], mode: u32) -> Result<OwnedFd, StageError> {
    let at = StageError::about(SetupStage::File, path);
    let (parent, name) = parent(root, path)?;
    match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(at(errno)),
    }
    let file = rustix::fs::openat(&parent, &name, CREATE_NEW, Mode::from_raw_mode(mode)).map_err(&at)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).map_err(&at)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    open_path(&parent, &name).map_err(&at)
}
