//! Backups: made beside a daemon that serves, and put back when none does.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sqlite::{beside, copy_store, finish, log_of, mark_restored, remove_database, sync_directory, timestamp};
use crate::{Report, Store, StoreError, StoreOrigin, check};

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// What was restored.
    pub check: Report,
    /// Where the store is that was there before.
    pub aside: Option<PathBuf>,
}

/// Why a store is not backed up, restored or repaired.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackupError {
    /// There is something of that name.
    #[error("{} exists", .0.display())]
    Exists(PathBuf),
    /// The file is the store itself.
    #[error("{} is the store itself", .0.display())]
    Same(PathBuf),
    /// There is a write-ahead log of that name, which would be taken for that of the backup.
    #[error("{} exists, and would be read as part of the backup", .0.display())]
    Log(PathBuf),
    /// There is nothing in it.
    #[error("there is no store in {}", .0.display())]
    Nothing(PathBuf),
    /// What would be copied is not as it has to be.
    #[error("{} is damaged: {}", path.display(), summary(found))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, a sentence each.
        found: Vec<String>,
    },
    /// The store or the file failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a store is put aside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aside {
    Replaced,
    Damaged,
}

/// Copies a store into a file, as it is at one moment; a daemon may work with it meanwhile. The copy is complete, verified
/// and on the disk when it gets its name.
pub fn backup(store: &Path, file: &Path, replace: bool) -> Result<Report, BackupError> {
    let source = std::fs::metadata(store).map_err(|error| StoreError::file(store, error))?;
    match std::fs::metadata(file) {
        Ok(found) if (found.dev(), found.ino()) == (source.dev(), source.ino()) => {
            return Err(BackupError::Same(file.into()));
        }
        Ok(_) if !replace => return Err(BackupError::Exists(file.into())),
        _ => {}
    }
    if log_of(file).exists() {
        return Err(BackupError::Log(log_of(file)));
    }
    if let StoreOrigin::Missing { .. } = Store::inspect(store, None)? {
        return Err(BackupError::Nothing(store.into()));
    }
    let partial = beside(file, ".partial");
    let report = copy_store(store, &partial).map_err(BackupError::from).and_then(|()| whole(&partial, store));
    match report {
        Ok(report) => finish(&partial, file).map(|()| report).map_err(BackupError::from),
        Err(error) => {
            // What failed is said; what is left of it is removed if that can be.
            let _ = remove_database(&partial);
            Err(error)
        }
    }
}

/// Puts a backup in the place of a store; what was there is kept beside it. Nobody may have the store open.
pub fn restore(store: &Path, file: &Path) -> Result<RestoreReport, BackupError> {
    if !file.exists() {
        return Err(StoreError::file(file, io::ErrorKind::NotFound.into()).into());
    }
    if let StoreOrigin::Missing { .. } = Store::inspect(file, None)? {
        return Err(BackupError::Nothing(file.into()));
    }
    whole(file, file)?;
    if let Some(directory) = store.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| StoreError::file(directory, error))?;
    }
    let partial = beside(store, ".restoring");
    let restored = restore_through(&partial, store, file);
    if restored.is_err() {
        let _ = remove_database(&partial);
    }
    restored
}

fn restore_through(partial: &Path, store: &Path, file: &Path) -> Result<RestoreReport, BackupError> {
    copy_store(file, partial)?;
    mark_restored(partial)?;
    let check = whole(partial, file)?;
    let aside = put_in_place(partial, store, Aside::Replaced)?;
    Ok(RestoreReport { check, aside })
}

/// Looks through a copy; what is wrong with it is wrong with where it came from.
fn whole(copy: &Path, from: &Path) -> Result<Report, BackupError> {
    let report = check(copy)?;
    if report.is_good() {
        Ok(report)
    } else {
        Err(BackupError::Damaged { path: from.into(), found: report.violations })
    }
}

/// Puts a complete store where another one is, which is kept under another name. At every moment there is the old store,
/// a file that is refused because its log is missing, or the new store.
pub(crate) fn put_in_place(new: &Path, store: &Path, why: Aside) -> Result<Option<PathBuf>, StoreError> {
    let aside = match std::fs::metadata(store) {
        Ok(found) if found.len() > 0 => Some(keep(store, why)?),
        _ => None,
    };
    // The log of the old store would be read as that of the new one.
    for file in [log_of(store), beside(store, "-shm")] {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::file(file, error)),
            _ => {}
        }
    }
    sync_directory(store)?;
    finish(new, store)?;
    Ok(aside)
}

/// Gives a store and its log a second name each.
fn keep(store: &Path, why: Aside) -> Result<PathBuf, StoreError> {
    let word = match why {
        Aside::Replaced => "before-restore",
        Aside::Damaged => "damaged",
    };
    let name = format!(".{word}-{}", timestamp()?);
    let free = |aside: &PathBuf| !aside.exists() && !log_of(aside).exists();
    let numbered = (2..).map(|number| beside(store, &format!("{name}-{number}")));
    let Some(aside) = std::iter::once(beside(store, &name)).chain(numbered).find(free) else {
        return Err(StoreError::file(store, io::ErrorKind::AlreadyExists.into()));
    };
    if log_of(store).exists() {
        std::fs::hard_link(log_of(store), log_of(&aside)).map_err(|error| StoreError::file(log_of(&aside), error))?;
    }
    std::fs::hard_link(store, &aside).map_err(|error| StoreError::file(&aside, error))?;
    sync_directory(store)?;
    Ok(aside)
}

fn summary(found: &[String]) -> String {
    match found {
        [] => "nothing was found".into(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

// === impl BackupError ===

impl BackupError {
    /// What to do about it, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Exists(_) => Some("--force replaces it".into()),
            Self::Same(_) | Self::Log(_) => Some("give another name".into()),
            Self::Nothing(_) => Some("`carrel store check` says what is there".into()),
            Self::Damaged { .. } => {
                Some("`carrel store check` says all that is wrong; `carrel store repair` keeps what is intact".into())
            }
            Self::Store(error) => error.hint().map(str::to_owned),
        }
    }
}
