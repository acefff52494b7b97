//! The target file of a backup, in a directory that may belong to another user.
//!
//! The directory is opened once, and every later step names a file relative to that handle. So its owner can spoil the
//! backup, but cannot make root write elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::sqlite::{directory_of, with_suffix};

/// A file name in an open directory.
#[derive(Debug)]
pub(super) struct BackupTarget {
    directory: File,
    name: OsString,
}

/// The staging copy that SQLite writes: SQLite resolves paths and creates journals beside its files, so no other user
/// may rename anything in its directory.
#[derive(Debug)]
pub(super) struct StagedCopy {
    pub(super) path: PathBuf,
    /// Whether it is beside the target, and becomes it by a rename.
    is_beside: bool,
    /// Prevents two concurrent backups of a store from using the same name; the kernel releases the lock when its
    /// holder dies.
    _lock: Option<File>,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

// === impl BackupTarget ===

impl BackupTarget {
    pub(super) fn open(file: &Path) -> io::Result<Self> {
        let name = file.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let directory = rustix::fs::open(directory_of(file), DIRECTORY, Mode::empty())?;
        Ok(Self { directory: directory.into(), name })
    }

    /// Whether it is below a directory, after resolving links.
    pub(super) fn is_below(&self, directory: &Path) -> io::Result<bool> {
        let (wanted, mut at) = (rustix::fs::stat(directory)?, self.directory.try_clone()?);
        loop {
            let found = rustix::fs::fstat(&at)?;
            if is_same(&found, &wanted) {
                return Ok(true);
            }
            let above = rustix::fs::openat(&at, "..", OFlags::PATH | DIRECTORY, Mode::empty())?;
            if is_same(&rustix::fs::fstat(&above)?, &found) {
                return Ok(false);
            }
            at = above.into();
        }
    }

    /// The type of the file with its name plus a suffix, if there is one.
    pub(super) fn find(&self, end: &str) -> io::Result<Option<FileType>> {
        let mut name = self.name.clone();
        name.push(end);
        match rustix::fs::statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Chooses where to stage the copy: beside the target if only root and the caller can rename files there, else
    /// beside the store.
    pub(super) fn stage(&self, store: &Path) -> io::Result<StagedCopy> {
        if let Some(directory) = self.trusted_path() {
            let path = with_suffix(&directory.join(&self.name), ".partial");
            return Ok(StagedCopy { path, is_beside: true, _lock: None });
        }
        let lock = File::open(directory_of(store))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(StagedCopy { path: with_suffix(store, ".partial"), is_beside: false, _lock: Some(lock) })
    }

    /// Gives a complete copy its final name, durably.
    pub(super) fn publish(&self, copy: &StagedCopy, replace: bool) -> io::Result<()> {
        if copy.is_beside {
            File::open(&copy.path)?.sync_all()?;
            let partial = copy.path.file_name().ok_or(Errno::INVAL)?;
            return self.rename(partial, replace);
        }
        let name = unpredictable_name()?;
        let published = self.write(&copy.path, &name).and_then(|()| self.rename(&name, replace));
        if published.is_err() {
            // The error is reported; the partial file is removed on a best-effort basis.
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
        }
        published
    }

    /// Copies a file to a new name in the directory.
    fn write(&self, from: &Path, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file: File = rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?.into();
        file.set_permissions(Permissions::from_mode(0o600))?;
        io::copy(&mut File::open(from)?, &mut file)?;
        file.sync_all()
    }

    fn rename(&self, from: &OsStr, replace: bool) -> io::Result<()> {
        let directory = &self.directory;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(directory, from, directory, &self.name, flags) {
            // Some file systems, such as NFS, lack `RENAME_NOREPLACE`; a hard link replaces nothing either.
            Err(Errno::INVAL) if !replace => {
                rustix::fs::linkat(directory, from, directory, &self.name, AtFlags::empty())?;
                rustix::fs::unlinkat(directory, from, AtFlags::empty())?;
            }
            renamed => renamed?,
        }
        directory.sync_all()
    }

    /// The canonical path of the directory, if only root and the caller can change what it resolves to.
    fn trusted_path(&self) -> Option<PathBuf> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).ok()?;
        let caller = rustix::process::geteuid().as_raw();
        let is_trusted = |directory: &Path| {
            directory.symlink_metadata().is_ok_and(|found| {
                // In a sticky directory other users can create names, but rename only their own.
                let is_closed = found.mode() & 0o022 == 0 || (found.mode() & 0o1000 != 0 && directory != path);
                found.is_dir() && [0, caller].contains(&found.uid()) && is_closed
            })
        };
        path.ancestors().all(is_trusted).then_some(path.clone())
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// A name that other users cannot predict.
fn unpredictable_name() -> io::Result<OsString> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".carrel-backup-{:032x}", u128::from_ne_bytes(bytes)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = 65534;

    fn staged(directory: &Path) -> StagedCopy {
        let path = directory.join("copy");
        std::fs::write(&path, "rows").unwrap();
        StagedCopy { path, is_beside: false, _lock: None }
    }

    #[test]
    fn a_backup_stays_in_the_directory_that_was_opened() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (directory, moved, precious) =
            (other.path().join("backups"), other.path().join("moved"), own.path().join("precious"));
        for path in [&directory, &precious] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(precious.join("b"), "precious").unwrap();
        let target = BackupTarget::open(&directory.join("b")).unwrap();
        std::fs::rename(&directory, &moved).unwrap();
        std::os::unix::fs::symlink(&precious, &directory).unwrap();
        target.publish(&staged(own.path()), true).unwrap();
        assert_eq!(std::fs::read_to_string(precious.join("b")).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(moved.join("b")).unwrap(), "rows");
        assert_eq!(std::fs::metadata(moved.join("b")).unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_file_that_appeared_meanwhile_is_replaced_only_on_request() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = BackupTarget::open(&other.path().join("b")).unwrap();
        let precious = own.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, other.path().join("b")).unwrap();
        let refused = target.publish(&staged(own.path()), false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1, "no partial file is left");
        target.publish(&staged(own.path()), true).unwrap();
        assert_eq!(std::fs::read_to_string(other.path().join("b")).unwrap(), "rows");
        assert_eq!(std::fs::read_to_string(precious).unwrap(), "precious", "the link is replaced, not followed");
    }

    #[test]
    fn a_copy_is_staged_beside_the_target_only_if_no_other_user_can_rename_files_there() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = own.path().join("carrel.db");
        let is_beside = |directory: &Path| {
            BackupTarget::open(&directory.join("b")).unwrap().stage(&store).unwrap().path.parent() == Some(directory)
        };
        let below = other.path().join("below");
        std::fs::create_dir(&below).unwrap();
        assert!(is_beside(other.path()) && is_beside(&below));
        for mode in [0o770, 0o707, 0o1777] {
            std::fs::set_permissions(other.path(), Permissions::from_mode(mode)).unwrap();
            assert!(!is_beside(other.path()), "{mode:o}");
            assert_eq!(is_beside(&below), mode & 0o1000 != 0, "{mode:o}");
        }
        std::fs::set_permissions(other.path(), Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(other.path(), Some(NOBODY), None).unwrap();
            assert!(!is_beside(other.path()) && !is_beside(&below));
        }
    }
}
