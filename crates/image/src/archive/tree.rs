//! The tree that an archive becomes. Every name is opened alone, beneath a directory that is open already.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::attributes::Attributes;
use super::entry::Entry;
use super::error::{Refusal, shown};
use super::name::{self, Name};

/// No name leads anywhere but to what has it.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A tree, with the directories open that lead to the entry of last time: the next is mostly beside it.
pub(super) struct Tree {
    root: Level,
    open: Vec<Level>,
    made: u64,
}

/// An open directory.
struct Level {
    name: Vec<u8>,
    handle: OwnedFd,
    /// What its time of modification is to be, once nothing more is put into it. A new one has none.
    modified: Option<Timespec>,
}

/// An entry that does not become part of the tree.
pub(super) enum Failure {
    Refused(Refusal),
    System(Errno),
}

// === impl Tree ===

impl Tree {
    /// A tree below a directory, which is made like every other: an archive need not have an entry for its root.
    pub(super) fn new(directory: impl AsFd) -> Result<Self, Errno> {
        let handle = rustix::io::fcntl_dupfd_cloexec(directory, 3)?;
        plain(&handle)?;
        let modified = modified(&handle)?;
        Ok(Self { root: Level { name: Vec::new(), handle, modified: Some(modified) }, open: Vec::new(), made: 0 })
    }

    /// How many directories were made for want of an entry.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Leaves all directories.
    pub(super) fn finish(mut self) -> Result<(), Errno> {
        self.leave(0)?;
        self.root.leave()
    }

    /// Makes a directory, or gives one that is there what this entry says.
    pub(super) fn directory(&mut self, entry: &Entry) -> Result<(), Failure> {
        let (above, own) = entry.name.split();
        self.enter(above)?;
        if !own.is_empty() {
            let level = match self.level(own) {
                Err(Failure::Refused(Refusal::Through)) => Err(Failure::Refused(Refusal::Replaces)),
                outcome => outcome,
            }?;
            self.open.push(level);
        }
        let level = self.open.last_mut().unwrap_or(&mut self.root);
        level.modified = Some(entry.modified);
        give(&level.handle, entry)?;
        set(&level.handle, &entry.attributes)
    }

    /// Makes an empty file.
    pub(super) fn file(&mut self, entry: &Entry) -> Result<File, Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let make = |parent: &OwnedFd, name: &[u8]| rustix::fs::openat2(parent, name, flags, mode, RESOLVE);
        Ok(self.replace(&entry.name, make)?.into())
    }

    /// Makes a symbolic link.
    pub(super) fn symlink(&mut self, entry: &Entry, target: &[u8]) -> Result<(), Failure> {
        self.replace(&entry.name, |parent, name| rustix::fs::symlinkat(target, parent, name))?;
        let (_, own) = entry.name.split();
        let parent = &self.current().handle;
        let (owner, group) = ids(entry);
        rustix::fs::chownat(parent, own, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::utimensat(parent, own, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// Gives an earlier file another name.
    pub(super) fn hard_link(&mut self, entry: &Entry, target: &Name) -> Result<(), Failure> {
        let refuse = || Failure::Refused(Refusal::HardLink(shown(target.as_bytes())));
        let (above, own) = target.split();
        let source = self.find(above)?.ok_or_else(refuse)?;
        let there = match rustix::fs::statat(&source, own, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => there,
            Err(Errno::NOENT) => return Err(refuse()),
            Err(errno) => return Err(errno.into()),
        };
        match FileType::from_raw_mode(there.st_mode) {
            FileType::RegularFile | FileType::Symlink => {}
            _ => return Err(refuse()),
        }
        self.replace(&entry.name, |parent, name| {
            match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                // It has that name already.
                Ok(same) if (same.st_dev, same.st_ino) == (there.st_dev, there.st_ino) => Ok(()),
                _ => rustix::fs::linkat(&source, own, parent, name, AtFlags::empty()),
            }
        })
    }

    /// Makes something in its directory. What had its name goes, unless it is a directory.
    fn replace<T>(&mut self, name: &Name, make: impl Fn(&OwnedFd, &[u8]) -> Result<T, Errno>) -> Result<T, Failure> {
        let (above, own) = name.split();
        self.enter(above)?;
        let parent = &self.current().handle;
        match make(parent, own) {
            Err(Errno::EXIST | Errno::LOOP) => {}
            outcome => return Ok(outcome?),
        }
        match rustix::fs::unlinkat(parent, own, AtFlags::empty()) {
            Ok(()) => Ok(make(parent, own)?),
            Err(Errno::ISDIR | Errno::PERM) => Err(Failure::Refused(Refusal::Replaces)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The directory that was entered last.
    fn current(&self) -> &Level {
        self.open.last().unwrap_or(&self.root)
    }

    /// Goes to a directory, and makes it where there is none.
    fn enter(&mut self, path: &[u8]) -> Result<(), Failure> {
        let common = self.common(path);
        self.leave(common)?;
        for part in name::parts(path).skip(common) {
            let level = self.level(part)?;
            self.made += u64::from(level.modified.is_none());
            self.open.push(level);
        }
        Ok(())
    }

    /// How many of the open directories lead to a path.
    fn common(&self, path: &[u8]) -> usize {
        self.open.iter().zip(name::parts(path)).take_while(|(level, part)| level.name == *part).count()
    }

    /// Leaves all directories but so many.
    fn leave(&mut self, kept: usize) -> Result<(), Errno> {
        while self.open.len() > kept {
            if let Some(level) = self.open.pop() {
                level.leave()?;
            }
        }
        Ok(())
    }

    /// Opens a directory of the current one, and makes it where there is none.
    fn level(&self, part: &[u8]) -> Result<Level, Failure> {
        let parent = &self.current().handle;
        let (handle, modified) = match open(parent, part) {
            Ok(handle) => {
                let modified = modified(&handle)?;
                (handle, Some(modified))
            }
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(parent, part, Mode::from_raw_mode(0o700))?;
                let handle = open(parent, part)?;
                plain(&handle)?;
                (handle, None)
            }
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(Failure::Refused(Refusal::Through)),
            Err(errno) => return Err(errno.into()),
        };
        Ok(Level { name: part.to_vec(), handle, modified })
    }

    /// Opens a directory that has to be there, without going to it.
    fn find(&self, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
        let common = self.common(path);
        let nearest = common.checked_sub(1).and_then(|last| self.open.get(last)).unwrap_or(&self.root);
        let mut found = rustix::io::fcntl_dupfd_cloexec(&nearest.handle, 3)?;
        for part in name::parts(path).skip(common) {
            found = match open(&found, part) {
                Ok(found) => found,
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            };
        }
        Ok(Some(found))
    }
}

/// Gives a file that is written its owner, permissions, attributes and time, in the order in which none undoes another.
pub(super) fn finish_file(file: &File, entry: &Entry) -> Result<(), Failure> {
    give(file, entry)?;
    set(file, &entry.attributes)?;
    rustix::fs::futimens(file, &times(entry.modified))?;
    Ok(())
}

/// What a directory is as long as no entry says otherwise.
fn plain(handle: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fchown(handle, Some(Uid::ROOT), Some(Gid::ROOT))?;
    rustix::fs::fchmod(handle, Mode::from_raw_mode(0o755))
}

fn give(handle: impl AsFd, entry: &Entry) -> Result<(), Failure> {
    let (owner, group) = ids(entry);
    // Permissions come second: a change of owner takes set-id bits away.
    rustix::fs::fchown(&handle, Some(owner), Some(group))?;
    rustix::fs::fchmod(&handle, Mode::from_raw_mode(entry.mode))?;
    Ok(())
}

fn set(handle: impl AsFd, attributes: &Attributes) -> Result<(), Failure> {
    for (name, value) in attributes {
        rustix::fs::fsetxattr(&handle, name.as_c_str(), value, XattrFlags::empty())?;
    }
    Ok(())
}

fn ids(entry: &Entry) -> (Uid, Gid) {
    (Uid::from_raw(entry.owner), Gid::from_raw(entry.group))
}

fn open(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), RESOLVE)
}

fn modified(handle: &OwnedFd) -> Result<Timespec, Errno> {
    let status = rustix::fs::fstat(handle)?;
    Ok(Timespec { tv_sec: status.st_mtime, tv_nsec: i64::try_from(status.st_mtime_nsec).unwrap_or(0) })
}

fn times(modified: Timespec) -> Timestamps {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Timestamps { last_access, last_modification: modified }
}

// === impl Level ===

impl Level {
    fn leave(&self) -> Result<(), Errno> {
        match self.modified {
            Some(modified) => rustix::fs::futimens(&self.handle, &times(modified)),
            None => Ok(()),
        }
    }
}

// === impl Failure ===

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}
