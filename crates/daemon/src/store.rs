//! Opening the store of a home: whether it is the one whose sandboxes are there.

use std::path::{Path, PathBuf};

use carrel_store::{Store, StoreError, StoreOrigin};

use crate::error::ServeError;
use crate::home::{HomeError, own_directory, store_file, store_mark_file};

/// Why the store of a home is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its directory will not do.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// It cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It knows nothing of the sandboxes whose disks are there.
    #[error("{} {problem}, and {disks} disks of sandboxes are in {}", store.display(), home.display())]
    Lost {
        /// The store.
        store: PathBuf,
        /// The home.
        home: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
        /// How many disks there are.
        disks: usize,
    },
}

/// A backup that no daemon would serve in a home without being told to accept the loss.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backup {} {problem}, and {disks} disks of sandboxes are in {}", file.display(), home.display())]
pub struct UnfitBackup {
    file: PathBuf,
    home: PathBuf,
    problem: &'static str,
    disks: usize,
}

/// Says whether a backup knows nothing of the disks that are in a home. One that cannot be read is left to whoever restores
/// it.
pub fn unfit_backup(home: &Path, file: &Path) -> Result<Option<UnfitBackup>, ServeError> {
    let Ok(origin) = Store::inspect(file, Some(&store_mark_file(home))) else { return Ok(None) };
    let disks = carrel_local::disks(home).map_err(|source| HomeError::Io { path: home.to_owned(), source })?;
    let problem = problem(&origin).filter(|_| disks > 0);
    Ok(problem.map(|problem| UnfitBackup { file: file.to_owned(), home: home.to_owned(), problem, disks }))
}

/// Refuses a home whose store knows nothing of the disks that are there. Nothing is created, and a store that cannot be read
/// passes: opening it reports why.
pub fn verify_store(home: &Path) -> Result<(), ServeError> {
    match Store::inspect(&store_file(home), Some(&store_mark_file(home))) {
        Ok(origin) => Ok(check_origin(home, &origin)?),
        Err(_) => Ok(()),
    }
}

/// Refuses a store that knows nothing of the disks that are in its home.
fn check_origin(home: &Path, origin: &StoreOrigin) -> Result<(), OpenError> {
    let disks = carrel_local::disks(home).map_err(|source| HomeError::Io { path: home.to_owned(), source })?;
    match problem(origin) {
        Some(problem) if disks > 0 => {
            Err(OpenError::Lost { store: store_file(home), home: home.to_owned(), problem, disks })
        }
        _ => Ok(()),
    }
}

/// Opens the store of a home. One that is older than the home is opened, and said to be; one that knows nothing of disks that
/// are there only if their loss is accepted.
pub(crate) fn open(home: &Path, accept_data_loss: bool) -> Result<Store, OpenError> {
    let (path, mark) = (store_file(home), store_mark_file(home));
    own_directory(path.parent().unwrap_or(home), true)?;
    let origin = Store::inspect(&path, Some(&mark))?;
    match check_origin(home, &origin) {
        Err(OpenError::Lost { problem, disks, .. }) if accept_data_loss => {
            tracing::warn!(disks, "the store {problem}: disks that it does not know are quarantined")
        }
        checked => checked?,
    }
    if let StoreOrigin::Older { store, home } = origin {
        tracing::warn!(
            store,
            home,
            "the store is older than the home: what it does not know is quarantined, see `carrel store orphans`"
        );
    }
    let index_lock = Some(carrel_sandbox::lock_byte as carrel_store::ByteLock);
    Ok(Store::open(&path, carrel_store::StoreOptions { home_mark: Some(mark), index_lock, ..Default::default() })?)
}

/// Why a store knows nothing of what is in the home, if that is so.
fn problem(origin: &StoreOrigin) -> Option<&'static str> {
    match origin {
        StoreOrigin::Missing { .. } => Some("is missing"),
        StoreOrigin::Empty { .. } => Some("is empty"),
        StoreOrigin::Foreign { .. } => Some("belongs to another home"),
        _ => None,
    }
}
