//! Copies and moves directory trees with modes, times, links and, if permitted, owners.

use std::path::{Path, PathBuf};

use carrel_protocol::payload::TreeMatch;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::walk::{TreeWalk, WalkEntry};
use super::{TreeOperation, TreeStep};
use crate::files::{CopyFile, FsError, RemoveTree, join};
use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// Small entries per step.
const ENTRIES: usize = 64;

/// A copy in progress.
pub(super) struct CopyTree {
    to: String,
    overwrite: bool,
    walk: Option<TreeWalk>,
    /// The file being copied, and its final attributes.
    file: Option<(CopyFile, String, Stat)>,
    /// Directories whose times are set when their content is complete.
    directories: Vec<(String, Stat)>,
    count: u64,
}

/// A move in progress: a rename, or a copy and a removal if a rename is not possible.
pub(super) enum MoveTree {
    Renamed,
    Copying(Box<CopyTree>, String),
    Removing(RemoveTree),
}

fn failed(errno: Errno) -> FsError {
    FsError::new("copy", errno)
}

// === impl CopyTree ===

impl CopyTree {
    pub(super) fn start(from: &str, to: &str, overwrite: bool) -> Result<Self, FsError> {
        let stat = rustix::fs::statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let mut copy = Self { to: to.to_owned(), overwrite, walk: None, file: None, directories: Vec::new(), count: 0 };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if inside(from, to) {
                    return Err(FsError::other("copy", "a directory cannot be copied into itself"));
                }
                copy.walk = Some(TreeWalk::new(from, true).map_err(failed)?);
                copy.directory(to.to_owned(), stat)?;
            }
            FileType::RegularFile => {
                copy.remove_destination(to)?;
                copy.file = Some((CopyFile::start(from, to)?, to.to_owned(), stat));
            }
            FileType::Symlink => {
                copy.remove_destination(to)?;
                let target = rustix::fs::readlink(from, Vec::new()).map_err(failed)?;
                rustix::fs::symlink(target.as_c_str(), to).map_err(failed)?;
                copy.count += 1;
            }
            _ => return Err(failed(Errno::INVAL)),
        }
        Ok(copy)
    }

    fn entry(&mut self, visited: &WalkEntry) -> Result<(), FsError> {
        let to = join(&self.to, &visited.path);
        match visited.kind {
            FileType::Directory => self.directory(to, visited.stat),
            FileType::RegularFile => {
                self.remove_destination(&to)?;
                let source = visited.open().map_err(failed)?;
                self.file = Some((CopyFile::from_open(source, &to)?, to, visited.stat));
                Ok(())
            }
            FileType::Symlink => {
                self.remove_destination(&to)?;
                rustix::fs::symlink(visited.link().map_err(failed)?.as_c_str(), &to).map_err(failed)?;
                self.count += 1;
                Ok(())
            }
            // Sockets, FIFOs and devices are skipped.
            _ => Ok(()),
        }
    }

    fn directory(&mut self, to: String, stat: Stat) -> Result<(), FsError> {
        // Writable while its content is copied; its final mode is set with its times.
        match rustix::fs::mkdir(&to, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) if self.overwrite && Path::new(&to).is_dir() => {}
            Err(errno) => return Err(failed(errno)),
        }
        self.directories.push((to, stat));
        self.count += 1;
        Ok(())
    }

    /// Removes an existing destination file, if overwriting was requested.
    fn remove_destination(&self, to: &str) -> Result<(), FsError> {
        match rustix::fs::statat(CWD, to, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
            Ok(_) if self.overwrite => rustix::fs::unlink(to).map_err(failed),
            Ok(_) => Err(failed(Errno::EXIST)),
        }
    }

    fn advance(&mut self) -> Result<bool, FsError> {
        if let Some((file, to, stat)) = &mut self.file {
            if file.step().map_err(failed)? {
                adopt(to, stat);
                self.file = None;
                self.count += 1;
            }
            return Ok(false);
        }
        if let Some(walk) = &mut self.walk {
            if let Some(visited) = walk.next().map_err(failed)? {
                return self.entry(&visited).map(|()| false);
            }
            self.walk = None;
        }
        while let Some((directory, stat)) = self.directories.pop() {
            adopt(&directory, &stat);
        }
        Ok(true)
    }

    /// Copies for one step; `Ok(true)` at the end.
    fn piece(&mut self) -> Result<bool, FsError> {
        for _ in 0..ENTRIES {
            let large = self.file.is_some();
            if self.advance()? {
                return Ok(true);
            }
            if large && self.file.is_some() {
                break;
            }
        }
        Ok(false)
    }
}

impl TreeOperation for CopyTree {
    fn step(&mut self, _: &mut SessionIo, _: SessionKey, _: &mut Vec<TreeMatch>) -> Result<TreeStep, FsError> {
        Ok(if self.piece()? { TreeStep::Done } else { TreeStep::More })
    }

    fn count(&self) -> u64 {
        self.count
    }
}

/// Sets owner, mode and times of a copy, as far as permitted.
fn adopt(path: &str, stat: &Stat) {
    // By descriptor: the file may have been replaced by a link meanwhile.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(copy) = rustix::fs::open(path, flags, Mode::empty()) else { return };
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _kept = rustix::fs::fchown(&copy, Some(owner.0), Some(owner.1));
    let _kept = rustix::fs::fchmod(&copy, Mode::from_raw_mode(stat.st_mode & 0o7777));
    let time = |tv_sec, nanos| Timespec { tv_sec, tv_nsec: i64::try_from(nanos).unwrap_or(0) };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    let _kept = rustix::fs::futimens(&copy, &times);
}

/// Whether `to` is inside the directory `from`.
fn inside(from: &str, to: &str) -> bool {
    let parent = |path: &str| std::path::absolute(path).ok()?.parent().map(Path::to_path_buf);
    let within = |path: PathBuf| Some(std::fs::canonicalize(path).ok()?.starts_with(std::fs::canonicalize(from).ok()?));
    parent(to).and_then(within).unwrap_or(false)
}

// === impl MoveTree ===

impl MoveTree {
    pub(super) fn start(from: &str, to: &str, overwrite: bool) -> Result<Self, FsError> {
        let flags = if overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(CWD, from, CWD, to, flags) {
            Ok(()) => Ok(Self::Renamed),
            // Another file system, or one without RENAME_NOREPLACE.
            Err(Errno::XDEV) => {
                CopyTree::start(from, to, overwrite).map(|copy| Self::Copying(Box::new(copy), from.to_owned()))
            }
            Err(errno) => Err(FsError::new("move", errno)),
        }
    }
}

impl TreeOperation for MoveTree {
    fn step(&mut self, _: &mut SessionIo, _: SessionKey, _: &mut Vec<TreeMatch>) -> Result<TreeStep, FsError> {
        match self {
            Self::Renamed => Ok(TreeStep::Done),
            Self::Copying(copy, from) => {
                if copy.piece()? {
                    // The original is removed only when the copy is complete.
                    match rustix::fs::unlink(from.as_str()) {
                        Ok(()) => *self = Self::Renamed,
                        Err(Errno::ISDIR) => *self = Self::Removing(RemoveTree::start(from)?),
                        Err(errno) => return Err(FsError::new("move", errno)),
                    }
                }
                Ok(TreeStep::More)
            }
            Self::Removing(remove) => Ok(if remove.step().map_err(|errno| FsError::new("move", errno))? {
                TreeStep::Done
            } else {
                TreeStep::More
            }),
        }
    }

    fn count(&self) -> u64 {
        1
    }
}
