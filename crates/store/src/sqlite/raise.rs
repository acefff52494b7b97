//! Numbers that somebody may have seen are not given again: positions and sequences go on higher.

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::checksum::Table;
use super::read;
use super::rows::{self, CEILING, FLOOR, LAST_SEQUENCE};
use super::schema::NEWEST;

/// How much higher positions go on: nobody ever sees so many events that are not on the disk.
const JUMP: u64 = 1 << 32;
/// How much higher the sequences of a sandbox go on when nobody knows how many were given.
const LEAP: i64 = 1 << 20;

/// Why numbers have to be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// A power cut took what was not flushed: sequences went no further than the ceilings.
    Unflushed,
    /// The store is an earlier one, and events up to this position may have been seen.
    Since(u64),
}

/// Raises the position, and the floor of every sandbox to which something can still happen; the gaps are on record.
pub(super) fn raise(connection: &Connection, lost: Lost) -> rusqlite::Result<()> {
    let newest = read::position(connection)?;
    let seen = match lost {
        Lost::Unflushed => newest,
        Lost::Since(position) => newest.max(position),
    };
    if seen > 0 {
        set_position(connection, seen + JUMP)?;
    }
    let mut update = connection.prepare(&Table::Sandboxes.update(2))?;
    let gap = Table::Gaps.insert().replacen("INSERT", "INSERT OR REPLACE", 1);
    let mut gap = connection.prepare(&gap)?;
    for mut row in live(connection)? {
        let (Value::Integer(last), Value::Integer(ceiling)) = (&row[LAST_SEQUENCE], &row[CEILING]) else { continue };
        let (number, last) = (row[0].clone(), *last);
        let floor = if lost == Lost::Unflushed { *ceiling } else { last.max(*ceiling) + LEAP };
        if floor > last {
            (row[FLOOR], row[CEILING]) = (floor.into(), floor.into());
            execute(&mut update, Table::Sandboxes, row)?;
            execute(&mut gap, Table::Gaps, vec![number, last.into(), floor.into()])?;
        }
    }
    Ok(())
}

/// The rows of all sandboxes that are not deleted.
fn live(connection: &Connection) -> rusqlite::Result<Vec<Vec<Value>>> {
    let sql = format!("SELECT {} FROM sandboxes s WHERE state <> 6", rows::sandbox_columns(NEWEST));
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut live = Vec::new();
    while let Some(row) = rows.next()? {
        Table::Sandboxes.verify(row)?;
        live.push((0..Table::Sandboxes.width()).map(|column| row.get(column)).collect::<rusqlite::Result<_>>()?);
    }
    Ok(live)
}

/// Writes a row with its checksum.
pub(super) fn execute(
    statement: &mut rusqlite::Statement<'_>,
    table: Table,
    mut row: Vec<Value>,
) -> rusqlite::Result<()> {
    let values: Vec<&dyn rusqlite::ToSql> = row.iter().map(|value| value as _).collect();
    let checksum = table.checksum(&values)?;
    row.push(checksum.into());
    statement.execute(params_from_iter(row)).map(|_| ())
}

pub(super) fn set_position(connection: &Connection, position: u64) -> rusqlite::Result<()> {
    let known = connection.execute("UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'events'", [position])?;
    if known == 0 {
        connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?1)", [position])?;
    }
    Ok(())
}
