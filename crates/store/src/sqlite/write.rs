//! What is written: one change after the other, each of them wholly or not at all.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::rows::{EXECS, NOTHING, PHASE, SERVICE};
use crate::backend::Applied;
use crate::{Change, Details, Event, Exec, ExecChange, NewEvent, Sandbox, SandboxId, Sequence, StoreError};

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

/// The row of a sandbox after a change.
struct Place {
    number: i64,
    last_sequence: Sequence,
    floor: Sequence,
    ceiling: Sequence,
}

/// Writes one change of a batch. When it is refused, nothing of it is left.
pub(super) fn one(
    connection: &Connection,
    change: Change,
    margin: Option<Sequence>,
) -> rusqlite::Result<Result<Written, StoreError>> {
    run(connection, "SAVEPOINT change")?;
    let written = match write(connection, change, margin) {
        Ok(written) => Ok(written),
        Err(Failed::Broken(error)) => return Err(error),
        Err(Failed::Refused(refusal)) => {
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
    ] {
        connection.execute(sql, [number])?;
    }
    Ok(true)
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn write(connection: &Connection, change: Change, margin: Option<Sequence>) -> Result<Written, Failed> {
    let Change { mut sandbox, new, execs, events, .. } = change;
    let count = events.len() as Sequence;
    let place =
        if new { insert(connection, &sandbox, count, margin)? } else { update(connection, &sandbox, count, margin)? };
    sandbox.last_sequence = place.last_sequence;
    let mut changed = Vec::with_capacity(execs.len());
    for exec in execs {
        changed.push(Arc::new(write_exec(connection, &sandbox.id, place.number, exec)?));
    }
    let mut happened = Vec::with_capacity(events.len());
    for (sequence, event) in (place.last_sequence - count + 1..).zip(events) {
        let position = write_event(connection, place.number, sequence, &event)?;
        let NewEvent { kind, at, state, details } = event;
        happened.push(Arc::new(Event { position, sandbox: sandbox.id.clone(), sequence, kind, at, state, details }));
    }
    let newest = place.last_sequence.max(place.floor);
    let applied = Applied { sandbox: Arc::new(sandbox), execs: changed, events: happened };
    Ok(Written { applied, newest, ceiling: place.ceiling })
}

const INSERT: &str = "INSERT INTO sandboxes (id, owner, state, desired, reason, incarnation, disk, journal, idle_ms,
        created_at, state_changed_at, active_at, error_code, error_message, image, labels, spec,
        last_sequence, floor, ceiling)
    VALUES (:id, :owner, :state, :desired, :reason, :incarnation, :disk, :journal, :idle_ms,
        :created_at, :state_changed_at, :active_at, :error_code, :error_message, :image, :labels, :spec,
        :last + :count, 0, :count + ifnull(:margin, 0))
    RETURNING number, last_sequence, floor, ceiling";

const UPDATE: &str = "UPDATE sandboxes SET owner = :owner, state = :state, desired = :desired, reason = :reason,
        incarnation = :incarnation, disk = :disk, journal = :journal, idle_ms = :idle_ms, created_at = :created_at,
        state_changed_at = :state_changed_at, active_at = :active_at, error_code = :error_code,
        error_message = :error_message, image = :image, labels = :labels, spec = :spec,
        last_sequence = iif(:count > 0, max(last_sequence, floor) + :count, last_sequence),
        ceiling = iif(:margin IS NULL, ceiling, max(last_sequence, floor) + :count + :margin)
    WHERE id = :id AND last_sequence = :last
    RETURNING number, last_sequence, floor, ceiling";

fn insert(connection: &Connection, sandbox: &Sandbox, count: u64, margin: Option<u64>) -> Result<Place, Failed> {
    if !reserve(connection, "INSERT INTO reserved_sandboxes VALUES (?1) ON CONFLICT DO NOTHING", sandbox.id.as_str())? {
        return Err(Failed::Refused(StoreError::SandboxIdTaken));
    }
    if sandbox.last_sequence != 0 {
        return Err(Failed::Refused(StoreError::Stale));
    }
    put(connection, INSERT, sandbox, count, margin)?.ok_or(Failed::Refused(StoreError::Unknown))
}

fn update(connection: &Connection, sandbox: &Sandbox, count: u64, margin: Option<u64>) -> Result<Place, Failed> {
    if let Some(place) = put(connection, UPDATE, sandbox, count, margin)? {
        return Ok(place);
    }
    let mut known = connection.prepare_cached("SELECT 1 FROM sandboxes WHERE id = ?1")?;
    let known = known.exists([sandbox.id.as_str()])?;
    Err(Failed::Refused(if known { StoreError::Stale } else { StoreError::Unknown }))
}

fn put(
    connection: &Connection,
    sql: &str,
    sandbox: &Sandbox,
    count: u64,
    margin: Option<u64>,
) -> Result<Option<Place>, Failed> {
    let values = named_params! {
        ":id": sandbox.id.as_str(),
        ":owner": sandbox.owner,
        ":state": sandbox.state.number(),
        ":desired": sandbox.desired.number(),
        ":reason": sandbox.reason,
        ":incarnation": sandbox.incarnation,
        ":disk": sandbox.disk,
        ":journal": int(sandbox.journal)?,
        ":idle_ms": sandbox.idle_ms.map(int).transpose()?,
        ":created_at": sandbox.created_at.0,
        ":state_changed_at": sandbox.state_changed_at.0,
        ":active_at": sandbox.active_at.0,
        ":error_code": sandbox.error_code,
        ":error_message": sandbox.error_message,
        ":image": sandbox.image,
        ":labels": json(&sandbox.labels)?,
        ":spec": sandbox.spec,
        ":last": int(sandbox.last_sequence)?,
        ":count": int(count)?,
        ":margin": margin.map(int).transpose()?,
    };
    let place = |row: &rusqlite::Row<'_>| {
        Ok(Place { number: row.get(0)?, last_sequence: row.get(1)?, floor: row.get(2)?, ceiling: row.get(3)? })
    };
    Ok(connection.prepare_cached(sql)?.query_row(values, place).optional()?)
}

/// Takes an id, for ever; says whether it was free.
fn reserve(connection: &Connection, sql: &str, id: &str) -> Result<bool, Failed> {
    Ok(connection.prepare_cached(sql)?.execute([id])? == 1)
}

fn write_exec(connection: &Connection, sandbox: &SandboxId, number: i64, change: ExecChange) -> Result<Exec, Failed> {
    let (exec, sql) = match change {
        ExecChange::New(exec) => {
            let free = "INSERT INTO reserved_execs VALUES (?1) ON CONFLICT DO NOTHING";
            if !reserve(connection, free, exec.id.as_str())? {
                return Err(Failed::Refused(StoreError::ExecIdTaken));
            }
            let sql = "INSERT INTO execs (id, sandbox, state, cancelling, command, cwd, env, options, exit_code,
                    error_code, error_message, stdout_log, stderr_log, created_at, ended_at)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
            (exec, sql)
        }
        ExecChange::Known(exec) => {
            let sql = "UPDATE execs SET state = ?3, cancelling = ?4, command = ?5, cwd = ?6, env = ?7, options = ?8,
                    exit_code = ?9, error_code = ?10, error_message = ?11, stdout_log = ?12, stderr_log = ?13,
                    created_at = ?14, ended_at = ?15
                WHERE id = ?1 AND sandbox = ?2";
            (exec, sql)
        }
    };
    let values = params![
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
    let written = exec.sandbox == *sandbox && connection.prepare_cached(sql)?.execute(values)? == 1;
    if written { Ok(exec) } else { Err(Failed::Refused(StoreError::Unknown)) }
}

fn write_event(connection: &Connection, sandbox: i64, sequence: Sequence, event: &NewEvent) -> Result<u64, Failed> {
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
    let sql =
        "INSERT INTO events (sandbox, sequence, kind, at, state, about, subject, exec_state, exit_code, error_code,
            error_message, reason)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    let values = params![
        sandbox,
        int(sequence)?,
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
    let position = connection.prepare_cached(sql)?.insert(values)?;
    u64::try_from(position).map_err(refuse)
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
