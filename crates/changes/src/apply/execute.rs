//! Executes the plan: each file is written to a temporary name and renamed.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::ApplyError;
use super::check::ApplyStep;
use super::credentials::OwnerCredentials;
use crate::cancellation::NEVER;
use crate::confined_tree::{FileKind, FileMetadata, names_in};
use crate::content::{self, ContentDigest};
use crate::file_state::{FileContent, FileState};
use crate::path::RelativePath;
use crate::path_error::PathError;
use crate::project::Project;
use crate::saved::SavedChanges;

/// The permissions that an owner needs to write in a directory.
const WRITABLE: u32 = 0o300;

/// A temporary name in the same directory.
struct TemporaryName<'a> {
    place: &'a ApplyTarget<'a>,
    name: String,
    flags: AtFlags,
}

/// A path in the project: an open directory and a name in it.
struct ApplyTarget<'a> {
    project: &'a Project,
    path: &'a RelativePath,
    credentials: OwnerCredentials,
    directory: OwnedFd,
    /// The permissions to restore on the directory.
    closed: Option<u32>,
}

/// Executes all steps: first creations, parents before children; then deletions, the deepest first; last what replaces
/// a directory. An error states how far it got.
pub(super) fn act(kept: &SavedChanges, project: &Project, steps: &[ApplyStep<'_>]) -> Result<(), ApplyError> {
    let credentials = OwnerCredentials::of(project.owner());
    credentials.run(|| act_with(kept, project, steps, credentials))
}

fn act_with(
    kept: &SavedChanges,
    project: &Project,
    steps: &[ApplyStep<'_>],
    credentials: OwnerCredentials,
) -> Result<(), ApplyError> {
    let goes = |step: &&ApplyStep<'_>| step.entry.after == FileState::Absent;
    let after_directory =
        |step: &&ApplyStep<'_>| step.there == Some(FileKind::Directory) && !step.entry.after.is_directory();
    let first = steps.iter().filter(|step| !goes(step) && !after_directory(step));
    let last = steps.iter().filter(|step| !goes(step) && after_directory(step));
    let ordered = first.chain(steps.iter().rev().filter(goes)).chain(last);
    let halfway = |done| {
        move |source: ApplyError| match done {
            0 => source,
            _ => ApplyError::Halfway { done, steps: steps.len(), source: Box::new(source) },
        }
    };
    for (done, step) in ordered.enumerate() {
        put(kept, project, step, credentials).map_err(halfway(done))?;
    }
    rustix::fs::syncfs(project.tree().root())
        .map_err(|errno| halfway(steps.len())(PathError::at("write", b"")(errno).into()))
}

fn put(
    kept: &SavedChanges,
    project: &Project,
    step: &ApplyStep<'_>,
    credentials: OwnerCredentials,
) -> Result<(), ApplyError> {
    let place = ApplyTarget::open(project, &step.entry.path, credentials)?;
    match &step.entry.after {
        FileState::Absent => place.clear(step.there)?,
        FileState::File { mode, .. } | FileState::Directory { mode } if step.mode_only => {
            place.set_mode(*mode, step)?
        }
        FileState::Directory { mode } => {
            place.clear(step.there)?;
            place.make_directory(*mode)?;
        }
        after => {
            if step.there == Some(FileKind::Directory) {
                place.clear(step.there)?;
            }
            match after {
                FileState::File { mode, size, content: FileContent::Sha256(digest) } => {
                    place.write(kept, *mode, *size, digest)?;
                }
                FileState::Symlink { target } => place.link(target)?,
                // Other kinds are not saved.
                _ => {}
            }
        }
    }
    Ok(())
}

// === impl ApplyTarget ===

impl<'a> ApplyTarget<'a> {
    fn open(project: &'a Project, path: &'a RelativePath, credentials: OwnerCredentials) -> Result<Self, PathError> {
        let failed = |action| PathError::at(action, path.directory());
        let directory = project.tree().directory(path.directory()).map_err(failed("open"))?;
        let meta = FileMetadata::of(&rustix::fs::fstat(&directory).map_err(failed("look at"))?);
        if credentials.is_root() && meta.uid != project.owner().0 {
            return Err(failed("write in")(Errno::PERM));
        }
        // In a sandbox root can write in any directory; outside, its owner makes it writable first.
        let closed = (credentials.opens(meta.uid) && meta.mode & WRITABLE != WRITABLE).then_some(meta.mode);
        if let Some(mode) = closed {
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode | WRITABLE)).map_err(failed("change"))?;
        }
        Ok(Self { project, path, credentials, directory, closed })
    }

    fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.path.name())
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(Errno) -> PathError {
        PathError::at(action, self.path.as_bytes())
    }

    /// Deletes what is there.
    fn clear(&self, there: Option<FileKind>) -> Result<(), PathError> {
        let flags = match there {
            None => return Ok(()),
            Some(FileKind::Directory) => AtFlags::REMOVEDIR,
            Some(_) => AtFlags::empty(),
        };
        let remove = || rustix::fs::unlinkat(&self.directory, self.name(), flags);
        self.credentials.as_owner(remove).map_err(self.failed("delete"))
    }

    /// Changes permissions. Set-id bits are dropped, except those that a directory already has.
    fn set_mode(&self, mode: u32, step: &ApplyStep<'_>) -> Result<(), PathError> {
        let file: OwnedFd = match self.project.tree().directory(self.path.as_bytes()) {
            Err(Errno::NOTDIR) => self.project.tree().file(self.path).map_err(self.failed("open"))?.into(),
            directory => directory.map_err(self.failed("open"))?,
        };
        let now = FileMetadata::of(&rustix::fs::fstat(&file).map_err(self.failed("look at"))?);
        // It may have been replaced since it was compared.
        let shared = now.shared && now.kind != FileKind::Directory;
        if shared || step.identity != Some((now.device, now.inode)) {
            return Err(self.failed("change")(Errno::STALE));
        }
        if self.credentials.is_root() && now.uid != self.project.owner().0 {
            return Err(self.failed("change")(Errno::PERM));
        }
        let kept = if now.kind == FileKind::Directory { now.mode & 0o7000 } else { 0 };
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode | kept)).map_err(self.failed("change"))
    }

    fn make_directory(&self, mode: u32) -> Result<(), PathError> {
        let temporary =
            self.create_temporary(AtFlags::REMOVEDIR, |name| rustix::fs::mkdirat(&self.directory, name, Mode::RWXU))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.directory, &temporary.name, flags, Mode::empty());
        let made = made.map_err(self.failed("make"))?;
        // Another process may have replaced the directory.
        let meta = FileMetadata::of(&rustix::fs::fstat(&made).map_err(self.failed("look at"))?);
        let foreign = self.credentials.is_root() && meta.uid != self.project.owner().0;
        if foreign || !names_in(&made, 1).is_ok_and(|names| names.is_empty()) {
            return Err(self.failed("make")(Errno::STALE));
        }
        self.hand_over(&made, mode)?;
        temporary.rename(self.name()).map_err(self.failed("make"))
    }

    fn link(&self, target: &[u8]) -> Result<(), PathError> {
        let temporary = self.create_temporary(AtFlags::empty(), |name| {
            rustix::fs::symlinkat(OsStr::from_bytes(target), &self.directory, name)
        })?;
        // The owner is set by handle already; by name it could be another file by now.
        if !self.credentials.is_root() {
            let (uid, gid) = self.credentials.owner();
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&self.directory, &temporary.name, Some(uid), Some(gid), flags)
                .map_err(self.failed("make"))?;
        }
        temporary.rename(self.name()).map_err(self.failed("make"))
    }

    fn write(&self, kept: &SavedChanges, mode: u32, size: u64, digest: &ContentDigest) -> Result<(), ApplyError> {
        let from = kept.content(digest, size)?;
        let mut file = None;
        let temporary = self.create_temporary(AtFlags::empty(), |name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            file = Some(rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?);
            Ok(())
        })?;
        let file: std::fs::File = file.ok_or_else(|| self.failed("write")(Errno::BADF))?.into();
        if content::copy(&from, &file, size, &NEVER).map_err(self.failed("write"))? != Some(*digest) {
            return Err(kept.damaged(format!("the content does not match its digest {digest}")).into());
        }
        let file = OwnedFd::from(file);
        self.hand_over(&file, mode)?;
        rustix::fs::fsync(&file).map_err(self.failed("write"))?;
        Ok(temporary.rename(self.name()).map_err(self.failed("write"))?)
    }

    /// Creates a temporary file with the owner's rights, under an unpredictable name.
    fn create_temporary(
        &self,
        flags: AtFlags,
        mut make: impl FnMut(&str) -> Result<(), Errno>,
    ) -> Result<TemporaryName<'_>, PathError> {
        loop {
            let name = format!(".carrel-{:016x}", random().map_err(self.failed("write"))?);
            match self.credentials.as_owner(|| make(&name)) {
                Ok(()) => return Ok(TemporaryName { place: self, name, flags }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed("write")(errno)),
            }
        }
    }

    /// Gives it to the owner of the project. Permissions come last: `chown` may clear some.
    fn hand_over(&self, made: &OwnedFd, mode: u32) -> Result<(), PathError> {
        let (uid, gid) = self.credentials.owner();
        rustix::fs::fchown(made, Some(uid), Some(gid)).map_err(self.failed("give away"))?;
        rustix::fs::fchmod(made, Mode::from_raw_mode(mode)).map_err(self.failed("change"))
    }
}

impl Drop for ApplyTarget<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.closed {
            // The others were set by the same handle.
            let _ = rustix::fs::fchmod(&self.directory, Mode::from_raw_mode(mode));
        }
    }
}

fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Errno::IO),
    }
}

// === impl TemporaryName ===

impl TemporaryName<'_> {
    /// Renames it into place.
    fn rename(mut self, name: &OsStr) -> Result<(), Errno> {
        let directory = &self.place.directory;
        self.place.credentials.as_owner(|| rustix::fs::renameat(directory, &self.name, directory, name))?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for TemporaryName<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let remove = || rustix::fs::unlinkat(&self.place.directory, &self.name, self.flags);
            // The first error is the one that is reported.
            let _ = self.place.credentials.as_owner(remove);
        }
    }
}
