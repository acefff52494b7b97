//! Reads all rows of a damaged database that can still be read.

use std::collections::HashSet;

use rusqlite::{Connection, Row};

use super::checksum::ChecksummedTable;

/// How many reads of a table may fail before the rest of it is given up.
const MAX_FAILURES: u32 = 4096;

/// A damaged database as the source of rows.
pub(super) struct Salvage<'a> {
    pub(super) source: &'a Connection,
    pub(super) version: usize,
}

/// The keys of a table according to one of its indexes.
#[derive(Debug, Default)]
pub(super) struct IndexKeys<T> {
    /// The key of each row, with the other columns of the index.
    pub(super) keys: Vec<(i64, T)>,
    is_whole: bool,
}

/// An inclusive range of row keys.
type KeyRange = (i64, i64);

// === impl IndexKeys ===

impl<T> IndexKeys<T> {
    /// Whether the whole index could be read.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }
}

// === impl Salvage ===

impl Salvage<'_> {
    /// Visits the results of a query from the front until a read fails, then from the back: rows may be visited twice.
    /// Returns whether no read failed.
    pub(super) fn visit_both_ways(&self, sql: &str, order: &[&str], mut visit: impl FnMut(&Row<'_>)) -> bool {
        [" ASC", " DESC"].into_iter().any(|direction| {
            let order: Vec<_> = order.iter().map(|column| format!("{column}{direction}")).collect();
            self.each(&format!("{sql} ORDER BY {}", order.join(", ")), None, &mut visit)
        })
    }

    /// Visits every readable row of a table once. Returns whether no read failed.
    pub(super) fn table<T>(
        &self,
        table: ChecksummedTable,
        index: &IndexKeys<T>,
        mut visit: impl FnMut(&Row<'_>),
    ) -> bool {
        let key = table.columns()[0];
        // The column that a join would append is not needed to decode the row.
        let sql = format!("SELECT {}, 'none' FROM {} t", table.selected("t", self.version), table.name());
        let mut observed = HashSet::new();
        let mut once = |row: &Row<'_>| {
            let key = row.get(0).ok();
            if key.is_some_and(|key: i64| observed.insert(key)) {
                visit(row);
            }
            key
        };
        let (mut low, mut high) = (1, i64::MAX);
        let ordered = |order| format!("{sql} ORDER BY t.{key} {order}");
        if self.each(&ordered("ASC"), None, |row| low = once(row).map_or(low, |key| key.saturating_add(1))) {
            return true;
        }
        self.each(&ordered("DESC"), None, |row| high = once(row).map_or(high, |key| key.saturating_sub(1)));
        for (known, _) in &index.keys {
            self.each(&format!("{sql} WHERE t.{key} BETWEEN ?1 AND ?2"), Some((*known, *known)), |row| {
                once(row);
            });
        }
        if !index.is_whole {
            self.between(&sql, key, (low, high), &mut |row| once(row));
        }
        false
    }

    /// Searches for rows between two broken pages, by bisection.
    fn between(&self, sql: &str, key: &str, range: KeyRange, visit: &mut dyn FnMut(&Row<'_>) -> Option<i64>) {
        let (upward, downward) = (
            format!("{sql} WHERE t.{key} BETWEEN ?1 AND ?2 ORDER BY t.{key} ASC"),
            format!("{sql} WHERE t.{key} BETWEEN ?1 AND ?2 ORDER BY t.{key} DESC"),
        );
        let (mut ranges, mut failures) = (std::collections::VecDeque::from([range]), 0);
        while let Some((low, high)) = ranges.pop_front() {
            if low > high || failures >= MAX_FAILURES {
                continue;
            }
            let middle = low + (high - low) / 2;
            let (mut first, mut last) = (middle, middle);
            let whole_above = self.each(&upward, Some((middle, high)), |row| last = visit(row).unwrap_or(last));
            let whole_below = self.each(&downward, Some((low, middle)), |row| first = visit(row).unwrap_or(first));
            failures += u32::from(!whole_above) + u32::from(!whole_below);
            if !whole_above {
                ranges.push_back((last.saturating_add(1), high));
            }
            if !whole_below {
                ranges.push_back((low, first.saturating_sub(1)));
            }
        }
    }

    /// Reads the keys of a table from an index.
    pub(super) fn index<T>(
        &self,
        sql: &str,
        order: &[&str],
        read: impl Fn(&Row<'_>) -> rusqlite::Result<(i64, T)>,
    ) -> IndexKeys<T> {
        let mut keys = Vec::new();
        let is_whole = self.visit_both_ways(sql, order, |row| keys.extend(read(row).ok()));
        IndexKeys { keys, is_whole }
    }

    /// Visits the results of a query until a read fails; returns whether none did.
    fn each(&self, sql: &str, range: Option<KeyRange>, mut visit: impl FnMut(&Row<'_>)) -> bool {
        let Ok(mut statement) = self.source.prepare_cached(sql) else { return false };
        let rows = match range {
            Some(range) => statement.query(range),
            None => statement.query([]),
        };
        let Ok(mut rows) = rows else { return false };
        loop {
            match rows.next() {
                Ok(Some(row)) => visit(row),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}
