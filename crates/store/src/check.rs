//! Checks the invariants of a store.

mod history;

use std::fmt;
use std::path::Path;

use self::history::SandboxHistory;
use crate::marker::MarkerRecord;
use crate::regular_file::require_regular;
use crate::sqlite::{Audit, StoredSandbox, log_of};
use crate::{Sandbox, StoreError, StoreIdentity};

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of sandboxes.
    pub sandboxes: u64,
    /// The number of execs.
    pub execs: u64,
    /// The number of events.
    pub events: u64,
    /// The schema version.
    pub version: u32,
    /// The identity of the store; older versions have none.
    pub identity: Option<StoreIdentity>,
    /// The position of the newest event; it only rises.
    pub position: u64,
    /// Whether the rows have checksums, which were then all verified.
    pub checksums: bool,
    /// The events that the marker of the home records and the store lacks.
    pub missing: Option<MissingEvents>,
    /// The violated invariants, a sentence each.
    pub violations: Vec<String>,
}

/// A range of positions that is missing at the end of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingEvents {
    /// The newest position that the store has.
    pub after: u64,
    /// The newest fsynced position, according to the marker of the home.
    pub until: u64,
}

/// Checks a snapshot of a whole store; a daemon may use the store meanwhile.
pub fn check(path: &Path) -> Result<CheckReport, StoreError> {
    check_with_marker(path, None)
}

/// Like [`check`], and compares the store with the marker of its home, which tells what was fsynced.
pub fn check_with_marker(path: &Path, home_mark: Option<&Path>) -> Result<CheckReport, StoreError> {
    require_regular(path).map_err(|error| StoreError::file(path, error))?;
    // The marker is read before the store, so the store cannot be behind it.
    let home = home_mark.map(MarkerRecord::read).transpose()?.flatten();
    loop {
        let store = Audit::open(path)?;
        let report = check_opened(&store, path, home.as_ref());
        // A daemon started to write, so the reads may come from two snapshots.
        if !(store.is_immutable() && log_of(path).exists()) {
            return report;
        }
    }
}

fn check_opened(store: &Audit, path: &Path, home: Option<&MarkerRecord>) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport::default();
    if store.is_empty()? {
        return Ok(report);
    }
    let facts = store.facts()?;
    report.version = facts.version;
    report.identity.clone_from(&facts.identity);
    report.position = facts.position;
    report.checksums = facts.identity.is_some();
    if store.is_immutable() && facts.lacks_log(path)? {
        report.violations.push(StoreError::LogMissing(path.into()).to_string());
    }
    report.missing = home.and_then(|home| facts.missing(home));
    report.violations.extend(report.missing.map(|missing| missing.to_string()));
    let damage = store.integrity()?.into_iter().map(|line| format!("the database is damaged: {line}"));
    report.violations.extend(damage);
    report.violations.extend(store.dangling()?);
    for stored in store.sandboxes()? {
        report.sandboxes += 1;
        match &stored.row {
            Ok(row) => report.check_sandbox(store, &stored, row)?,
            Err(error) => report.violations.push(format!("a sandbox cannot be read: {error}")),
        }
    }
    Ok(report)
}

// === impl MissingEvents ===

impl fmt::Display for MissingEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, until } = self;
        write!(
            f,
            "{} positions of events are missing: the store ends at {after}, and this home had {until}",
            until - after
        )
    }
}

// === impl CheckReport ===

impl CheckReport {
    /// Whether no invariant is violated.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    fn check_sandbox(&mut self, store: &Audit, stored: &StoredSandbox, row: &Sandbox) -> Result<(), StoreError> {
        let trimmed = store.trimmed(stored)?;
        let mut history = SandboxHistory::new(store.is_incomplete(stored)?, trimmed.clone().unwrap_or_default());
        if let Err(error) = trimmed {
            history.report(format!("its retention record cannot be read: {error}"));
        }
        for gap in store.gaps(stored)? {
            match gap {
                Ok((after, until)) => history.add_gap(after, until),
                Err(error) => history.report(format!("a gap cannot be read: {error}")),
            }
        }
        store.events(stored, &row.id, |event| {
            self.events += 1;
            match event {
                Ok(event) => history.add(&event),
                Err(error) => history.report(format!("an event cannot be read: {error}")),
            }
        })?;
        for exec in store.execs(stored)? {
            self.execs += 1;
            match exec {
                Ok(exec) => history.check_exec(&exec, row.state),
                Err(error) => history.report(format!("an exec cannot be read: {error}")),
            }
        }
        let found = history.end(row, stored.ceiling);
        self.violations.extend(found.into_iter().map(|found| format!("sandbox {}: {found}", row.id)));
        Ok(())
    }
}
