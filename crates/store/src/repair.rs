//! A damaged store is replaced by one with all that is intact in it.

use std::path::{Path, PathBuf};

use crate::backup::{Aside, BackupError, put_in_place, size_of, with_room};
use crate::marker::MarkerRecord;
use crate::regular_file::require_regular;
use crate::sqlite::{beside, rebuild, remove_database};
use crate::{MissingEvents, Report, Store, StoreError, check, check_with_marker};

/// What a repair kept, and what it lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What became of each table; none if nothing was wrong.
    pub tables: Vec<RepairedTable>,
    /// The sandboxes whose rows are lost, by their ids; their execs and events are lost with them.
    pub lost_sandboxes: Vec<String>,
    /// Whether the write-ahead log was missing, with what was committed last.
    pub log_missing: bool,
    /// Which events the home has seen and the store lacks.
    pub missing: Option<MissingEvents>,
    /// Where the damaged store is now; none if nothing was wrong.
    pub aside: Option<PathBuf>,
    /// What a check finds in the new store.
    pub check: Report,
}

/// What became of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedTable {
    /// Its name.
    pub name: &'static str,
    /// How many rows were kept.
    pub kept: u64,
    /// How many are known to be lost.
    pub lost: u64,
    /// Whether more may be lost: part of the table cannot be read, and nothing else says what was there.
    pub at_least: bool,
}

/// Puts a store in the place of a damaged one that has all that is intact; the damaged one is kept beside it. Nobody may
/// have it open. A store with which nothing is wrong is left alone.
pub fn repair(store: &Path, home_mark: Option<&Path>) -> Result<RepairReport, BackupError> {
    require_regular(store).map_err(|error| StoreError::file(store, error))?;
    if let Ok(check) = check_with_marker(store, home_mark) {
        if check.is_good() {
            return Ok(RepairReport { check, ..RepairReport::default() });
        }
    }
    std::fs::metadata(store).map_err(|error| StoreError::file(store, error))?;
    let log_missing = matches!(Store::inspect(store, None), Err(StoreError::LogMissing(_)));
    let home = home_mark.map(MarkerRecord::read).transpose()?.flatten();
    let partial = beside(store, ".repairing");
    // A copy of the damaged store may be needed beside the new one.
    with_room(store, 2 * size_of(store), || {
        let repaired = rebuild(store, &partial, home.as_ref()).and_then(|mut report| {
            report.check = check(&partial)?;
            report.log_missing = log_missing;
            report.aside = put_in_place(&partial, store, Aside::Damaged)?;
            Ok(report)
        });
        if repaired.is_err() {
            // What failed is said; what is left of it is removed if that can be.
            let _ = remove_database(&partial);
        }
        Ok(repaired?)
    })
}

// === impl RepairReport ===

impl RepairReport {
    /// Whether everything was kept.
    pub fn is_complete(&self) -> bool {
        self.lost_rows() == 0
            && !self.tables.iter().any(|table| table.at_least)
            && !self.log_missing
            && self.missing.is_none()
            && self.check.is_good()
    }

    /// How many rows are known to be lost.
    pub fn lost_rows(&self) -> u64 {
        self.tables.iter().map(|table| table.lost).sum()
    }

    /// How many rows were kept whose checksums say that they are what was written.
    pub(crate) fn kept_rows(&self) -> u64 {
        let has_checksums = |table: &&RepairedTable| !table.name.starts_with("reserved_");
        self.tables.iter().filter(has_checksums).map(|table| table.kept).sum()
    }

    /// Whether nothing was kept of a store that had something.
    pub fn is_empty(&self) -> bool {
        self.aside.is_some() && !self.is_complete() && self.check.sandboxes == 0
    }
}
