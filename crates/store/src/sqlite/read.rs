//! Reads: everything at the start, then what is not cached.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};

use super::open::open_to_read;
use super::rows::{self, CEILING, FLOOR};
use super::schema::NEWEST;
use super::trim;
use crate::backend::{EventRange, LoadedRows, Reader, SequenceBounds};
use crate::{Event, Exec, ExecId, RetentionLimit, SandboxId, SandboxState, Sequence, StoreError};

/// How many idle connections are kept.
const KEPT: usize = 4;

/// A pool of read-only connections.
#[derive(Debug)]
pub(crate) struct SqliteReader {
    path: PathBuf,
    kept: Mutex<Vec<Connection>>,
    /// Declared last: the file must be closed after all connections.
    _index: Option<Arc<File>>,
}

/// The loaded rows, and for each sandbox the newest sequence in use and the ceiling.
pub(super) struct LoadedWithSequences {
    pub(super) loaded: LoadedRows,
    pub(super) sequences: Vec<(SandboxId, Sequence, Sequence)>,
}

pub(super) fn load(connection: &Connection) -> rusqlite::Result<LoadedWithSequences> {
    let mut loaded = LoadedRows::default();
    let mut sequences = Vec::new();
    let mut statement = connection.prepare(&format!("SELECT {} FROM sandboxes s", rows::sandbox_columns(NEWEST)))?;
    let mut found = statement.query([])?;
    let any_trimmed = connection.prepare("SELECT 1 FROM trimmed")?.exists([])?;
    while let Some(row) = found.next()? {
        let (sandbox, floor) = (rows::sandbox(row)?, row.get(FLOOR)?);
        if sandbox.state != SandboxState::Deleted {
            sequences.push((sandbox.id.clone(), sandbox.last_sequence.max(floor), row.get(CEILING)?));
        }
        let trimmed = if any_trimmed { trim::trimmed_history(connection, row.get(0)?)? } else { None };
        let bounds = SequenceBounds { floor, trimmed: trimmed.unwrap_or_default().events };
        loaded.sandboxes.push((sandbox, bounds));
    }
    let exec = rows::exec_columns(NEWEST);
    let running = format!("SELECT {exec} FROM execs e JOIN sandboxes s ON s.number = e.sandbox WHERE e.state = 1");
    loaded.running = connection.prepare(&running)?.query_map([], rows::exec)?.collect::<Result<_, _>>()?;
    loaded.position = position(connection)?;
    Ok(LoadedWithSequences { loaded, sequences })
}

/// The newest position, whether its event still exists or not.
pub(super) fn position(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'events'";
    Ok(connection.query_row(sql, [], |row| row.get(0)).optional()?.unwrap_or(0))
}

// === impl SqliteReader ===

impl SqliteReader {
    /// Reads the store that this process writes, and keeps its WAL index open.
    pub(crate) fn new(path: &Path, index: Option<Arc<File>>) -> Self {
        Self { path: path.into(), kept: Mutex::new(Vec::new()), _index: index }
    }

    fn with<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = kept().pop();
        let connection = match connection {
            Some(connection) => connection,
            None => open_to_read(&self.path)?,
        };
        let found = read(&connection).map_err(StoreError::reading)?;
        let mut kept = kept();
        if kept.len() < KEPT {
            kept.push(connection);
        }
        Ok(found)
    }
}

impl Reader for SqliteReader {
    fn exec(&self, id: &ExecId) -> Result<Option<Exec>, StoreError> {
        let columns = rows::exec_columns(NEWEST);
        let sql = format!("SELECT {columns} FROM execs e JOIN sandboxes s ON s.number = e.sandbox WHERE e.id = ?1");
        self.with(|connection| connection.prepare_cached(&sql)?.query_row([id.as_str()], rows::exec).optional())
    }

    fn execs(&self, sandbox: &SandboxId) -> Result<Vec<Exec>, StoreError> {
        let columns = rows::exec_columns(NEWEST);
        let sql = format!(
            "SELECT {columns} FROM execs e JOIN sandboxes s ON s.number = e.sandbox WHERE s.id = ?1 ORDER BY e.number"
        );
        self.with(|connection| connection.prepare_cached(&sql)?.query_map([sandbox.as_str()], rows::exec)?.collect())
    }

    fn events(&self, sandbox: &SandboxId, range: EventRange) -> Result<Vec<Event>, StoreError> {
        let columns = rows::event_columns(NEWEST);
        let sql = format!(
            "SELECT {columns} FROM events e WHERE e.sandbox = (SELECT number FROM sandboxes WHERE id = ?1)
                AND e.sequence > ?2 AND e.sequence <= ?3 ORDER BY e.sequence LIMIT ?4"
        );
        self.with(|connection| {
            let values = params![sandbox.as_str(), range.after, range.until, range.most];
            connection.prepare_cached(&sql)?.query_map(values, |row| rows::event(row, sandbox.clone()))?.collect()
        })
    }

    fn all_events(&self, range: EventRange) -> Result<Vec<Event>, StoreError> {
        let columns = rows::event_columns(NEWEST);
        // A cross join keeps the order of the tables: events first.
        let sql = format!(
            "SELECT {columns}, s.id FROM events e CROSS JOIN sandboxes s ON s.number = e.sandbox
                WHERE e.position > ?1 AND e.position <= ?2 ORDER BY e.position LIMIT ?3"
        );
        self.with(|connection| {
            let values = params![range.after, range.until, range.most];
            connection.prepare_cached(&sql)?.query_map(values, rows::event_of_any)?.collect()
        })
    }

    fn overdue_events(&self, keep: RetentionLimit) -> Result<Vec<(SandboxId, Sequence)>, StoreError> {
        self.with(|connection| trim::overdue_events(connection, keep))
    }

    fn overdue_execs(&self, keep: RetentionLimit, most: usize) -> Result<Vec<(SandboxId, ExecId)>, StoreError> {
        self.with(|connection| trim::overdue_execs(connection, keep, most))
    }
}
