//! What is written: one change after the other, each of them wholly or not at all.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::checksum::Table;
use super::rows::{EXECS, NOTHING, PHASE, SERVICE};
use crate::backend::Applied;
use crate::{Change, Details, Event, Exec, ExecChange, NewEvent, Sandbox, SandboxId, Sequence, StoreError, Timestamp};

/// What a change made true, and what a power cut can tell of it.
pub(super) struct Written {
    pub(super) applied: Applied,
    /// No sequence up to here will be given any more.
    pub(super) newest: Sequence,
    pub(super) ceiling: Sequence,
}

/// Why a change is not made.
pub(super) enum Failed {
    /// It may not be; the others of its batch may.
    Refused(StoreError),
    /// Nothing can be written.
    Broken(rusqlite::Error),
}

/// What the row of a sandbox says of its sequences.
struct Place {
    number: i64,
    last_sequence: Sequence,
    floor: Sequence,
    ceiling: Sequence,
    /// When its newest event happened.
    latest: Option<i64>,
}

/// Writes one change of a batch, and counts its events on from a position. When it is refused, nothing of it is left.
pub(super) fn one(
    connection: &Connection,
    change: Change,
    margin: Option<Sequence>,
    position: &mut u64,
) -> rusqlite::Result<Result<Written, StoreError>> {
    run(connection, "SAVEPOINT change")?;
    let before = *position;
    let written = match write(connection, change, margin, position) {
        Ok(written) => Ok(written),
        Err(Failed::Broken(error)) => return Err(error),
        Err(Failed::Refused(refusal)) => {
            *position = before;
            run(connection, "ROLLBACK TO change")?;
            Err(refusal)
        }
    };
    run(connection, "RELEASE change")?;
    Ok(written)
}

/// Removes all of a sandbox but the reservations. Says whether there was one.
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
) -> Result<Written, Failed> {
    let Change { mut sandbox, new, execs, events, .. } = change;
    let count = events.len() as Sequence;
    let place = if new {
        insert(connection, &mut sandbox, count, margin)?
    } else {
        update(connection, &mut sandbox, count, margin)?
    };
    let mut changed = Vec::with_capacity(execs.len());
    for exec in execs {
        changed.push(Arc::new(write_exec(connection, &sandbox.id, place.number, exec)?));
    }
    let mut happened = Vec::with_capacity(events.len());
    let mut latest = place.latest.map(Timestamp);
    for (sequence, event) in (place.last_sequence - count + 1..).zip(events) {
        *position += 1;
        let NewEvent { kind, at, state, details } = event;
        // A clock that was set back does not make a later event an earlier one.
        let at = latest.map_or(at, |latest| latest.max(at));
        latest = Some(at);
        let event = Event { position: *position, sandbox: sandbox.id.clone(), sequence, kind, at, state, details };
        write_event(connection, place.number, &event)?;
        happened.push(Arc::new(event));
    }
    let newest = place.last_sequence.max(place.floor);
    let applied = Applied { sandbox: Arc::new(sandbox), execs: changed, events: happened };
    Ok(Written { applied, newest, ceiling: place.ceiling })
}

fn insert(connection: &Connection, sandbox: &mut Sandbox, count: u64, margin: Option<u64>) -> Result<Place, Failed> {
    if !reserve(connection, "INSERT INTO reserved_sandboxes VALUES (?1) ON CONFLICT DO NOTHING", sandbox.id.as_str())? {
        return Err(Failed::Refused(StoreError::SandboxIdTaken));
    }
    if sandbox.last_sequence != 0 {
        return Err(Failed::Refused(StoreError::Stale));
    }
    let number = next_number(connection, "SELECT ifnull(max(number), 0) + 1 FROM sandboxes")?;
    let ceiling = count + margin.unwrap_or(0);
    let place = Place { number, last_sequence: count, floor: 0, ceiling, latest: None };
    static SQL: LazyLock<String> = LazyLock::new(|| Table::Sandboxes.insert());
    write_sandbox(connection, &SQL, sandbox, &place)?;
    Ok(place)
}

fn update(connection: &Connection, sandbox: &mut Sandbox, count: u64, margin: Option<u64>) -> Result<Place, Failed> {
    let sql = "SELECT number, last_sequence, floor, ceiling,
            (SELECT at FROM events e WHERE e.sandbox = s.number AND e.sequence = s.last_sequence)
        FROM sandboxes s WHERE id = ?1";
    let place = |row: &Row<'_>| {
        let (number, last_sequence, floor) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Place { number, last_sequence, floor, ceiling: row.get(3)?, latest: row.get(4)? })
    };
    let found = connection.prepare_cached(sql)?.query_row([sandbox.id.as_str()], place).optional()?;
    let mut place = found.ok_or(Failed::Refused(StoreError::Unknown))?;
    if place.last_sequence != sandbox.last_sequence {
        return Err(Failed::Refused(StoreError::Stale));
    }
    let newest = place.last_sequence.max(place.floor) + count;
    if count > 0 {
        place.last_sequence = newest;
    }
    if let Some(margin) = margin {
        place.ceiling = newest + margin;
    }
    // The id is indexed, and stays.
    static SQL: LazyLock<String> = LazyLock::new(|| Table::Sandboxes.update(2));
    write_sandbox(connection, &SQL, sandbox, &place)?;
    Ok(place)
}

fn write_sandbox(connection: &Connection, sql: &str, sandbox: &mut Sandbox, place: &Place) -> Result<(), Failed> {
    sandbox.last_sequence = place.last_sequence;
    let values = params![
        place.number,
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
        int(place.floor)?,
        int(place.ceiling)?,
        sandbox.image,
        json(&sandbox.labels)?,
        sandbox.spec,
    ];
    execute(connection, sql, Table::Sandboxes, values).map(|_| ())
}

/// Writes a row with its checksum; returns how many rows that were.
fn execute(connection: &Connection, sql: &str, table: Table, values: &[&dyn ToSql]) -> Result<usize, Failed> {
    let checksum = table.checksum(values)?;
    let all = values.iter().copied().chain([&checksum as &dyn ToSql]);
    Ok(connection.prepare_cached(sql)?.execute(params_from_iter(all))?)
}

/// The number of the next row: it is part of the checksum, so it has to be known before.
fn next_number(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// Takes an id, for ever; says whether it was free.
fn reserve(connection: &Connection, sql: &str, id: &str) -> Result<bool, Failed> {
    Ok(connection.prepare_cached(sql)?.execute([id])? == 1)
}

fn write_exec(connection: &Connection, sandbox: &SandboxId, number: i64, change: ExecChange) -> Result<Exec, Failed> {
    static INSERT: LazyLock<String> = LazyLock::new(|| Table::Execs.insert());
    // The id and the sandbox are indexed, and stay.
    static UPDATE: LazyLock<String> = LazyLock::new(|| Table::Execs.update(3));
    let (exec, key, sql) = match change {
        ExecChange::New(exec) => {
            let free = "INSERT INTO reserved_execs VALUES (?1) ON CONFLICT DO NOTHING";
            if !reserve(connection, free, exec.id.as_str())? {
                return Err(Failed::Refused(StoreError::ExecIdTaken));
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
    let Some(key) = key.filter(|_| exec.sandbox == *sandbox) else { return Err(Failed::Refused(StoreError::Unknown)) };
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
    execute(connection, sql, Table::Execs, values)?;
    Ok(exec)
}

fn write_event(connection: &Connection, sandbox: i64, event: &Event) -> Result<(), Failed> {
    let (about, subject, exec_state, exit_code, error_code, error_message, reason) = match &event.details {
        Details::None => (NOTHING, "", None, None, "", "", ""),
        Details::Phase { phase, error_code, error_message, reason } => {
            (PHASE, &**phase, None, None, &**error_code, &**error_message, &**reason)
        }
        Details::Exec { exec, state, exit_code, error_code, error_message } => {
            (EXECS, exec.as_str(), Some(state.number()), Some(*exit_code), &**error_code, &**error_message, "")
        }
        Details::Service { name, error_code, error_message } => {
            (SERVICE, &**name, None, None, &**error_code, &**error_message, "")
        }
    };
    static SQL: LazyLock<String> = LazyLock::new(|| Table::Events.insert());
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
    execute(connection, &SQL, Table::Events, values).map(|_| ())
}

/// SQLite's numbers have a sign.
fn int(number: u64) -> Result<i64, Failed> {
    i64::try_from(number).map_err(refuse)
}

fn json(value: &impl serde::Serialize) -> Result<String, Failed> {
    serde_json::to_string(value).map_err(refuse)
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// A value that cannot be stored is the fault of its change alone.
fn refuse(error: impl std::error::Error + Send + Sync + 'static) -> Failed {
    Failed::Refused(StoreError::database(error))
}

// === impl Failed ===

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(error)
    }
}
