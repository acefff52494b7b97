//! Retention: removes old events and execs, and records what was removed.

use rusqlite::{Connection, OptionalExtension, params};

use super::checksum::ChecksummedTable;
use super::rows;
use super::sequence_floor::execute;
use crate::backend::EventRange;
use crate::{ExecId, RetentionLimit, SandboxId, Sequence};

/// What retention removed of a sandbox: events up to a sequence, and a number of execs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrimmedHistory {
    pub(crate) events: Sequence,
    pub(crate) execs: u64,
}

/// Removes the oldest events of a sandbox, never its newest; returns how many.
pub(super) fn events(
    connection: &Connection,
    sandbox: &SandboxId,
    range: EventRange,
    announce: &mut dyn FnMut(Sequence),
) -> rusqlite::Result<usize> {
    let Some(number) = number(connection, sandbox)? else { return Ok(0) };
    let oldest = "SELECT max(sequence) FROM (SELECT sequence FROM events
        WHERE sandbox = ?1 AND sequence <= ?2 AND sequence < (SELECT last_sequence FROM sandboxes WHERE number = ?1)
        ORDER BY sequence LIMIT ?3)";
    let values = params![number, range.until, range.most];
    let through: Option<Sequence> = connection.prepare_cached(oldest)?.query_row(values, |row| row.get(0))?;
    let Some(through) = through else { return Ok(0) };
    announce(through);
    let removed = connection
        .prepare_cached("DELETE FROM events WHERE sandbox = ?1 AND sequence <= ?2")?
        .execute(params![number, through])?;
    connection
        .prepare_cached("DELETE FROM gaps WHERE sandbox = ?1 AND until <= ?2")?
        .execute(params![number, through])?;
    record(connection, number, |trimmed| trimmed.events = through)?;
    Ok(removed)
}

/// Removes ended execs of a sandbox; returns how many.
pub(super) fn execs(connection: &Connection, sandbox: &SandboxId, execs: &[ExecId]) -> rusqlite::Result<usize> {
    let Some(number) = number(connection, sandbox)? else { return Ok(0) };
    let mut delete = connection.prepare_cached("DELETE FROM execs WHERE id = ?1 AND sandbox = ?2 AND state <> 1")?;
    let mut removed = 0;
    for exec in execs {
        removed += delete.execute(params![exec.as_str(), number])?;
    }
    if removed > 0 {
        record(connection, number, |trimmed| trimmed.execs += removed as u64)?;
    }
    Ok(removed)
}

/// What retention removed of a sandbox.
pub(super) fn trimmed_history(connection: &Connection, number: i64) -> rusqlite::Result<Option<TrimmedHistory>> {
    let sql = format!(
        "SELECT {} FROM trimmed t WHERE t.sandbox = ?1",
        ChecksummedTable::Trimmed.selected("t", super::schema::NEWEST)
    );
    let read = |row: &rusqlite::Row<'_>| {
        ChecksummedTable::Trimmed.verify(row)?;
        Ok(TrimmedHistory { events: row.get(1)?, execs: row.get(2)? })
    };
    connection.prepare_cached(&sql)?.query_row([number], read).optional()
}

fn record(connection: &Connection, number: i64, change: impl FnOnce(&mut TrimmedHistory)) -> rusqlite::Result<()> {
    let mut trimmed = trimmed_history(connection, number)?.unwrap_or_default();
    change(&mut trimmed);
    let insert = ChecksummedTable::Trimmed.insert().replacen("INSERT", "INSERT OR REPLACE", 1);
    let mut insert = connection.prepare_cached(&insert)?;
    let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX).into();
    execute(
        &mut insert,
        ChecksummedTable::Trimmed,
        vec![number.into(), integer(trimmed.events), integer(trimmed.execs)],
    )
}

fn number(connection: &Connection, sandbox: &SandboxId) -> rusqlite::Result<Option<i64>> {
    let mut found = connection.prepare_cached("SELECT number FROM sandboxes WHERE id = ?1")?;
    found.query_row([sandbox.as_str()], |row| row.get(0)).optional()
}

/// The sandboxes whose events exceed a limit, each with the last sequence to remove.
pub(super) fn overdue_events(
    connection: &Connection,
    keep: RetentionLimit,
) -> rusqlite::Result<Vec<(SandboxId, Sequence)>> {
    // Timestamps of a sandbox never decrease, so its oldest event tells whether any is too old.
    let sql = "SELECT id, max(ifnull(CASE WHEN last_sequence > ?1 THEN
                (SELECT sequence FROM events e WHERE e.sandbox = s.number ORDER BY sequence DESC LIMIT 1 OFFSET ?1) END, 0),
            ifnull(CASE WHEN (SELECT at FROM events e WHERE e.sandbox = s.number ORDER BY sequence LIMIT 1) < ?2 THEN
                (SELECT max(sequence) FROM events e WHERE e.sandbox = s.number AND e.at < ?2
                    AND e.sequence < s.last_sequence) END, 0)) AS through
        FROM sandboxes s WHERE through > 0";
    let mut statement = connection.prepare_cached(sql)?;
    let overdue = |row: &rusqlite::Row<'_>| Ok((rows::id(row, 0, SandboxId::qualified)?, row.get(1)?));
    // The newest event is never removed.
    let count = keep.count.map_or(i64::MAX, |count| i64::try_from(count.max(1)).unwrap_or(i64::MAX));
    let since = keep.since.map_or(i64::MIN, |since| since.0);
    statement.query_map(params![count, since], overdue)?.collect()
}

/// Ended execs that exceed a limit, oldest first.
pub(super) fn overdue_execs(
    connection: &Connection,
    keep: RetentionLimit,
    most: usize,
) -> rusqlite::Result<Vec<(SandboxId, ExecId)>> {
    let mut found = Vec::new();
    let pair =
        |row: &rusqlite::Row<'_>| Ok((rows::id(row, 0, SandboxId::qualified)?, rows::id(row, 1, ExecId::qualified)?));
    if let Some(count) = keep.count {
        let crowded = "SELECT sandbox, count(*) - ?1 FROM execs GROUP BY sandbox HAVING count(*) > ?1";
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let crowded: Vec<(i64, i64)> = connection
            .prepare_cached(crowded)?
            .query_map([count], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let oldest = "SELECT s.id, e.id FROM execs e JOIN sandboxes s ON s.number = e.sandbox
            WHERE e.sandbox = ?1 AND e.state <> 1 ORDER BY e.number LIMIT ?2";
        let mut oldest = connection.prepare_cached(oldest)?;
        for (number, surplus) in crowded {
            let room = i64::try_from(most - found.len()).unwrap_or(i64::MAX);
            for row in oldest.query_map(params![number, surplus.min(room)], pair)? {
                found.push(row?);
            }
        }
    }
    if let Some(since) = keep.since.filter(|_| found.len() < most) {
        let old = "SELECT s.id, e.id FROM execs e JOIN sandboxes s ON s.number = e.sandbox
            WHERE e.state <> 1 AND e.ended_at < ?1 ORDER BY e.number LIMIT ?2";
        let mut old = connection.prepare_cached(old)?;
        for row in old.query_map(params![since.0, most - found.len()], pair)? {
            let row = row?;
            if !found.contains(&row) {
                found.push(row);
            }
        }
    }
    Ok(found)
}
