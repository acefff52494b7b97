//! Raises positions and sequences, so that numbers that clients may have seen are never reused.

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::checksum::ChecksummedTable;
use super::read;
use super::rows::{self, CEILING, FLOOR, LAST_SEQUENCE};
use super::schema::NEWEST;

/// How far positions are raised: clients never see so many events that are not on the disk.
const POSITION_JUMP: u64 = 1 << 32;
/// How far the sequences of a sandbox are raised when it is unknown how many were in use.
const SEQUENCE_JUMP: i64 = 1 << 20;

/// Which events may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostEvents {
    /// A power cut took commits without fsync: no sequence above the ceilings was in use.
    Unflushed,
    /// The store is an earlier one, and clients may have seen events up to this position.
    Since(u64),
}

/// Raises the position, and the floor of every sandbox that is not deleted; records the gaps.
pub(super) fn raise(connection: &Connection, lost: LostEvents) -> rusqlite::Result<()> {
    let newest = read::position(connection)?;
    let observed = match lost {
        LostEvents::Unflushed => newest,
        LostEvents::Since(position) => newest.max(position),
    };
    if observed > 0 {
        set_position(connection, observed + POSITION_JUMP)?;
    }
    let mut update = connection.prepare(&ChecksummedTable::Sandboxes.update(2))?;
    let gap = ChecksummedTable::Gaps.insert().replacen("INSERT", "INSERT OR REPLACE", 1);
    let mut gap = connection.prepare(&gap)?;
    for mut row in live(connection)? {
        let (Value::Integer(last), Value::Integer(ceiling)) = (&row[LAST_SEQUENCE], &row[CEILING]) else { continue };
        let (number, last) = (row[0].clone(), *last);
        let floor = if lost == LostEvents::Unflushed { *ceiling } else { last.max(*ceiling) + SEQUENCE_JUMP };
        if floor > last {
            (row[FLOOR], row[CEILING]) = (floor.into(), floor.into());
            execute(&mut update, ChecksummedTable::Sandboxes, row)?;
            execute(&mut gap, ChecksummedTable::Gaps, vec![number, last.into(), floor.into()])?;
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
        ChecksummedTable::Sandboxes.verify(row)?;
        live.push(
            (0..ChecksummedTable::Sandboxes.width()).map(|column| row.get(column)).collect::<rusqlite::Result<_>>()?,
        );
    }
    Ok(live)
}

/// Writes a row with its checksum.
pub(super) fn execute(
    statement: &mut rusqlite::Statement<'_>,
    table: ChecksummedTable,
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
