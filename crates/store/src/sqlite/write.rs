//! Writes changes, each of them atomically.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::checksum::ChecksummedTable;
use super::rows::{EXECS, NOTHING, PHASE, SERVICE};
use crate::backend::AppliedChange;
use crate::{
    Change, Event, EventDetails, Exec, ExecChange, NewEvent, Sandbox, SandboxId, Sequence, StoreError, Timestamp,
};

/// The result of a change, and its sequences in use.
pub(super) struct WrittenChange {
    pub(super) applied: AppliedChange,
    /// No new event gets a sequence up to this one.
    pub(super) newest: Sequence,
    pub(super) ceiling: Sequence,
}

/// Why a change was not written.
pub(super) enum WriteError {
    /// The change is invalid; others of its batch may be valid.
    Refused(StoreError),
    /// The database failed.
    Broken(rusqlite::Error),
}

/// The columns of a sandbox that determine its sequences.
struct SequenceColumns {
    number: i64,
    last_sequence: Sequence,
    floor: Sequence,
    ceiling: Sequence,
    /// The timestamp of its newest event.
    latest: Option<i64>,
}

/// Writes one change of a batch, numbering its events from a position. A refused change leaves nothing behind.
pub(super) fn apply(
    connection: &Connection,
    change: Change,
    margin: Option<Sequence>,
    position: &mut u64,
) -> rusqlite::Result<Result<WrittenChange, StoreError>> {
    run(connection, "SAVEPOINT change")?;
    let before = *position;
    let written = match write(connection, change, margin, position) {
        Ok(written) => Ok(written),
        Err(WriteError::Broken(error)) => return Err(error),
        Err(WriteError::Refused(refusal)) => {
            *position = before;
            run(connection, "ROLLBACK TO change")?;
            Err(refusal)
        }
    };
    run(connection, "RELEASE change")?;
    Ok(written)
}

/// Removes everything of a sandbox except the id reservations. Returns whether it existed.
pub(super) fn purge(connection: &Connection, sandbox: &SandboxId) -> rusqlite::Result<bool> {
    let number: Option<i64> = connection
        .query_row("DELETE FROM sandboxes WHERE id = ?1 RETURNING number", [sandbox.as_str()], |row| row.get(0))
        .optional()?;
    let Some(number) = number else { return Ok(false) };
    for sql in [
        "DELETE FROM events WHERE sandbox = ?1",
        "DELETE FROM execs WHERE sandbox = ?1",
        "DELETE FROM gaps WHERE sandbox = ?1",
        "DELETE FROM trimmed WHERE sandbox = ?1",
        "DELETE FROM incomplete_sandboxes WHERE number = ?1",
    ] {
        connection.execute(sql, [number])?;
    }
    Ok(true)
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn write(
    connection: &Connection,
    change: Change,
    margin: Option<Sequence>,
    position: &mut u64,
) -> Result<WrittenChange, WriteError> {
    let Change { mut sandbox, new, reuses_id, execs, events, .. } = change;
    let count = events.len() as Sequence;
    let columns = if new {
        insert(connection, &mut sandbox, reuses_id, count, margin)?
    } else {
        update(connection, &mut sandbox, count, margin)?
    };
    let mut changed = Vec::with_capacity(execs.len());
    for exec in execs {
        changed.push(Arc::new(write_exec(connection, &sandbox.id, columns.number, exec)?));
    }
    let mut written = Vec::with_capacity(events.len());
    let mut latest = columns.latest.map(Timestamp);
    for (sequence, event) in (columns.last_sequence - count + 1..).zip(events) {
        *position += 1;
        let NewEvent { kind, at, state, details } = event;
        // Timestamps never decrease, even if the clock was set back.
        let at = latest.map_or(at, |latest| latest.max(at));
        latest = Some(at);
        let event = Event { position: *position, sandbox: sandbox.id.clone(), sequence, kind, at, state, details };
        write_event(connection, columns.number, &event)?;
        written.push(Arc::new(event));
    }
    let newest = columns.last_sequence.max(columns.floor);
    let applied = AppliedChange { sandbox: Arc::new(sandbox), execs: changed, events: written };
    Ok(WrittenChange { applied, newest, ceiling: columns.ceiling })
}

fn insert(
    connection: &Connection,
    sandbox: &mut Sandbox,
    reuses_id: bool,
    count: u64,
    margin: Option<u64>,
) -> Result<SequenceColumns, WriteError> {
    let sql = "INSERT INTO reserved_sandboxes VALUES (?1) ON CONFLICT DO NOTHING";
    let has_row = || connection.prepare_cached("SELECT 1 FROM sandboxes WHERE id = ?1")?.exists([sandbox.id.as_str()]);
    if !reserve(connection, sql, sandbox.id.as_str())? && (!reuses_id || has_row()?) {
        return Err(WriteError::Refused(StoreError::SandboxIdTaken));
    }
    if sandbox.last_sequence != 0 {
        return Err(WriteError::Refused(StoreError::Stale));
    }
    let number = next_number(connection, "SELECT ifnull(max(number), 0) + 1 FROM sandboxes")?;
    let ceiling = count + margin.unwrap_or(0);
    let columns = SequenceColumns { number, last_sequence: count, floor: 0, ceiling, latest: None };
    static SQL: LazyLock<String> = LazyLock::new(|| ChecksummedTable::Sandboxes.insert());
    write_sandbox(connection, &SQL, sandbox, &columns)?;
    Ok(columns)
}

fn update(
    connection: &Connection,
    sandbox: &mut Sandbox,
    count: u64,
    margin: Option<u64>,
) -> Result<SequenceColumns, WriteError> {
    let sql = "SELECT number, last_sequence, floor, ceiling,
            (SELECT at FROM events e WHERE e.sandbox = s.number AND e.sequence = s.last_sequence)
        FROM sandboxes s WHERE id = ?1";
    let columns = |row: &Row<'_>| {
        let (number, last_sequence, floor) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(SequenceColumns { number, last_sequence, floor, ceiling: row.get(3)?, latest: row.get(4)? })
    };
    let found = connection.prepare_cached(sql)?.query_row([sandbox.id.as_str()], columns).optional()?;
    let mut columns = found.ok_or(WriteError::Refused(StoreError::Unknown))?;
    if columns.last_sequence != sandbox.last_sequence {
        return Err(WriteError::Refused(StoreError::Stale));
    }
    let newest = columns.last_sequence.max(columns.floor) + count;
    if count > 0 {
        columns.last_sequence = newest;
    }
    if let Some(margin) = margin {
        columns.ceiling = newest + margin;
    }
    // The id is indexed, and does not change.
    static SQL: LazyLock<String> = LazyLock::new(|| ChecksummedTable::Sandboxes.update(2));
    write_sandbox(connection, &SQL, sandbox, &columns)?;
    Ok(columns)
}

fn write_sandbox(
    connection: &Connection,
    sql: &str,
    sandbox: &mut Sandbox,
    columns: &SequenceColumns,
) -> Result<(), WriteError> {
    sandbox.last_sequence = columns.last_sequence;
    let values = params![
        columns.number,
        sandbox.id.as_str(),
        sandbox.owner,
        sandbox.state.number(),
        sandbox.desired.number(),
        sandbox.reason,
        sandbox.incarnation,
        sandbox.disk,
        int(sandbox.journal)?,
        sandbox.idle_ms.map(int).transpose()?,
        sandbox.created_at.0,
        sandbox.state_changed_at.0,
        sandbox.active_at.0,
        sandbox.error_code,
        sandbox.error_message,
        int(sandbox.last_sequence)?,
        int(columns.floor)?,
        int(columns.ceiling)?,
        sandbox.image,
        json(&sandbox.labels)?,
        sandbox.spec,
    ];
    execute(connection, sql, ChecksummedTable::Sandboxes, values).map(|_| ())
}

/// Writes a row with its checksum; returns the number of affected rows.
fn execute(
    connection: &Connection,
    sql: &str,
    table: ChecksummedTable,
    values: &[&dyn ToSql],
) -> Result<usize, WriteError> {
    let checksum = table.checksum(values)?;
    let all = values.iter().copied().chain([&checksum as &dyn ToSql]);
    Ok(connection.prepare_cached(sql)?.execute(params_from_iter(all))?)
}

/// The number of the next row, which must be known for the checksum.
fn next_number(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// Reserves an id forever; returns whether it was free.
fn reserve(connection: &Connection, sql: &str, id: &str) -> Result<bool, WriteError> {
    Ok(connection.prepare_cached(sql)?.execute([id])? == 1)
}

fn write_exec(
    connection: &Connection,
    sandbox: &SandboxId,
    number: i64,
    change: ExecChange,
) -> Result<Exec, WriteError> {
    static INSERT: LazyLock<String> = LazyLock::new(|| ChecksummedTable::Execs.insert());
    // The id and the sandbox are indexed, and do not change.
    static UPDATE: LazyLock<String> = LazyLock::new(|| ChecksummedTable::Execs.update(3));
    let (exec, key, sql) = match change {
        ExecChange::New(exec) => {
            let free = "INSERT INTO reserved_execs VALUES (?1) ON CONFLICT DO NOTHING";
            if !reserve(connection, free, exec.id.as_str())? {
                return Err(WriteError::Refused(StoreError::ExecIdTaken));
            }
            let key = next_number(connection, "SELECT ifnull(max(number), 0) + 1 FROM execs")?;
            (exec, Some(key), &*INSERT)
        }
        ExecChange::Known(exec) => {
            let mut known = connection.prepare_cached("SELECT number FROM execs WHERE id = ?1 AND sandbox = ?2")?;
            let key = known.query_row(params![exec.id.as_str(), number], |row| row.get(0)).optional()?;
            (exec, key, &*UPDATE)
        }
    };
    let Some(key) = key.filter(|_| exec.sandbox == *sandbox) else {
        return Err(WriteError::Refused(StoreError::Unknown));
    };
    let values = params![
        key,
        exec.id.as_str(),
        number,
        exec.state.number(),
        exec.cancelling,
        json(&exec.command)?,
        exec.cwd,
        json(&exec.env)?,
        exec.options,
        exec.exit_code,
        exec.error_code,
        exec.error_message,
        bytes(&exec.stdout_log),
        bytes(&exec.stderr_log),
        exec.created_at.0,
        exec.ended_at.map(|at| at.0),
    ];
    execute(connection, sql, ChecksummedTable::Execs, values)?;
    Ok(exec)
}

fn write_event(connection: &Connection, sandbox: i64, event: &Event) -> Result<(), WriteError> {
    let (about, subject, exec_state, exit_code, error_code, error_message, reason) = match &event.details {
        EventDetails::None => (NOTHING, "", None, None, "", "", ""),
        EventDetails::Phase { phase, error_code, error_message, reason } => {
            (PHASE, &**phase, None, None, &**error_code, &**error_message, &**reason)
        }
        EventDetails::Exec { exec, state, exit_code, error_code, error_message } => {
            (EXECS, exec.as_str(), Some(state.number()), Some(*exit_code), &**error_code, &**error_message, "")
        }
        EventDetails::Service { name, error_code, error_message } => {
            (SERVICE, &**name, None, None, &**error_code, &**error_message, "")
        }
    };
    static SQL: LazyLock<String> = LazyLock::new(|| ChecksummedTable::Events.insert());
    let values = params![
        int(event.position)?,
        sandbox,
        int(event.sequence)?,
        event.kind.number(),
        event.at.0,
        event.state.number(),
        about,
        subject,
        exec_state,
        exit_code,
        error_code,
        error_message,
        reason,
    ];
    execute(connection, &SQL, ChecksummedTable::Events, values).map(|_| ())
}

/// SQLite integers are signed.
fn int(number: u64) -> Result<i64, WriteError> {
    i64::try_from(number).map_err(refuse)
}

fn json(value: &impl serde::Serialize) -> Result<String, WriteError> {
    serde_json::to_string(value).map_err(refuse)
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// A value that cannot be stored fails only its own change.
fn refuse(error: impl std::error::Error + Send + Sync + 'static) -> WriteError {
    WriteError::Refused(StoreError::database(error))
}

// === impl WriteError ===

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(error)
    }
}
