//! Rows as what they stand for, and back.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rusqlite::types::Type;
use rusqlite::{Error as SqlError, Result, Row};

use crate::{
    BadId, Desired, Details, Event, EventType, Exec, ExecId, ExecState, Sandbox, SandboxId, SandboxState, Timestamp,
};

/// The columns of a sandbox, in the order in which they are read.
pub(super) const SANDBOX: &str = "id, owner, state, desired, reason, incarnation, disk, journal, idle_ms, created_at, \
    state_changed_at, active_at, error_code, error_message, last_sequence, image, labels, spec";

/// The columns of an exec `e` of a sandbox `s`.
pub(super) const EXEC: &str = "e.id, s.id, e.state, e.cancelling, e.command, e.cwd, e.env, e.options, e.exit_code, \
    e.error_code, e.error_message, e.stdout_log, e.stderr_log, e.created_at, e.ended_at";

/// The columns of an event `e`; the sandbox is known, or comes last.
pub(super) const EVENT: &str = "e.position, e.sequence, e.kind, e.at, e.state, e.about, e.subject, e.exec_state, \
    e.exit_code, e.error_code, e.error_message, e.reason";

/// What the details of an event are about.
pub(super) const NOTHING: u8 = 0;
pub(super) const PHASE: u8 = 1;
pub(super) const EXECS: u8 = 2;
pub(super) const SERVICE: u8 = 3;

/// A value that no store of ours has.
#[derive(Debug, thiserror::Error)]
#[error("no such value is ever stored: {0}")]
struct Impossible(i64);

pub(super) fn sandbox(row: &Row<'_>) -> Result<Sandbox> {
    Ok(Sandbox {
        id: id(row, 0, SandboxId::qualified)?,
        owner: row.get(1)?,
        state: numbered(row, 2, SandboxState::from_number)?,
        desired: numbered(row, 3, Desired::from_number)?,
        reason: row.get(4)?,
        incarnation: row.get(5)?,
        disk: row.get(6)?,
        journal: row.get(7)?,
        idle_ms: row.get(8)?,
        created_at: Timestamp(row.get(9)?),
        state_changed_at: Timestamp(row.get(10)?),
        active_at: Timestamp(row.get(11)?),
        error_code: row.get(12)?,
        error_message: row.get(13)?,
        last_sequence: row.get(14)?,
        image: row.get(15)?,
        labels: json(row, 16)?,
        spec: row.get(17)?,
    })
}

pub(super) fn exec(row: &Row<'_>) -> Result<Exec> {
    Ok(Exec {
        id: id(row, 0, ExecId::qualified)?,
        sandbox: id(row, 1, SandboxId::qualified)?,
        state: numbered(row, 2, ExecState::from_number)?,
        cancelling: row.get(3)?,
        command: json(row, 4)?,
        cwd: row.get(5)?,
        env: json(row, 6)?,
        options: row.get(7)?,
        exit_code: row.get(8)?,
        error_code: row.get(9)?,
        error_message: row.get(10)?,
        stdout_log: OsString::from_vec(row.get(11)?).into(),
        stderr_log: OsString::from_vec(row.get(12)?).into(),
        created_at: Timestamp(row.get(13)?),
        ended_at: row.get::<_, Option<i64>>(14)?.map(Timestamp),
    })
}

pub(super) fn event(row: &Row<'_>, sandbox: SandboxId) -> Result<Event> {
    Ok(Event {
        position: row.get(0)?,
        sandbox,
        sequence: row.get(1)?,
        kind: numbered(row, 2, EventType::from_number)?,
        at: Timestamp(row.get(3)?),
        state: numbered(row, 4, SandboxState::from_number)?,
        details: details(row)?,
    })
}

/// An event whose sandbox is the last column.
pub(super) fn event_of_any(row: &Row<'_>) -> Result<Event> {
    event(row, id(row, 12, SandboxId::qualified)?)
}

fn details(row: &Row<'_>) -> Result<Details> {
    let (error_code, error_message) = (row.get(9)?, row.get(10)?);
    Ok(match row.get(5)? {
        NOTHING => Details::None,
        PHASE => Details::Phase { phase: row.get(6)?, error_code, error_message, reason: row.get(11)? },
        EXECS => Details::Exec {
            exec: id(row, 6, ExecId::qualified)?,
            state: numbered(row, 7, ExecState::from_number)?,
            exit_code: row.get(8)?,
            error_code,
            error_message,
        },
        SERVICE => Details::Service { name: row.get(6)?, error_code, error_message },
        other => return Err(bad(5, Impossible(other.into()))),
    })
}

pub(super) fn id<T>(row: &Row<'_>, column: usize, new: fn(String) -> std::result::Result<T, BadId>) -> Result<T> {
    new(row.get(column)?).map_err(|error| bad(column, error))
}

fn numbered<T>(row: &Row<'_>, column: usize, from: fn(u8) -> Option<T>) -> Result<T> {
    let number = row.get(column)?;
    from(number).ok_or_else(|| bad(column, Impossible(number.into())))
}

fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T> {
    let text = row.get_ref(column)?;
    let text = text.as_str().map_err(|error| bad(column, error))?;
    serde_json::from_str(text).map_err(|error| bad(column, error))
}

fn bad(column: usize, error: impl Error + Send + Sync + 'static) -> SqlError {
    SqlError::FromSqlConversionFailure(column, Type::Null, Box::new(error))
}
