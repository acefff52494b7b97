//! Whether a store keeps its promises.

mod history;

use std::fmt;
use std::path::Path;

use self::history::History;
use crate::marker::MarkerRecord;
use crate::regular_file::require_regular;
use crate::sqlite::{Audit, StoredSandbox, log_of};
use crate::{Sandbox, StoreError, StoreIdentity};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many sandboxes there are.
    pub sandboxes: u64,
    /// How many execs.
    pub execs: u64,
    /// How many events.
    pub events: u64,
    /// The version of its schema.
    pub version: u32,
    /// What tells it from every other; older versions have none.
    pub identity: Option<StoreIdentity>,
    /// The position of its newest event: it only rises.
    pub position: u64,
    /// Whether its rows have checksums, and all of them were compared.
    pub checksums: bool,
    /// Which events the home has seen and the store lacks.
    pub missing: Option<MissingEvents>,
    /// What is not as it has to be, a sentence each.
    pub violations: Vec<String>,
}

/// Events that are missing at the end of a store: those after a position, up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingEvents {
    /// The newest position that the store has.
    pub after: u64,
    /// The newest position that was flushed, as the marker of the home has it.
    pub until: u64,
}

/// Looks through a whole store, as it is at one moment; a daemon may work with it meanwhile.
pub fn check(path: &Path) -> Result<Report, StoreError> {
    check_with_marker(path, None)
}

/// The same, and with the marker of its home also whether it has all that was flushed there.
pub fn check_with_marker(path: &Path, home_mark: Option<&Path>) -> Result<Report, StoreError> {
    require_regular(path).map_err(|error| StoreError::file(path, error))?;
    // It is read before the store, which is never behind it then.
    let home = home_mark.map(MarkerRecord::read).transpose()?.flatten();
    loop {
        let store = Audit::open(path)?;
        let report = check_opened(&store, path, home.as_ref());
        // A daemon began to write it: what was read may be of two moments.
        if !(store.is_immutable() && log_of(path).exists()) {
            return report;
        }
    }
}

fn check_opened(store: &Audit, path: &Path, home: Option<&MarkerRecord>) -> Result<Report, StoreError> {
    let mut report = Report::default();
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
    report.violations.extend(store.loose()?);
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

// === impl Report ===

impl Report {
    /// Whether everything is as it has to be.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    fn check_sandbox(&mut self, store: &Audit, stored: &StoredSandbox, row: &Sandbox) -> Result<(), StoreError> {
        let trimmed = store.trimmed(stored)?;
        let mut history = History::new(store.is_incomplete(stored)?, trimmed.clone().unwrap_or_default());
        if let Err(error) = trimmed {
            history.complain(format!("what was trimmed of it cannot be read: {error}"));
        }
        for gap in store.gaps(stored)? {
            match gap {
                Ok((after, until)) => history.add_gap(after, until),
                Err(error) => history.complain(format!("a gap cannot be read: {error}")),
            }
        }
        store.events(stored, &row.id, |event| {
            self.events += 1;
            match event {
                Ok(event) => history.add(&event),
                Err(error) => history.complain(format!("an event cannot be read: {error}")),
            }
        })?;
        for exec in store.execs(stored)? {
            self.execs += 1;
            match exec {
                Ok(exec) => history.check_exec(&exec, row.state),
                Err(error) => history.complain(format!("an exec cannot be read: {error}")),
            }
        }
        let found = history.end(row, stored.ceiling);
        self.violations.extend(found.into_iter().map(|found| format!("sandbox {}: {found}", row.id)));
        Ok(())
    }
}
