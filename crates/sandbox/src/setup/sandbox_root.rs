//! Names in the new root: those of the image are opened one by one without following anything, those of a mount point
//! are followed inside the root, and nothing is ever made or removed in what somebody else shows there.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::mount::attach_at;
use crate::stage::{SetupStage, StageError};
use crate::submounts::mount_id;

/// The new root, and what is attached to it.
pub(crate) struct SandboxRoot {
    pub(crate) directory: OwnedFd,
    /// Its own mount: what lies in any other is not the sandbox's.
    own: u64,
    /// The others, and where they are.
    shown: Vec<(u64, PathBuf)>,
}

// === impl SandboxRoot ===

impl SandboxRoot {
    pub(crate) fn new(directory: OwnedFd) -> Result<Self, Errno> {
        let own = mount_id(&directory)?;
        Ok(Self { directory, own, shown: Vec::new() })
    }

    /// Attaches a mount at an open place, which has the given path.
    pub(crate) fn attach(&mut self, mount: &OwnedFd, place: &OwnedFd, path: &Path) -> Result<(), Errno> {
        attach_at(mount, place)?;
        self.shown.push((mount_id(mount)?, path.to_owned()));
        Ok(())
    }

    /// How many mounts were attached.
    pub(super) fn count(&self) -> usize {
        self.shown.len()
    }

    /// Whether there is something at a path, whatever it is, with links above it followed as a program inside would.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, path, PATH_NOFOLLOW, Mode::empty(), resolve).is_ok()
    }

    /// Whether there is a file without content at a path.
    pub(crate) fn has_empty_file(&self, path: &Path) -> bool {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(&self.directory, path, PATH_NOFOLLOW, Mode::empty(), resolve);
        let stat = opened.and_then(rustix::fs::fstat);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0)
    }

    /// Where something that was asked for is attached: a directory or a file. In the sandbox's own root it is made, and
    /// takes the place of a link or of a file where there should be a directory. In what is attached to the root, which
    /// may be the host's to lose, it has to be there.
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

    /// The directory that a mount point lies in, with links followed as a program inside would follow them.
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
                        // What is there all the same is a link that leads nowhere.
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

    /// Refuses to make anything in a directory that is not the sandbox's own.
    fn check_owned(&self, parent: &OwnedFd, at: impl Fn(Errno) -> StageError) -> Result<(), StageError> {
        let mount = mount_id(parent).map_err(&at)?;
        if mount == self.own {
            return Ok(());
        }
        let shown = self.shown.iter().find(|(shown, _)| *shown == mount).map(|(_, path)| path.as_path());
        Err(at(Errno::NOENT).within(shown.unwrap_or_else(|| Path::new(""))))
    }

    /// Whether a name is the sandbox's own.
    fn owns(&self, place: &OwnedFd) -> Result<bool, Errno> {
        Ok(mount_id(place)? == self.own)
    }
}

/// How often the kernel may ask to try again.
const MAX_RETRIES: usize = 1000;
/// Names something without following it.
const PATH_NOFOLLOW: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Makes a file where there is nothing.
const CREATE_NEW: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Tries again for as long as the kernel asks for it. It does where a link leads upwards while anything on this host is
/// renamed or mounted.
fn retry<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MAX_RETRIES {
        match open() {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
    open()
}

/// Opens one name without following anything.
pub(crate) fn open_path(parent: &OwnedFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(parent, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// A directory of the new root, made with its parents. An image may have put a link or a file in its place: then that
/// goes, from the layer of this sandbox only. All that is attached by then is the image's and read-only.
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

/// The directory that a path lies in, and its name there.
pub(crate) fn parent(root: &OwnedFd, path: &Path) -> Result<(OwnedFd, OsString), StageError> {
    let name = path.file_name().ok_or_else(|| StageError::about(SetupStage::Directory, path)(Errno::INVAL))?;
    let above = path.parent().unwrap_or_else(|| Path::new(""));
    Ok((directory(root, above, 0o755)?, name.to_owned()))
}

/// A file of the new root; whatever was in its place goes, from the layer of this sandbox only.
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
