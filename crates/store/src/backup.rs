//! Backup of a store in use, and restore while no daemon runs.

mod target;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;

use self::target::BackupTarget;
use crate::regular_file::require_regular;
use crate::reserve::{StoreDiskSpace, remove_reserve};
use crate::sqlite::{
    copy_store, directory_of, finish, log_of, mark_restored, remove_database, sync_directory, timestamp, with_suffix,
};
use crate::{CheckReport, Store, StoreError, StoreOrigin, check};

/// The parameters of a backup.
#[derive(Clone, Copy, Debug)]
pub struct BackupRequest<'p> {
    /// The store to copy.
    pub store: &'p Path,
    /// The home of the daemon, in which no backup may be written.
    pub home: &'p Path,
    /// The file to write.
    pub file: &'p Path,
    /// Whether it may replace an existing regular file.
    pub replace: bool,
}

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The check of the restored store.
    pub check: CheckReport,
    /// Where the previous store is now.
    pub aside: Option<PathBuf>,
}

/// Why a backup, restore or repair failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackupError {
    /// The file exists.
    #[error("{} exists", .0.display())]
    Exists(PathBuf),
    /// The path exists and is not a regular file, so a backup does not replace it.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// The file is in the home of the daemon.
    #[error("{} is in the home of the daemon, {}", file.display(), home.display())]
    Inside {
        file: PathBuf,
        /// The home of the daemon.
        home: PathBuf,
    },
    /// A write-ahead log of that name exists, which SQLite would read as part of the backup.
    #[error("{} exists, and would be read as part of the backup", .0.display())]
    Log(PathBuf),
    /// The store is missing or empty.
    #[error("there is no store in {}", .0.display())]
    Nothing(PathBuf),
    /// The backup is missing, damaged, or not a backup.
    #[error("the backup {} cannot be restored: {reason}", path.display())]
    Unusable {
        /// The file of the backup.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The source of the copy is damaged.
    #[error("{} is damaged: {}", path.display(), summary(found))]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The violations, a sentence each.
        found: Vec<String>,
    },
    /// The backup, or its staged copy, cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file that cannot be written.
        path: PathBuf,
        /// The error of the system call.
        source: Arc<io::Error>,
    },
    /// The disk has no space for a copy of the store.
    #[error(
        "not enough space in {}: up to {needed} bytes are needed, {free} are free", directory.display()
    )]
    NoRoom {
        /// The directory of the copy.
        directory: PathBuf,
        /// How many bytes the copy may take.
        needed: u64,
        /// How many bytes are free.
        free: u64,
    },
    /// The store or the file failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a store is replaced; the name of the old one says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplaceReason {
    Replaced,
    Damaged,
}

/// Copies a consistent snapshot of a store into a file; a daemon may use the store meanwhile. The copy is complete,
/// verified and fsynced before it gets its name.
pub fn backup(request: BackupRequest<'_>) -> Result<CheckReport, BackupError> {
    let BackupRequest { store, home, file, replace } = request;
    let failed = |error| BackupError::write(file, error);
    std::fs::metadata(store).map_err(|error| StoreError::file(store, error))?;
    let target = BackupTarget::open(file).map_err(failed)?;
    if target.is_below(home).map_err(failed)? {
        return Err(BackupError::Inside { file: file.into(), home: home.into() });
    }
    match target.find("").map_err(failed)? {
        Some(found) if found != FileType::RegularFile => return Err(BackupError::NotAFile(file.into())),
        Some(_) if !replace => return Err(BackupError::Exists(file.into())),
        _ => {}
    }
    if target.find("-wal").map_err(failed)?.is_some() {
        return Err(BackupError::Log(log_of(file)));
    }
    if let StoreOrigin::Missing { .. } = Store::inspect(store, None)? {
        return Err(BackupError::Nothing(store.into()));
    }
    let copy = target.stage(store).map_err(failed)?;
    let copied = copy_store(store, &copy.path).map_err(|error| match error {
        StoreError::Full => BackupError::write(&copy.path, io::ErrorKind::StorageFull.into()),
        error => error.into(),
    });
    let report = copied.and_then(|()| {
        let report = check(&copy.path)?;
        match report.is_good() {
            true => Ok(report),
            false => Err(BackupError::Damaged { path: store.into(), found: report.violations }),
        }
    });
    let published = report.and_then(|report| match target.publish(&copy, replace) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(BackupError::Exists(file.into())),
        published => published.map(|()| report).map_err(failed),
    });
    // The error is reported; the staged copy is removed on a best-effort basis.
    let _ = remove_database(&copy.path);
    published
}

/// Replaces a store by a backup and keeps the previous store beside it. No process may have the store open.
pub fn restore(store: &Path, file: &Path) -> Result<RestoreReport, BackupError> {
    let unusable = |reason: String| BackupError::Unusable { path: file.into(), reason };
    std::fs::metadata(file).and_then(|_| require_regular(file)).map_err(|error| unusable(error.to_string()))?;
    if let StoreOrigin::Missing { .. } = Store::inspect(file, None).map_err(|error| unusable(error.to_string()))? {
        return Err(unusable("it is empty".into()));
    }
    verified(file, file)?;
    if let Some(directory) = store.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| StoreError::file(directory, error))?;
    }
    let partial = with_suffix(store, ".restoring");
    with_room(store, size_of(file), || {
        restore_through(&partial, store, file).inspect_err(|_| {
            let _ = remove_database(&partial);
        })
    })
}

/// Runs work that writes beside a store that no process has open. If the disk is full, it retries once without the
/// reserve of the store, which the next daemon restores.
pub(crate) fn with_room<T>(
    store: &Path,
    needed: u64,
    work: impl Fn() -> Result<T, BackupError>,
) -> Result<T, BackupError> {
    let is_full = |done: &Result<T, BackupError>| matches!(done, Err(BackupError::Store(error)) if error.is_full());
    let mut done = work();
    if is_full(&done) && remove_reserve(store) {
        done = work();
    }
    if is_full(&done) {
        let directory = directory_of(store).to_owned();
        let free =
            File::open(&directory).and_then(|directory| StoreDiskSpace::of(&directory)).map_or(0, |space| space.free);
        return Err(BackupError::NoRoom { directory, needed, free });
    }
    done
}

/// The size of a store with its log, in bytes.
pub(crate) fn size_of(store: &Path) -> u64 {
    [store.to_owned(), log_of(store)].iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

fn restore_through(partial: &Path, store: &Path, file: &Path) -> Result<RestoreReport, BackupError> {
    copy_store(file, partial)?;
    mark_restored(partial)?;
    let check = verified(partial, file)?;
    let aside = put_in_place(partial, store, ReplaceReason::Replaced)?;
    Ok(RestoreReport { check, aside })
}

/// Checks a backup, or a copy of it; violations in the copy count as violations in the backup.
fn verified(copy: &Path, backup: &Path) -> Result<CheckReport, BackupError> {
    let unusable = |reason| BackupError::Unusable { path: backup.into(), reason };
    let report = check(copy).map_err(|error| unusable(error.to_string()))?;
    if report.is_good() { Ok(report) } else { Err(unusable(summary(&report.violations))) }
}

/// Replaces a store by a complete one and keeps the old one under another name. At every point there is the old store,
/// a file that is refused because its log is missing, or the new store.
pub(crate) fn put_in_place(new: &Path, store: &Path, reason: ReplaceReason) -> Result<Option<PathBuf>, StoreError> {
    let aside = set_aside(store, reason)?;
    // SQLite would read the log of the old store as that of the new one.
    for file in [log_of(store), with_suffix(store, "-shm")] {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::file(file, error)),
            _ => {}
        }
    }
    sync_directory(store)?;
    finish(new, store)?;
    Ok(aside)
}

/// Gives a store and its log a second name each; returns that of the store, or that of a log without a store. Empty
/// files are not kept.
fn set_aside(store: &Path, reason: ReplaceReason) -> Result<Option<PathBuf>, StoreError> {
    let has_bytes = |file: &Path| std::fs::metadata(file).is_ok_and(|found| found.len() > 0);
    let (has_store, has_log) = (has_bytes(store), has_bytes(&log_of(store)));
    if !has_store && !has_log {
        return Ok(None);
    }
    let word = match reason {
        ReplaceReason::Replaced => "before-restore",
        ReplaceReason::Damaged => "damaged",
    };
    let name = format!(".{word}-{}", timestamp()?);
    let free = |aside: &PathBuf| !aside.exists() && !log_of(aside).exists();
    let numbered = (2..).map(|number| with_suffix(store, &format!("{name}-{number}")));
    let Some(aside) = std::iter::once(with_suffix(store, &name)).chain(numbered).find(free) else {
        return Err(StoreError::file(store, io::ErrorKind::AlreadyExists.into()));
    };
    if has_log {
        std::fs::hard_link(log_of(store), log_of(&aside)).map_err(|error| StoreError::file(log_of(&aside), error))?;
    }
    if has_store {
        std::fs::hard_link(store, &aside).map_err(|error| StoreError::file(&aside, error))?;
    }
    sync_directory(store)?;
    Ok(Some(if has_store { aside } else { log_of(&aside) }))
}

fn summary(found: &[String]) -> String {
    match found {
        [] => "no violation".into(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

// === impl BackupError ===

impl BackupError {
    fn write(path: &Path, source: io::Error) -> Self {
        Self::Write { path: path.into(), source: Arc::new(source) }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Exists(_) => Some("--force replaces it".into()),
            Self::NotAFile(_) => Some("give the name of a regular file or a new name".into()),
            Self::Inside { .. } => Some("write it to another directory, preferably on another disk".into()),
            Self::Log(_) => Some("give another name".into()),
            Self::Nothing(_) => Some("`carrel serve` creates one".into()),
            Self::Unusable { path, .. } => {
                let directory = directory_of(path).display();
                Some(format!(
                    "nothing was changed; give another file that `carrel store backup` wrote: ls -l {directory}"
                ))
            }
            Self::Damaged { .. } => {
                Some("`carrel store check` lists all violations; `carrel store repair` keeps what is intact".into())
            }
            Self::Write { path, .. } => {
                let directory = directory_of(path).display();
                Some(format!("check the permissions and the free space: ls -ld {directory}; df -h {directory}"))
            }
            Self::NoRoom { directory, .. } => Some(format!(
                "nothing was changed; see what takes space on that disk, remove some of it, and run the command again: \
                 du -xh --max-depth=2 {} | sort -h | tail -n 20",
                directory.parent().unwrap_or(directory).display()
            )),
            Self::Store(error) => error.hint(),
        }
    }
}
