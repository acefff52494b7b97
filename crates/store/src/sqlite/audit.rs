//! Reads a snapshot of a whole store for a check.

use std::path::Path;

use rusqlite::{Connection, Row};

use super::checksum::ChecksummedTable;
use super::inspect::StoreFacts;
use super::open::{ReadOnlyConnection, read_when_ready, recognize};
use super::rows::{self, CEILING};
use super::schema::{CHECKSUMS, TRIMMED};
use super::trim::{self, TrimmedHistory};
use crate::check::Violation;
use crate::{Event, Exec, Sandbox, SandboxId, Sequence, StoreError};

/// A read transaction over a store, which a daemon may use meanwhile.
pub(crate) struct Audit {
    connection: Connection,
    version: usize,
    is_immutable: bool,
}

/// The row of a sandbox, or why it cannot be read.
pub(crate) struct StoredSandbox {
    number: i64,
    pub(crate) row: Result<Sandbox, String>,
    pub(crate) ceiling: Sequence,
}

/// An exec, or why it cannot be read.
pub(crate) type StoredExec = Result<Exec, String>;

/// Recorded gaps in the sequences, or why they cannot be read.
pub(crate) type StoredGaps = Vec<Result<(Sequence, Sequence), String>>;

type ViolationOf = fn(String) -> Violation;

/// Queries for rows without an owner and ids without a reservation.
const DANGLING: &[(&str, ViolationOf)] = &[
    ("SELECT id FROM sandboxes EXCEPT SELECT id FROM reserved_sandboxes", |subject| Violation::SandboxNotReserved {
        subject,
    }),
    ("SELECT id FROM execs EXCEPT SELECT id FROM reserved_execs", |subject| Violation::ExecNotReserved { subject }),
    ("SELECT id FROM execs WHERE sandbox NOT IN (SELECT number FROM sandboxes)", |subject| {
        Violation::ExecWithoutSandbox { subject }
    }),
    ("SELECT position FROM events WHERE sandbox NOT IN (SELECT number FROM sandboxes)", |subject| {
        Violation::EventWithoutSandbox { subject }
    }),
    ("SELECT after FROM gaps WHERE sandbox NOT IN (SELECT number FROM sandboxes)", |subject| {
        Violation::GapWithoutSandbox { subject }
    }),
];

const DANGLING_TRIMMED: (&str, fn(String) -> Violation) =
    ("SELECT sandbox FROM trimmed WHERE sandbox NOT IN (SELECT number FROM sandboxes)", |subject| {
        Violation::TrimmedWithoutSandbox { subject }
    });

// === impl Audit ===

impl Audit {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        // A missing file is not an empty store.
        std::fs::metadata(path).map_err(|error| StoreError::file(path, error))?;
        read_when_ready(|| {
            let ReadOnlyConnection { connection, is_immutable } = ReadOnlyConnection::open(path)?;
            // The first read determines the snapshot.
            connection.execute_batch("BEGIN")?;
            let version = recognize(&connection, path)?;
            Ok(Self { connection, version, is_immutable })
        })
    }

    /// Whether there are no tables.
    pub(crate) fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.version == 0)
    }

    /// Whether the file was opened as immutable, because it had no write-ahead log.
    pub(crate) fn is_immutable(&self) -> bool {
        self.is_immutable
    }

    pub(crate) fn facts(&self) -> Result<StoreFacts, StoreError> {
        StoreFacts::read(&self.connection, self.version).map_err(StoreError::reading)
    }

    /// The result of SQLite's integrity check.
    pub(crate) fn integrity(&self) -> Result<Vec<String>, StoreError> {
        let mut statement = self.connection.prepare("PRAGMA integrity_check")?;
        let found: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        Ok(found.into_iter().filter(|line| line != "ok").collect())
    }

    /// Rows without an owner, and ids without a reservation.
    pub(crate) fn dangling(&self) -> Result<Vec<Violation>, StoreError> {
        let mut found = Vec::new();
        let trimmed = [DANGLING_TRIMMED].into_iter().filter(|_| self.version >= TRIMMED);
        for (sql, violation) in DANGLING.iter().copied().chain(trimmed) {
            let mut statement = self.connection.prepare(sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let subject =
                    row.get::<_, String>(0).or_else(|_| row.get::<_, i64>(0).map(|number| number.to_string()))?;
                found.push(violation(subject));
            }
        }
        Ok(found)
    }

    pub(crate) fn sandboxes(&self) -> Result<Vec<StoredSandbox>, StoreError> {
        let sql = format!("SELECT {} FROM sandboxes s ORDER BY id", rows::sandbox_columns(self.version));
        let mut statement = self.connection.prepare(&sql)?;
        let stored = |row: &Row<'_>| {
            Ok(StoredSandbox { number: row.get(0)?, row: readable(rows::sandbox(row)), ceiling: row.get(CEILING)? })
        };
        Ok(statement.query_map([], stored)?.collect::<Result<_, _>>()?)
    }

    /// The execs of a sandbox, in creation order.
    pub(crate) fn execs(&self, sandbox: &StoredSandbox) -> Result<Vec<StoredExec>, StoreError> {
        let columns = rows::exec_columns(self.version);
        let sql = format!(
            "SELECT {columns} FROM execs e JOIN sandboxes s ON s.number = e.sandbox WHERE s.number = ?1 ORDER BY e.number"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        Ok(statement.query_map([sandbox.number], |row| Ok(readable(rows::exec(row))))?.collect::<Result<_, _>>()?)
    }

    /// The recorded gaps in the sequences: exclusive start and inclusive end.
    pub(crate) fn gaps(&self, sandbox: &StoredSandbox) -> Result<StoredGaps, StoreError> {
        let columns = ChecksummedTable::Gaps.selected("g", self.version);
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT {columns} FROM gaps g WHERE g.sandbox = ?1"))?;
        let gap = |row: &Row<'_>| {
            Ok(readable(ChecksummedTable::Gaps.verify(row).and_then(|()| Ok((row.get(1)?, row.get(2)?)))))
        };
        Ok(statement.query_map([sandbox.number], gap)?.collect::<Result<_, _>>()?)
    }

    /// What retention removed of it.
    pub(crate) fn trimmed(&self, sandbox: &StoredSandbox) -> Result<Result<TrimmedHistory, String>, StoreError> {
        if self.version < TRIMMED {
            return Ok(Ok(TrimmedHistory::default()));
        }
        Ok(readable(trim::trimmed_history(&self.connection, sandbox.number)).map(Option::unwrap_or_default))
    }

    /// Whether a repair lost rows of it.
    pub(crate) fn is_incomplete(&self, sandbox: &StoredSandbox) -> Result<bool, StoreError> {
        if self.version < CHECKSUMS {
            return Ok(false);
        }
        let mut statement = self.connection.prepare_cached("SELECT 1 FROM incomplete_sandboxes WHERE number = ?1")?;
        Ok(statement.exists([sandbox.number])?)
    }

    /// Visits the events of a sandbox, in order.
    pub(crate) fn events(
        &self,
        sandbox: &StoredSandbox,
        id: &SandboxId,
        mut see: impl FnMut(Result<Event, String>),
    ) -> Result<(), StoreError> {
        let columns = rows::event_columns(self.version);
        let sql = format!("SELECT {columns} FROM events e WHERE e.sandbox = ?1 ORDER BY e.sequence");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([sandbox.number])?;
        while let Some(row) = rows.next()? {
            see(readable(rows::event(row, id.clone())));
        }
        Ok(())
    }
}

fn readable<T>(row: rusqlite::Result<T>) -> Result<T, String> {
    row.map_err(|error| match StoreError::from(error) {
        StoreError::Damaged { what } => what,
        StoreError::Database(error) => error.to_string(),
        error => error.to_string(),
    })
}
