//! The tree that an archive becomes. Every name is opened alone, beneath a directory that is open already.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::attributes::{Attributes, HANDED_ON};
use super::entry::Entry;
use super::error::{Refusal, shown};
use super::name::{self, Name};
use super::{Form, MOST_MISSING, missing_weight};

/// No name leads anywhere but to what has it.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The permissions that something is made with. What raises privileges comes last, when it is written.
const PERMISSIONS: u32 = 0o777;
/// What a change of owner can take away.
const SET_ID: u32 = 0o6000;
/// What a directory is as long as no entry says otherwise.
const PLAIN: (u32, u32, u32) = (0, 0, 0o755);

/// A tree, with the directories open that lead to the entry of last time: the next is mostly beside it.
pub(super) struct Tree {
    form: Form,
    root: Level,
    open: Vec<Level>,
    made: u64,
    /// The directories of a layer that have no entry, and what it takes to remember them.
    missing: BTreeSet<Vec<u8>>,
    weight: usize,
    /// What directories hand on to whatever is made in them: it is theirs when nothing more is.
    handed_on: BTreeMap<Vec<u8>, Vec<u8>>,
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
    pub(super) fn new(directory: impl AsFd, form: Form) -> Result<Self, Errno> {
        let handle = rustix::io::fcntl_dupfd_cloexec(directory, 3)?;
        give(&handle, PLAIN)?;
        let modified = modified(&handle)?;
        let missing = match form {
            Form::Root => BTreeSet::new(),
            Form::Layer => BTreeSet::from([Vec::new()]),
        };
        let root = Level { name: Vec::new(), handle, modified: Some(modified) };
        Ok(Self { form, root, open: Vec::new(), made: 0, missing, weight: 0, handed_on: BTreeMap::new() })
    }

    /// How many directories were made for want of an entry.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Leaves all directories, and says which of a layer have no entry.
    pub(super) fn finish(mut self) -> Result<Vec<PathBuf>, Failure> {
        self.leave(0)?;
        for (path, value) in std::mem::take(&mut self.handed_on) {
            if let Some(directory) = self.find(&path)? {
                rustix::fs::fsetxattr(&directory, HANDED_ON, &value, XattrFlags::empty())?;
            }
        }
        self.root.leave()?;
        Ok(self.missing.into_iter().map(|path| OsString::from_vec(path).into()).collect())
    }

    /// Makes a directory, or gives one that is there what this entry says.
    pub(super) fn directory(&mut self, entry: &Entry) -> Result<(), Failure> {
        let (above, own) = entry.name.split();
        self.enter(above)?;
        if !own.is_empty() {
            let level = match self.level(own, entry.mode & PERMISSIONS) {
                Err(Failure::Refused(Refusal::Through)) => Err(Failure::Refused(Refusal::Replaces)),
                outcome => outcome,
            }?;
            self.open.push(level);
        }
        let path = entry.name.as_bytes();
        if self.missing.remove(path) {
            self.weight = self.weight.saturating_sub(missing_weight(path.len()));
        }
        let mut attributes = entry.attributes.clone();
        match attributes.remove(HANDED_ON) {
            Some(value) => self.handed_on.insert(path.to_vec(), value),
            None => self.handed_on.remove(path),
        };
        let level = self.open.last_mut().unwrap_or(&mut self.root);
        level.modified = Some(entry.modified);
        give(&level.handle, (entry.owner, entry.group, entry.mode))?;
        set(&level.handle, &attributes)
    }

    /// Makes an empty file.
    pub(super) fn file(&mut self, entry: &Entry) -> Result<File, Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & PERMISSIONS);
        let make = |parent: &OwnedFd, name: &[u8]| rustix::fs::openat2(parent, name, flags, mode, RESOLVE);
        Ok(self.put(&entry.name, make)?.into())
    }

    /// Makes a symbolic link.
    pub(super) fn symlink(&mut self, entry: &Entry, target: &[u8]) -> Result<(), Failure> {
        self.put(&entry.name, |parent, name| rustix::fs::symlinkat(target, parent, name))?;
        let (_, own) = entry.name.split();
        let parent = &self.current().handle;
        chown_at(parent, own, entry)?;
        rustix::fs::utimensat(parent, own, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// Makes a pipe.
    pub(super) fn pipe(&mut self, entry: &Entry) -> Result<(), Failure> {
        let mode = Mode::from_raw_mode(entry.mode & PERMISSIONS);
        self.put(&entry.name, |parent, name| rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0))?;
        let (_, own) = entry.name.split();
        let parent = &self.current().handle;
        chown_at(parent, own, entry)?;
        // It was made a moment ago where nobody else is: it is no link.
        rustix::fs::chmodat(parent, own, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
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
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {}
            _ => return Err(refuse()),
        }
        self.put(&entry.name, |parent, name| rustix::fs::linkat(&source, own, parent, name, AtFlags::empty()))
    }

    /// Takes a name away from the layers below. What this layer has by that name stays, and hides them.
    pub(super) fn gone(&mut self, above: &[u8], gone: &[u8]) -> Result<(), Failure> {
        self.enter(above)?;
        let parent = &self.current().handle;
        match rustix::fs::mknodat(parent, gone, FileType::CharacterDevice, Mode::empty(), 0) {
            Err(Errno::EXIST) => {}
            outcome => return Ok(outcome?),
        }
        match open(parent, gone) {
            Ok(directory) => hide_below(&directory),
            Err(Errno::NOTDIR) if is_gone(parent, gone)? => Err(Failure::Refused(Refusal::Twice)),
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes all away that a directory has in the layers below.
    pub(super) fn opaque(&mut self, path: &[u8]) -> Result<(), Failure> {
        // An overlay does not look for it in the roots of its layers.
        if path.is_empty() {
            return Err(Failure::Refused(Refusal::OpaqueRoot));
        }
        self.enter(path)?;
        hide_below(&self.current().handle)
    }

    /// Makes something in its directory, where nothing has its name.
    fn put<T>(&mut self, name: &Name, make: impl Fn(&OwnedFd, &[u8]) -> Result<T, Errno>) -> Result<T, Failure> {
        let (above, own) = name.split();
        self.enter(above)?;
        let parent = &self.current().handle;
        match make(parent, own) {
            Err(Errno::EXIST | Errno::LOOP) => {}
            outcome => return Ok(outcome?),
        }
        let there = rustix::fs::statat(parent, own, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(there.st_mode) {
            FileType::Directory => Err(Failure::Refused(Refusal::Replaces)),
            // This layer has taken the name away from those below before it uses it itself.
            FileType::CharacterDevice => {
                rustix::fs::unlinkat(parent, own, AtFlags::empty())?;
                Ok(make(parent, own)?)
            }
            _ => Err(Failure::Refused(Refusal::Twice)),
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
            let level = self.level(part, PLAIN.2)?;
            let new = level.modified.is_none();
            if new {
                give(&level.handle, PLAIN)?;
                self.made += 1;
            }
            self.open.push(level);
            if new && self.form == Form::Layer {
                self.miss()?;
            }
        }
        Ok(())
    }

    /// Notes that the current directory has no entry.
    fn miss(&mut self) -> Result<(), Failure> {
        let parts: Vec<&[u8]> = self.open.iter().map(|level| level.name.as_slice()).collect();
        let path = parts.join(&b'/');
        self.weight += missing_weight(path.len());
        self.missing.insert(path);
        if self.weight > MOST_MISSING { Err(Failure::Refused(Refusal::Missing)) } else { Ok(()) }
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
    fn level(&self, part: &[u8], mode: u32) -> Result<Level, Failure> {
        let parent = &self.current().handle;
        let name = part.to_vec();
        let make = || {
            rustix::fs::mkdirat(parent, part, Mode::from_raw_mode(mode))?;
            open(parent, part)
        };
        match open(parent, part) {
            Ok(handle) => Ok(Level { name, modified: Some(modified(&handle)?), handle }),
            Err(Errno::NOENT) => Ok(Level { name, handle: make()?, modified: None }),
            // This layer has taken the name away from those below before it uses it itself.
            Err(Errno::NOTDIR) if is_gone(parent, part)? => {
                rustix::fs::unlinkat(parent, part, AtFlags::empty())?;
                let handle = make()?;
                hide_below(&handle)?;
                Ok(Level { name, handle, modified: None })
            }
            Err(Errno::LOOP | Errno::NOTDIR) => Err(Failure::Refused(Refusal::Through)),
            Err(errno) => Err(errno.into()),
        }
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
    give(file, (entry.owner, entry.group, entry.mode))?;
    set(file, &entry.attributes)?;
    rustix::fs::futimens(file, &times(entry.modified))?;
    Ok(())
}

/// Gives a file its owner and permissions, where it was not made with them: each change is one for the file system to
/// keep.
fn give(handle: impl AsFd, (owner, group, mode): (u32, u32, u32)) -> Result<(), Errno> {
    let now = rustix::fs::fstat(&handle)?;
    let given = (now.st_uid, now.st_gid) != (owner, group);
    if given {
        rustix::fs::fchown(&handle, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?;
    }
    // Permissions come second: a change of owner takes set-id bits away.
    if now.st_mode & 0o7777 != mode || (given && mode & SET_ID != 0) {
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

fn chown_at(parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Errno> {
    let (owner, group) = (Uid::from_raw(entry.owner), Gid::from_raw(entry.group));
    rustix::fs::chownat(parent, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)
}

fn set(handle: impl AsFd, attributes: &Attributes) -> Result<(), Failure> {
    for (name, value) in attributes {
        rustix::fs::fsetxattr(&handle, name.as_c_str(), value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Hides what a directory has in the layers below.
fn hide_below(directory: &OwnedFd) -> Result<(), Failure> {
    Ok(rustix::fs::fsetxattr(directory, c"user.overlay.opaque", b"y", XattrFlags::empty())?)
}

/// Whether a name is one that this layer takes away. There are no other devices in a tree.
fn is_gone(parent: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
    let status = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice)
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
