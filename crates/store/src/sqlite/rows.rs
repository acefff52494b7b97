//! Conversions between rows and records.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rusqlite::types::Type;
use rusqlite::{Error as SqlError, Result, Row};

use super::checksum::ChecksummedTable;
use crate::{
    DesiredState, Event, EventDetails, EventType, Exec, ExecId, ExecState, InvalidId, Sandbox, SandboxId, SandboxState,
    Timestamp,
};

/// The index of the sandbox id after the columns of an exec or of an event.
const SANDBOX_OF_EXEC: usize = ChecksummedTable::Execs.width() + 1;
const SANDBOX_OF_EVENT: usize = ChecksummedTable::Events.width() + 1;

/// The columns of a sandbox `s`.
pub(super) fn sandbox_columns(version: usize) -> String {
    ChecksummedTable::Sandboxes.selected("s", version)
}

/// The columns of an exec `e` of a sandbox `s`.
pub(super) fn exec_columns(version: usize) -> String {
    format!("{}, s.id", ChecksummedTable::Execs.selected("e", version))
}

/// The columns of an event `e`; the sandbox id is known, or selected last.
pub(super) fn event_columns(version: usize) -> String {
    ChecksummedTable::Events.selected("e", version)
}

/// The indices of the columns that determine the sequences of a sandbox.
pub(super) const LAST_SEQUENCE: usize = 15;
pub(super) const FLOOR: usize = 16;
pub(super) const CEILING: usize = 17;

/// The discriminants of the details of an event.
pub(super) const NOTHING: u8 = 0;
pub(super) const PHASE: u8 = 1;
pub(super) const EXECS: u8 = 2;
pub(super) const SERVICE: u8 = 3;

/// A stored value is outside its domain.
#[derive(Debug, thiserror::Error)]
#[error("invalid stored value: {0}")]
struct InvalidValue(i64);

pub(super) fn sandbox(row: &Row<'_>) -> Result<Sandbox> {
    ChecksummedTable::Sandboxes.verify(row)?;
    Ok(Sandbox {
        id: id(row, 1, SandboxId::qualified)?,
        owner: row.get(2)?,
        state: numbered(row, 3, SandboxState::from_number)?,
        desired: numbered(row, 4, DesiredState::from_number)?,
        reason: row.get(5)?,
        incarnation: row.get(6)?,
        disk: row.get(7)?,
        journal: row.get(8)?,
        idle_ms: row.get(9)?,
        created_at: Timestamp(row.get(10)?),
        state_changed_at: Timestamp(row.get(11)?),
        active_at: Timestamp(row.get(12)?),
        error_code: row.get(13)?,
        error_message: row.get(14)?,
        last_sequence: row.get(LAST_SEQUENCE)?,
        image: row.get(18)?,
        labels: json(row, 19)?,
        spec: row.get(20)?,
    })
}

pub(super) fn exec(row: &Row<'_>) -> Result<Exec> {
    ChecksummedTable::Execs.verify(row)?;
    Ok(Exec {
        id: id(row, 1, ExecId::qualified)?,
        sandbox: id(row, SANDBOX_OF_EXEC, SandboxId::qualified)?,
        state: numbered(row, 3, ExecState::from_number)?,
        cancelling: row.get(4)?,
        command: json(row, 5)?,
        cwd: row.get(6)?,
        env: json(row, 7)?,
        options: row.get(8)?,
        exit_code: row.get(9)?,
        error_code: row.get(10)?,
        error_message: row.get(11)?,
        stdout_log: OsString::from_vec(row.get(12)?).into(),
        stderr_log: OsString::from_vec(row.get(13)?).into(),
        created_at: Timestamp(row.get(14)?),
        ended_at: row.get::<_, Option<i64>>(15)?.map(Timestamp),
    })
}

pub(super) fn event(row: &Row<'_>, sandbox: SandboxId) -> Result<Event> {
    ChecksummedTable::Events.verify(row)?;
    Ok(Event {
        position: row.get(0)?,
        sandbox,
        sequence: row.get(2)?,
        kind: numbered(row, 3, EventType::from_number)?,
        at: Timestamp(row.get(4)?),
        state: numbered(row, 5, SandboxState::from_number)?,
        details: details(row)?,
    })
}

/// An event whose sandbox id is the last column.
pub(super) fn event_of_any(row: &Row<'_>) -> Result<Event> {
    event(row, id(row, SANDBOX_OF_EVENT, SandboxId::qualified)?)
}

fn details(row: &Row<'_>) -> Result<EventDetails> {
    let (error_code, error_message) = (row.get(10)?, row.get(11)?);
    Ok(match row.get(6)? {
        NOTHING => EventDetails::None,
        PHASE => EventDetails::Phase { phase: row.get(7)?, error_code, error_message, reason: row.get(12)? },
        EXECS => EventDetails::Exec {
            exec: id(row, 7, ExecId::qualified)?,
            state: numbered(row, 8, ExecState::from_number)?,
            exit_code: row.get(9)?,
            error_code,
            error_message,
        },
        SERVICE => EventDetails::Service { name: row.get(7)?, error_code, error_message },
        other => return Err(conversion_error(6, InvalidValue(other.into()))),
    })
}

pub(super) fn id<T>(row: &Row<'_>, column: usize, new: fn(String) -> std::result::Result<T, InvalidId>) -> Result<T> {
    new(row.get(column)?).map_err(|error| conversion_error(column, error))
}

fn numbered<T>(row: &Row<'_>, column: usize, from: fn(u8) -> Option<T>) -> Result<T> {
    let number = row.get(column)?;
    from(number).ok_or_else(|| conversion_error(column, InvalidValue(number.into())))
}

fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T> {
    let text = row.get_ref(column)?;
    let text = text.as_str().map_err(|error| conversion_error(column, error))?;
    serde_json::from_str(text).map_err(|error| conversion_error(column, error))
}

fn conversion_error(column: usize, error: impl Error + Send + Sync + 'static) -> SqlError {
    SqlError::FromSqlConversionFailure(column, Type::Null, Box::new(error))
}
