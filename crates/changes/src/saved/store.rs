//! The directory of all saved changes: each is saved atomically, and leftovers of killed processes are removed.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, flock};
use rustix::io::Errno;

use super::record::InvalidChangesRecord;
use super::{ChangesRecord, FILES, RECORD, SavedChanges, SavedChangesError};
use crate::confined_tree::{ConfinedTree, names_in};
use crate::name::ChangeName;
use crate::path_error::PathError;

/// The prefix of directories that are being written or removed; names of changes never have it.
const UNFINISHED: &str = ".unfinished-";

/// The directory of all saved changes.
pub(super) struct ChangesStore {
    directory: OwnedFd,
}

/// Changes that are being written; removed on drop unless finished.
pub(super) struct UnfinishedSave<'a> {
    store: &'a ChangesStore,
    name: String,
    directory: OwnedFd,
    pub(super) files: ConfinedTree,
}

pub(super) fn open(directory: &Path, name: &ChangeName) -> Result<SavedChanges, SavedChangesError> {
    let store = ChangesStore::open(directory)?.ok_or_else(|| SavedChangesError::Unknown(name.clone()))?;
    let place = match open_directory(&store.directory, name.as_str()) {
        Ok(place) => place,
        Err(Errno::NOENT) => return Err(SavedChangesError::Unknown(name.clone())),
        Err(errno) => return Err(failed("open", name.as_str())(errno).into()),
    };
    let damaged = |what: String| SavedChangesError::Damaged { name: name.clone(), what };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file: std::fs::File = rustix::fs::openat(&place, RECORD, flags, Mode::empty())
        .map_err(|errno| damaged(format!("its record: {errno}")))?
        .into();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(PathError::at("read", RECORD.as_bytes()))?;
    let record = ChangesRecord::from_json(&bytes).map_err(|bad| match bad {
        InvalidChangesRecord::Version(version) => SavedChangesError::Version { name: name.clone(), version },
        InvalidChangesRecord::Damaged(what) => damaged(what),
    })?;
    let files = open_directory(&place, FILES).map_err(|errno| damaged(format!("its contents: {errno}")))?;
    Ok(SavedChanges { name: name.clone(), files: ConfinedTree::new(files), record })
}

pub(super) fn list(directory: &Path) -> Result<Vec<ChangeName>, SavedChangesError> {
    let Some(store) = ChangesStore::open(directory)? else { return Ok(Vec::new()) };
    let names = store.names().map_err(PathError::at("list", directory.as_os_str().as_bytes()))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

pub(super) fn remove(directory: &Path, name: &ChangeName) -> Result<(), SavedChangesError> {
    let store = ChangesStore::open(directory)?.ok_or_else(|| SavedChangesError::Unknown(name.clone()))?;
    let gone = format!("{UNFINISHED}{name}-{}", std::process::id());
    match rustix::fs::renameat(&store.directory, name.as_str(), &store.directory, &gone) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(SavedChangesError::Unknown(name.clone())),
        Err(errno) => return Err(failed("remove", name.as_str())(errno).into()),
    }
    Ok(store.delete(&gone).map_err(failed("remove", name.as_str()))?)
}

// === impl ChangesStore ===

impl ChangesStore {
    fn open(path: &Path) -> Result<Option<Self>, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(Self { directory })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(PathError::at("open", path.as_os_str().as_bytes())(errno)),
        }
    }

    /// Opens the directory, and creates it if needed.
    pub(super) fn make(path: &Path) -> Result<Self, PathError> {
        if !path.is_dir() {
            let failed = || PathError::at("make", path.as_os_str().as_bytes());
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed())?;
            // Independent of the caller's umask.
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).map_err(failed())?;
        }
        let missing = || PathError::at("open", path.as_os_str().as_bytes())(Errno::NOENT);
        Self::open(path)?.ok_or_else(missing)
    }

    pub(super) fn has(&self, name: &ChangeName) -> bool {
        rustix::fs::statat(&self.directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Starts to write. Also removes what killed processes left.
    pub(super) fn begin(&self) -> Result<UnfinishedSave<'_>, PathError> {
        let name = format!("{UNFINISHED}{}", std::process::id());
        let at = |errno| failed("make", &name)(errno);
        // While this lock is held, a new directory without a lock is not taken for a leftover.
        flock(&self.directory, FlockOperation::LockExclusive).map_err(at)?;
        self.sweep().map_err(at)?;
        let mut number = 0;
        let name = loop {
            let name = format!("{UNFINISHED}{}-{number}", std::process::id());
            match make_directory(&self.directory, &name) {
                Ok(()) => break name,
                Err(Errno::EXIST) => number += 1,
                Err(errno) => return Err(at(errno)),
            }
        };
        let directory = open_directory(&self.directory, &name).map_err(at)?;
        flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(at)?;
        flock(&self.directory, FlockOperation::Unlock).map_err(at)?;
        make_directory(&directory, FILES).map_err(at)?;
        let files = ConfinedTree::new(open_directory(&directory, FILES).map_err(at)?);
        Ok(UnfinishedSave { store: self, name, directory, files })
    }

    fn sweep(&self) -> Result<(), Errno> {
        for name in self.names()?.iter().filter(|name| name.starts_with(UNFINISHED)) {
            let left = open_directory(&self.directory, name)
                .and_then(|directory| flock(&directory, FlockOperation::NonBlockingLockExclusive));
            if left.is_ok() {
                self.delete(name)?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        // A separate open file description, to read from the beginning.
        let directory = open_directory(&self.directory, ".")?;
        let names = names_in(&directory, u64::MAX)?;
        Ok(names.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
    }

    /// Removes a directory of two levels. It is not an error if it is gone: another process may remove or rename it at
    /// the same time.
    fn delete(&self, name: &str) -> Result<(), Errno> {
        let directory = match open_directory(&self.directory, name) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        if let Ok(files) = open_directory(&directory, FILES) {
            for file in names_in(&files, u64::MAX)? {
                unlink(&files, std::ffi::OsStr::from_bytes(&file), AtFlags::empty())?;
            }
            unlink(&directory, FILES, AtFlags::REMOVEDIR)?;
        }
        unlink(&directory, RECORD, AtFlags::empty())?;
        unlink(&self.directory, name, AtFlags::REMOVEDIR)
    }
}

// === impl UnfinishedSave ===

impl UnfinishedSave<'_> {
    /// Writes the record and renames the directory.
    pub(super) fn finish(
        mut self,
        name: &ChangeName,
        record: ChangesRecord,
    ) -> Result<SavedChanges, SavedChangesError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, RECORD, flags, mode).map_err(failed("write", RECORD))?;
        rustix::fs::fchmod(&file, mode).map_err(failed("write", RECORD))?;
        let mut file = std::fs::File::from(file);
        let mut text = record.to_json().to_string();
        text.push('\n');
        file.write_all(text.as_bytes()).map_err(failed("write", RECORD))?;
        // One `syncfs` for all files.
        rustix::fs::syncfs(&self.directory).map_err(failed("write", &self.name))?;
        let store = &self.store.directory;
        match rustix::fs::renameat_with(store, &self.name, store, name.as_str(), RenameFlags::NOREPLACE) {
            Ok(()) => self.name.clear(),
            Err(Errno::EXIST) => return Err(SavedChangesError::Exists(name.clone())),
            Err(errno) => return Err(failed("write", name.as_str())(errno).into()),
        }
        rustix::fs::fsync(store).map_err(failed("write", name.as_str()))?;
        let files = open_directory(self.files.root(), ".").map_err(failed("open", FILES))?;
        Ok(SavedChanges { name: name.clone(), files: ConfinedTree::new(files), record })
    }
}

impl Drop for UnfinishedSave<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // A leftover is removed later.
            let _ = self.store.delete(&self.name);
        }
    }
}

/// Removes a name, if it exists.
fn unlink(directory: &OwnedFd, name: impl rustix::path::Arg, flags: AtFlags) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn failed<E: Into<std::io::Error>>(action: &'static str, name: &str) -> impl FnOnce(E) -> PathError {
    PathError::at(action, name.as_bytes())
}

/// Creates a private directory, independent of the caller's umask.
fn make_directory(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())
}

fn open_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}
