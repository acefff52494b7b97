//! Writes entries to disk. Each name is opened below a directory that is already open.

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
use super::entry::ArchiveEntry;
use super::error::{EntryRejection, shown};
use super::name::{self, ArchiveName};
use super::{ArchiveForm, MAX_MISSING, missing_weight};

/// A name leads nowhere but to its own entry.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Permissions at creation. Set-id bits are added after the content is written.
const PERMISSIONS: u32 = 0o777;
/// Bits that `chown` may clear.
const SET_ID: u32 = 0o6000;
/// Owner and mode of a directory without an entry.
const PLAIN: (u32, u32, u32) = (0, 0, 0o755);

/// The tree on disk. The directories of the last entry stay open, because the next entry is mostly beside it.
pub(super) struct ArchiveTree {
    form: ArchiveForm,
    root: OpenDirectory,
    open: Vec<OpenDirectory>,
    made: u64,
    /// Directories of a layer without an entry, and their memory cost.
    missing: BTreeSet<Vec<u8>>,
    weight: usize,
    /// Default ACLs, which are set last so that entries do not inherit them.
    handed_on: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct OpenDirectory {
    name: Vec<u8>,
    handle: OwnedFd,
    /// The modification time to set when the directory is complete; `None` for a new one.
    modified: Option<Timespec>,
}

/// Why an entry could not be written.
pub(super) enum EntryError {
    Refused(EntryRejection),
    System(Errno),
}

// === impl ArchiveTree ===

impl ArchiveTree {
    /// Starts in a directory with default attributes: an archive need not have an entry for its root.
    pub(super) fn new(directory: impl AsFd, form: ArchiveForm) -> Result<Self, Errno> {
        let handle = rustix::io::fcntl_dupfd_cloexec(directory, 3)?;
        set_owner_and_mode(&handle, PLAIN)?;
        let modified = modified(&handle)?;
        let missing = match form {
            ArchiveForm::Root => BTreeSet::new(),
            ArchiveForm::Layer => BTreeSet::from([Vec::new()]),
        };
        let root = OpenDirectory { name: Vec::new(), handle, modified: Some(modified) };
        Ok(Self { form, root, open: Vec::new(), made: 0, missing, weight: 0, handed_on: BTreeMap::new() })
    }

    /// The number of directories that were created without an entry.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Completes all directories; returns those of a layer that have no entry.
    pub(super) fn finish(mut self) -> Result<Vec<PathBuf>, EntryError> {
        self.close_directories(0)?;
        for (path, value) in std::mem::take(&mut self.handed_on) {
            if let Some(directory) = self.find(&path)? {
                rustix::fs::fsetxattr(&directory, HANDED_ON, &value, XattrFlags::empty())?;
            }
        }
        self.root.restore_mtime()?;
        Ok(self.missing.into_iter().map(|path| OsString::from_vec(path).into()).collect())
    }

    /// Creates a directory, or sets the attributes of an existing one.
    pub(super) fn directory(&mut self, entry: &ArchiveEntry) -> Result<(), EntryError> {
        let (above, own) = entry.name.split();
        self.enter(above)?;
        if !own.is_empty() {
            let level = match self.level(own, entry.mode & PERMISSIONS) {
                Err(EntryError::Refused(EntryRejection::Through)) => Err(EntryError::Refused(EntryRejection::Replaces)),
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
        set_owner_and_mode(&level.handle, (entry.owner, entry.group, entry.mode))?;
        set(&level.handle, &attributes)
    }

    /// Creates an empty file.
    pub(super) fn file(&mut self, entry: &ArchiveEntry) -> Result<File, EntryError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & PERMISSIONS);
        let make = |parent: &OwnedFd, name: &[u8]| rustix::fs::openat2(parent, name, flags, mode, RESOLVE);
        Ok(self.put(&entry.name, make)?.into())
    }

    pub(super) fn symlink(&mut self, entry: &ArchiveEntry, target: &[u8]) -> Result<(), EntryError> {
        self.put(&entry.name, |parent, name| rustix::fs::symlinkat(target, parent, name))?;
        let (_, own) = entry.name.split();
        let parent = &self.current().handle;
        chown_at(parent, own, entry)?;
        rustix::fs::utimensat(parent, own, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// Creates a FIFO.
    pub(super) fn pipe(&mut self, entry: &ArchiveEntry) -> Result<(), EntryError> {
        let mode = Mode::from_raw_mode(entry.mode & PERMISSIONS);
        self.put(&entry.name, |parent, name| rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0))?;
        let (_, own) = entry.name.split();
        let parent = &self.current().handle;
        chown_at(parent, own, entry)?;
        // Just created in a directory that nothing else writes to, so it is not a symlink.
        rustix::fs::chmodat(parent, own, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
        rustix::fs::utimensat(parent, own, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    pub(super) fn hard_link(&mut self, entry: &ArchiveEntry, target: &ArchiveName) -> Result<(), EntryError> {
        let refuse = || EntryError::Refused(EntryRejection::HardLink(shown(target.as_bytes())));
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

    /// Deletes a name of the lower layers. An entry of this layer with that name stays, and hides them anyway.
    pub(super) fn create_whiteout(&mut self, above: &[u8], gone: &[u8]) -> Result<(), EntryError> {
        self.enter(above)?;
        let parent = &self.current().handle;
        match rustix::fs::mknodat(parent, gone, FileType::CharacterDevice, Mode::empty(), 0) {
            Err(Errno::EXIST) => {}
            outcome => return Ok(outcome?),
        }
        match open(parent, gone) {
            Ok(directory) => hide_below(&directory),
            Err(Errno::NOTDIR) if is_gone(parent, gone)? => Err(EntryError::Refused(EntryRejection::Twice)),
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Deletes all that a directory has in the lower layers.
    pub(super) fn opaque(&mut self, path: &[u8]) -> Result<(), EntryError> {
        // Overlayfs ignores the attribute on the root of a layer.
        if path.is_empty() {
            return Err(EntryError::Refused(EntryRejection::OpaqueRoot));
        }
        self.enter(path)?;
        hide_below(&self.current().handle)
    }

    /// Creates an entry whose name is not taken.
    fn put<T>(
        &mut self,
        name: &ArchiveName,
        make: impl Fn(&OwnedFd, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, EntryError> {
        let (above, own) = name.split();
        self.enter(above)?;
        let parent = &self.current().handle;
        match make(parent, own) {
            Err(Errno::EXIST | Errno::LOOP) => {}
            outcome => return Ok(outcome?),
        }
        let there = rustix::fs::statat(parent, own, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(there.st_mode) {
            FileType::Directory => Err(EntryError::Refused(EntryRejection::Replaces)),
            // A whiteout of this layer came before its own entry of that name.
            FileType::CharacterDevice => {
                rustix::fs::unlinkat(parent, own, AtFlags::empty())?;
                Ok(make(parent, own)?)
            }
            _ => Err(EntryError::Refused(EntryRejection::Twice)),
        }
    }

    fn current(&self) -> &OpenDirectory {
        self.open.last().unwrap_or(&self.root)
    }

    /// Moves to a directory, and creates it if needed.
    fn enter(&mut self, path: &[u8]) -> Result<(), EntryError> {
        let common = self.common(path);
        self.close_directories(common)?;
        for part in name::parts(path).skip(common) {
            let level = self.level(part, PLAIN.2)?;
            let new = level.modified.is_none();
            if new {
                set_owner_and_mode(&level.handle, PLAIN)?;
                self.made += 1;
            }
            self.open.push(level);
            if new && self.form == ArchiveForm::Layer {
                self.record_missing_directory()?;
            }
        }
        Ok(())
    }

    /// Records that the current directory has no entry.
    fn record_missing_directory(&mut self) -> Result<(), EntryError> {
        let parts: Vec<&[u8]> = self.open.iter().map(|level| level.name.as_slice()).collect();
        let path = parts.join(&b'/');
        self.weight += missing_weight(path.len());
        self.missing.insert(path);
        if self.weight > MAX_MISSING { Err(EntryError::Refused(EntryRejection::Missing)) } else { Ok(()) }
    }

    /// How many of the open directories are prefixes of a path.
    fn common(&self, path: &[u8]) -> usize {
        self.open.iter().zip(name::parts(path)).take_while(|(level, part)| level.name == *part).count()
    }

    /// Closes all but `kept` directories.
    fn close_directories(&mut self, kept: usize) -> Result<(), Errno> {
        while self.open.len() > kept {
            if let Some(level) = self.open.pop() {
                level.restore_mtime()?;
            }
        }
        Ok(())
    }

    /// Opens a subdirectory of the current one, and creates it if needed.
    fn level(&self, part: &[u8], mode: u32) -> Result<OpenDirectory, EntryError> {
        let parent = &self.current().handle;
        let name = part.to_vec();
        let make = || {
            rustix::fs::mkdirat(parent, part, Mode::from_raw_mode(mode))?;
            open(parent, part)
        };
        match open(parent, part) {
            Ok(handle) => Ok(OpenDirectory { name, modified: Some(modified(&handle)?), handle }),
            Err(Errno::NOENT) => Ok(OpenDirectory { name, handle: make()?, modified: None }),
            // A whiteout of this layer came before its own entry of that name.
            Err(Errno::NOTDIR) if is_gone(parent, part)? => {
                rustix::fs::unlinkat(parent, part, AtFlags::empty())?;
                let handle = make()?;
                hide_below(&handle)?;
                Ok(OpenDirectory { name, handle, modified: None })
            }
            Err(Errno::LOOP | Errno::NOTDIR) => Err(EntryError::Refused(EntryRejection::Through)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens an existing directory without moving to it.
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

/// Sets owner, permissions, attributes and time of a written file, in an order in which no step undoes another.
pub(super) fn finish_file(file: &File, entry: &ArchiveEntry) -> Result<(), EntryError> {
    set_owner_and_mode(file, (entry.owner, entry.group, entry.mode))?;
    set(file, &entry.attributes)?;
    rustix::fs::futimens(file, &times(entry.modified))?;
    Ok(())
}

/// Sets owner and permissions only where they differ: each change costs a write of the file system's journal.
fn set_owner_and_mode(handle: impl AsFd, (owner, group, mode): (u32, u32, u32)) -> Result<(), Errno> {
    let now = rustix::fs::fstat(&handle)?;
    let given = (now.st_uid, now.st_gid) != (owner, group);
    if given {
        rustix::fs::fchown(&handle, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?;
    }
    // Permissions come second: `chown` clears set-id bits.
    if now.st_mode & 0o7777 != mode || (given && mode & SET_ID != 0) {
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

fn chown_at(parent: &OwnedFd, name: &[u8], entry: &ArchiveEntry) -> Result<(), Errno> {
    let (owner, group) = (Uid::from_raw(entry.owner), Gid::from_raw(entry.group));
    rustix::fs::chownat(parent, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)
}

fn set(handle: impl AsFd, attributes: &Attributes) -> Result<(), EntryError> {
    for (name, value) in attributes {
        rustix::fs::fsetxattr(&handle, name.as_c_str(), value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Makes a directory opaque.
fn hide_below(directory: &OwnedFd) -> Result<(), EntryError> {
    Ok(rustix::fs::fsetxattr(directory, c"user.overlay.opaque", b"y", XattrFlags::empty())?)
}

/// Whether a name is a whiteout. A tree has no other devices.
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

// === impl OpenDirectory ===

impl OpenDirectory {
    fn restore_mtime(&self) -> Result<(), Errno> {
        match self.modified {
            Some(modified) => rustix::fs::futimens(&self.handle, &times(modified)),
            None => Ok(()),
        }
    }
}

// === impl EntryError ===

impl From<Errno> for EntryError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}
