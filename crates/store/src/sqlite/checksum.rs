//! The checksum of a row: CRC-32 over all its values, in the order of [`ChecksummedTable::columns`].
//!
//! SQLite has no checksums of its own: to SQLite a flipped bit inside a value is just a different value.

use crc32fast::Hasher;
use rusqlite::types::{ToSql, ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, Error as SqlError, Result, Row};

/// A table whose rows have checksums. Its number is part of each checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ChecksummedTable {
    Sandboxes = 1,
    Execs = 2,
    Events = 3,
    Gaps = 4,
    Trimmed = 5,
}

/// The checksum of a row is wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0} is damaged: its checksum differs")]
pub(crate) struct DamagedRow(pub(crate) String);

// === impl Table ===

impl ChecksummedTable {
    /// The tables that got checksums in schema version 2.
    pub(super) const SECOND: [Self; 4] = [Self::Sandboxes, Self::Execs, Self::Events, Self::Gaps];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sandboxes => "sandboxes",
            Self::Execs => "execs",
            Self::Events => "events",
            Self::Gaps => "gaps",
            Self::Trimmed => "trimmed",
        }
    }

    /// The columns, in the order in which they are read, written and hashed. The key comes first.
    pub(super) const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Sandboxes => &[
                "number",
                "id",
                "owner",
                "state",
                "desired",
                "reason",
                "incarnation",
                "disk",
                "journal",
                "idle_ms",
                "created_at",
                "state_changed_at",
                "active_at",
                "error_code",
                "error_message",
                "last_sequence",
                "floor",
                "ceiling",
                "image",
                "labels",
                "spec",
            ],
            Self::Execs => &[
                "number",
                "id",
                "sandbox",
                "state",
                "cancelling",
                "command",
                "cwd",
                "env",
                "options",
                "exit_code",
                "error_code",
                "error_message",
                "stdout_log",
                "stderr_log",
                "created_at",
                "ended_at",
            ],
            Self::Events => &[
                "position",
                "sandbox",
                "sequence",
                "kind",
                "at",
                "state",
                "about",
                "subject",
                "exec_state",
                "exit_code",
                "error_code",
                "error_message",
                "reason",
            ],
            Self::Gaps => &["sandbox", "after", "until"],
            Self::Trimmed => &["sandbox", "events", "execs"],
        }
    }

    /// The index of the checksum in a selected row: after the columns.
    pub(super) const fn width(self) -> usize {
        self.columns().len()
    }

    /// All columns of a table with an alias, and the checksum, if that version has one.
    pub(super) fn selected(self, alias: &str, version: usize) -> String {
        let checksum = if version < super::schema::CHECKSUMS { "NULL".into() } else { format!("{alias}.checksum") };
        let columns = self.columns().iter().map(|column| format!("{alias}.{column}, "));
        columns.chain([checksum]).collect()
    }

    /// The SQL statement that inserts a row with its checksum.
    pub(super) fn insert(self) -> String {
        let marks = vec!["?"; self.width() + 1].join(", ");
        format!("INSERT INTO {} ({}, checksum) VALUES ({marks})", self.name(), self.columns().join(", "))
    }

    /// The SQL statement that updates a row by its key, except for its first `fixed` columns, which are indexed.
    pub(super) fn update(self, fixed: usize) -> String {
        let set = |(at, column): (usize, &&str)| format!("{column} = ?{}, ", at + 1);
        let columns: String = self.columns().iter().enumerate().skip(fixed).map(set).collect();
        let (key, checksum) = (self.columns()[0], self.width() + 1);
        format!("UPDATE {} SET {columns}checksum = ?{checksum} WHERE {key} = ?1", self.name())
    }

    /// The checksum of a row with these values.
    pub(super) fn checksum(self, values: &[&dyn ToSql]) -> Result<u32> {
        let mut hasher = self.hasher();
        for value in values {
            match value.to_sql()? {
                ToSqlOutput::Borrowed(value) => add(&mut hasher, value),
                ToSqlOutput::Owned(value) => add(&mut hasher, (&value).into()),
                _ => return Err(SqlError::InvalidQuery),
            }
        }
        Ok(hasher.finalize())
    }

    /// Verifies the checksum of a row that begins with the columns of [`Self::selected`].
    pub(super) fn verify(self, row: &Row<'_>) -> Result<()> {
        let Some(written) = row.get::<_, Option<u32>>(self.width()).map_err(|_| self.damaged(row))? else {
            return Ok(());
        };
        if self.checksum_of(row)? == written { Ok(()) } else { Err(self.damaged(row)) }
    }

    fn checksum_of(self, row: &Row<'_>) -> Result<u32> {
        let mut hasher = self.hasher();
        for column in 0..self.width() {
            add(&mut hasher, row.get_ref(column)?);
        }
        Ok(hasher.finalize())
    }

    fn damaged(self, row: &Row<'_>) -> SqlError {
        let text = |column| match row.get_ref(column) {
            Ok(ValueRef::Integer(number)) => number.to_string(),
            Ok(ValueRef::Text(text)) => format!("{:?}", String::from_utf8_lossy(text)),
            _ => "?".into(),
        };
        let name = match self {
            Self::Sandboxes => format!("sandbox {} (row {})", text(1), text(0)),
            Self::Execs => format!("exec {} (row {})", text(1), text(0)),
            Self::Events => format!("event {} of sandbox row {} (position {})", text(2), text(1), text(0)),
            Self::Gaps => format!("the gap after event {} of sandbox row {}", text(1), text(0)),
            Self::Trimmed => format!("the retention record of sandbox row {}", text(0)),
        };
        SqlError::FromSqlConversionFailure(self.width(), Type::Integer, Box::new(DamagedRow(name)))
    }

    /// Writes the checksum of every row.
    pub(super) fn seal(self, connection: &Connection) -> Result<()> {
        let key = if self == Self::Gaps { "sandbox = ?2 AND after = ?3" } else { "rowid = ?2" };
        let mut write = connection.prepare(&format!("UPDATE {} SET checksum = ?1 WHERE {key}", self.name()))?;
        let sql = format!("SELECT {} FROM {}", self.columns().join(", "), self.name());
        let mut read = connection.prepare(&sql)?;
        let mut rows = read.query([])?;
        while let Some(row) = rows.next()? {
            let (checksum, first) = (self.checksum_of(row)?, row.get::<_, i64>(0)?);
            match self {
                Self::Gaps => write.execute((checksum, first, row.get::<_, i64>(1)?))?,
                _ => write.execute((checksum, first))?,
            };
        }
        Ok(())
    }

    fn hasher(self) -> Hasher {
        let mut hasher = Hasher::new();
        hasher.update(&[self as u8]);
        hasher
    }
}

/// Hashes the canonical encoding of a value: type, length if it varies, content.
fn add(hasher: &mut Hasher, value: ValueRef<'_>) {
    let mut prefixed = |kind: u8, bytes: &[u8]| {
        hasher.update(&[kind]);
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    match value {
        ValueRef::Null => hasher.update(&[0]),
        ValueRef::Integer(number) => {
            hasher.update(&[1]);
            hasher.update(&number.to_le_bytes());
        }
        ValueRef::Real(number) => {
            hasher.update(&[2]);
            hasher.update(&number.to_bits().to_le_bytes());
        }
        ValueRef::Text(text) => prefixed(3, text),
        ValueRef::Blob(bytes) => prefixed(4, bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_given_values_is_frozen() {
        let values: [&dyn ToSql; 4] = [&1i64, &"äb", &None::<i64>, &b"\xff".as_slice()];
        assert_eq!(ChecksummedTable::Gaps.checksum(&values).unwrap(), FROZEN);
        assert_ne!(ChecksummedTable::Events.checksum(&values).unwrap(), FROZEN, "the table is part of the checksum");
        let moved: [&dyn ToSql; 4] = [&1i64, &"ä", &None::<i64>, &b"b\xff".as_slice()];
        assert_ne!(
            ChecksummedTable::Gaps.checksum(&moved).unwrap(),
            FROZEN,
            "the length of a value is part of the checksum"
        );
    }

    const FROZEN: u32 = 0x8beb_90d8;
}
