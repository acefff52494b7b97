//! Checks the invariants of a store.

mod history;
mod violation;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use self::history::SandboxHistory;
pub(crate) use self::violation::Violation;
pub use self::violation::ViolationKind;
use crate::marker::MarkerRecord;
use crate::regular_file::require_regular;
use crate::sqlite::{Audit, StoredSandbox, has_log};
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
    /// The kinds of these violations.
    pub kinds: BTreeSet<ViolationKind>,
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
pub fn check_with_marker(path: &Path, home_marker: Option<&Path>) -> Result<CheckReport, StoreError> {
    require_regular(path).map_err(|error| StoreError::file(path, error))?;
    // The marker is read before the store, so the store cannot be behind it.
    let home = home_marker.map(MarkerRecord::read).transpose()?.flatten();
    loop {
        let store = Audit::open(path)?;
        let report = check_opened(&store, path, home.as_ref());
        // A daemon started to write, so the reads may come from two snapshots.
        if !(store.is_immutable() && has_log(path)) {
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
        report.add(&Violation::LogMissing { error: StoreError::LogMissing(path.into()).to_string() });
    }
    report.missing = home.and_then(|home| facts.missing(home));
    if let Some(events) = report.missing {
        report.add(&Violation::EventsMissing { events });
    }
    for line in store.integrity()? {
        report.add(&Violation::DamagedDatabase { line });
    }
    for violation in store.dangling()? {
        report.add(&violation);
    }
    for stored in store.sandboxes()? {
        report.sandboxes += 1;
        match &stored.row {
            Ok(row) => report.check_sandbox(store, &stored, row)?,
            Err(error) => report.add(&Violation::UnreadableSandbox { error: error.clone() }),
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

    /// Adds a violation that is not about one sandbox.
    fn add(&mut self, violation: &Violation) {
        self.kinds.insert(violation.kind());
        self.violations.push(violation.to_string());
    }

    fn check_sandbox(&mut self, store: &Audit, stored: &StoredSandbox, row: &Sandbox) -> Result<(), StoreError> {
        let trimmed = store.trimmed(stored)?;
        let mut history = SandboxHistory::new(store.is_incomplete(stored)?, trimmed.clone().unwrap_or_default());
        if let Err(error) = trimmed {
            history.report(Violation::UnreadableTrimmed { error });
        }
        for gap in store.gaps(stored)? {
            match gap {
                Ok((after, until)) => history.add_gap(after, until),
                Err(error) => history.report(Violation::UnreadableGap { error }),
            }
        }
        store.events(stored, &row.id, |event| {
            self.events += 1;
            match event {
                Ok(event) => history.add(&event),
                Err(error) => history.report(Violation::UnreadableEvent { error }),
            }
        })?;
        for exec in store.execs(stored)? {
            self.execs += 1;
            match exec {
                Ok(exec) => history.check_exec(&exec, row.state),
                Err(error) => history.report(Violation::UnreadableExec { error }),
            }
        }
        for violation in history.end(row, stored.ceiling) {
            self.kinds.insert(violation.kind());
            self.violations.push(format!("sandbox {}: {violation}", row.id));
        }
        Ok(())
    }
}
