//! Replaces a damaged store by one with all intact rows.

use std::path::{Path, PathBuf};

use crate::backup::{BackupError, ReplaceReason, put_in_place, size_of, with_room};
use crate::marker::MarkerRecord;
use crate::regular_file::require_regular;
use crate::sqlite::{rebuild, remove_database, with_suffix};
use crate::{CheckReport, MissingEvents, Store, StoreError, check, check_with_marker};

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The result for each table; empty if the store was intact.
    pub tables: Vec<RepairedTable>,
    /// The ids of the sandboxes whose rows are lost, together with their execs and events.
    pub lost_sandboxes: Vec<String>,
    /// Whether the write-ahead log was missing, with the last commits.
    pub log_missing: bool,
    /// The events that the marker of the home records and the store lacks.
    pub missing: Option<MissingEvents>,
    /// Where the damaged store is now; `None` if the store was intact.
    pub aside: Option<PathBuf>,
    /// The check of the new store.
    pub check: CheckReport,
}

/// The result for one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedTable {
    pub name: &'static str,
    /// How many rows were kept.
    pub kept: u64,
    /// How many rows are known to be lost.
    pub lost: u64,
    /// Whether more may be lost: part of the table cannot be read, and no index tells what it held.
    pub at_least: bool,
}

/// Replaces a damaged store by one with all intact rows and keeps the damaged one beside it. No process may have it
/// open. An intact store is not changed.
pub fn repair(store: &Path, home_marker: Option<&Path>) -> Result<RepairReport, BackupError> {
    require_regular(store).map_err(|error| StoreError::file(store, error))?;
    if let Ok(check) = check_with_marker(store, home_marker)
        && check.is_good()
    {
        return Ok(RepairReport { check, ..RepairReport::default() });
    }
    std::fs::metadata(store).map_err(|error| StoreError::file(store, error))?;
    let log_missing = matches!(Store::inspect(store, None), Err(StoreError::LogMissing(_)));
    let home = home_marker.map(MarkerRecord::read).transpose()?.flatten();
    let partial = with_suffix(store, ".repairing");
    // The repair may need a copy of the damaged store beside the new one.
    with_room(store, 2 * size_of(store), || {
        let repaired = rebuild(store, &partial, home.as_ref()).and_then(|mut report| {
            report.check = check(&partial)?;
            report.log_missing = log_missing;
            report.aside = put_in_place(&partial, store, ReplaceReason::Damaged)?;
            Ok(report)
        });
        if repaired.is_err() {
            // The error is reported; partial files are removed on a best-effort basis.
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

    /// How many rows were kept with a valid checksum.
    pub(crate) fn kept_rows(&self) -> u64 {
        let has_checksums = |table: &&RepairedTable| !table.name.starts_with("reserved_");
        self.tables.iter().filter(has_checksums).map(|table| table.kept).sum()
    }

    /// Whether nothing was kept of a store that had rows.
    pub fn is_empty(&self) -> bool {
        self.aside.is_some() && !self.is_complete() && self.check.sandboxes == 0
    }
}
