//! Opens the store of a home, after checking that it is the one that knows the disks there.

use std::path::{Path, PathBuf};

use carrel_store::{Store, StoreError, StoreOrigin};

use crate::error::ServeError;
use crate::home::{HomeError, own_directory, store_file, store_marker_file};

/// Why the store of a home cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// Its directory is not usable.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The store itself cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store does not know the sandboxes whose disks are in the home.
    #[error("{} {problem}, and {} in {}", store.display(), counted(*disks), home.display())]
    Lost {
        store: PathBuf,
        home: PathBuf,
        /// What is wrong with the store.
        problem: &'static str,
        /// The number of disks.
        disks: usize,
    },
}

/// A backup that no daemon would serve in a home without `--accept-data-loss`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backup {} {problem}, and {} in {}", file.display(), counted(*disks), home.display())]
pub struct UnfitBackup {
    file: PathBuf,
    home: PathBuf,
    problem: &'static str,
    disks: usize,
}

/// Returns why a backup does not fit the disks in a home, if it does not. The restore reports a backup that cannot be
/// read.
pub fn unfit_backup(home: &Path, file: &Path) -> Result<Option<UnfitBackup>, ServeError> {
    let Ok(origin) = Store::inspect(file, Some(&store_marker_file(home))) else { return Ok(None) };
    let disks = carrel_local::disks(home).map_err(|source| HomeError::Io { path: home.to_owned(), source })?;
    let problem = problem(&origin).filter(|_| disks > 0);
    Ok(problem.map(|problem| UnfitBackup { file: file.to_owned(), home: home.to_owned(), problem, disks }))
}

/// Refuses a home whose store does not know the disks there. It creates nothing, and accepts a store that cannot be
/// read: opening it reports why.
pub fn verify_store(home: &Path) -> Result<(), ServeError> {
    match Store::inspect(&store_file(home), Some(&store_marker_file(home))) {
        Ok(origin) => Ok(check_origin(home, &origin)?),
        Err(_) => Ok(()),
    }
}

/// Refuses a store that does not know the disks in its home.
fn check_origin(home: &Path, origin: &StoreOrigin) -> Result<(), StoreOpenError> {
    let disks = carrel_local::disks(home).map_err(|source| HomeError::Io { path: home.to_owned(), source })?;
    match problem(origin) {
        Some(problem) if disks > 0 => {
            Err(StoreOpenError::Lost { store: store_file(home), home: home.to_owned(), problem, disks })
        }
        _ => Ok(()),
    }
}

/// Opens the store of a home. It logs that a store is older than its home; one that does not know disks in the home is
/// opened only if their loss is accepted.
pub(crate) fn open(home: &Path, accept_data_loss: bool) -> Result<Store, StoreOpenError> {
    let (path, marker) = (store_file(home), store_marker_file(home));
    own_directory(path.parent().unwrap_or(home), true)?;
    let origin = Store::inspect(&path, Some(&marker))?;
    match check_origin(home, &origin) {
        Err(StoreOpenError::Lost { problem, disks, .. }) if accept_data_loss => {
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
    Ok(Store::open(&path, carrel_store::StoreOptions { home_marker: Some(marker), index_lock, ..Default::default() })?)
}

fn counted(disks: usize) -> String {
    match disks {
        1 => "1 disk of a sandbox is".to_owned(),
        disks => format!("{disks} disks of sandboxes are"),
    }
}

/// Why a store does not know the disks in its home, if that is so.
fn problem(origin: &StoreOrigin) -> Option<&'static str> {
    match origin {
        StoreOrigin::Missing { .. } => Some("is missing"),
        StoreOrigin::Empty { .. } => Some("is empty"),
        StoreOrigin::Foreign { .. } => Some("belongs to another home"),
        _ => None,
    }
}
