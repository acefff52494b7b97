//! Rebuilds a store from the intact rows of a damaged one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, Row};

use super::checksum::ChecksummedTable;
use super::copy::{create_new, remove_database};
use super::first_page::TableLayout;
use super::inspect::with_suffix;
use super::open::{ReadOnlyConnection, recognize};
use super::salvage::{IndexKeys, Salvage};
use super::sequence_floor::{execute, set_position};
use super::{read, rows, schema};
use crate::marker::MarkerRecord;
use crate::repair::{RepairReport, RepairedTable};
use crate::{MissingEvents, SandboxId, StoreError, StoreIdentity};

/// The state of a repair.
struct Rebuild<'a> {
    salvage: Salvage<'a>,
    target: &'a Connection,
    /// The row numbers of the intact sandboxes.
    sandboxes: HashSet<i64>,
    /// Those of them that have lost an exec or an event.
    incomplete: BTreeSet<i64>,
    /// Ids that stay reserved.
    sandbox_ids: BTreeSet<String>,
    exec_ids: BTreeSet<String>,
    position: u64,
    report: RepairReport,
}

/// Counts how many of the most important tables the first page lists.
const TABLES: &str = "SELECT count(*) FROM sqlite_schema WHERE name IN ('about', 'events', 'execs', 'sandboxes')";
const TABLE_COUNT: u32 = 4;

/// Copies all intact rows of a store into a new one.
pub(crate) fn rebuild(path: &Path, new: &Path, home: Option<&MarkerRecord>) -> Result<RepairReport, StoreError> {
    let as_listed = if has_tables(path)? {
        match rebuild_from(path, new, home) {
            Ok(report) if report.lost_rows() == 0 && !report.tables.iter().any(|table| table.at_least) => {
                return Ok(report);
            }
            Ok(report) => report.kept_rows(),
            Err(StoreError::Damaged { .. } | StoreError::Database(_)) => 0,
            Err(error) => return Err(error),
        }
    } else {
        0
    };
    // Possibly only the first page is broken: the list of the tables, their columns and root pages. The layout that yields the
    // most intact rows is the right one.
    let mut best = (as_listed, None);
    for layout in TableLayout::ALL {
        let kept = rebuild_with(layout, path, new, home)?.kept_rows();
        if kept > best.0 {
            best = (kept, Some(layout));
        }
    }
    match best.1 {
        Some(layout) => rebuild_with(layout, path, new, home),
        None => rebuild_from(path, new, home),
    }
}

/// Copies all intact rows of a store whose root pages are guessed by a layout.
fn rebuild_with(
    layout: TableLayout,
    path: &Path,
    new: &Path,
    home: Option<&MarkerRecord>,
) -> Result<RepairReport, StoreError> {
    let source = with_suffix(new, ".source");
    let rebuilt = layout.copy(path, &source).and_then(|()| rebuild_from(&source, new, home));
    remove_database(&source)?;
    rebuilt
}

/// Whether the schema of a store can be read.
fn has_tables(path: &Path) -> Result<bool, StoreError> {
    let ReadOnlyConnection { connection, .. } = ReadOnlyConnection::open(path)?;
    connection.execute_batch("PRAGMA writable_schema=ON")?;
    match recognize(&connection, path) {
        Err(StoreError::NotOurs(_) | StoreError::Damaged { .. }) => return Ok(false),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    Ok(connection.query_row(TABLES, [], |row| row.get::<_, u32>(0)).is_ok_and(|count| count == TABLE_COUNT))
}

fn rebuild_from(path: &Path, new: &Path, home: Option<&MarkerRecord>) -> Result<RepairReport, StoreError> {
    let ReadOnlyConnection { connection: source, .. } = ReadOnlyConnection::open(path)?;
    // SQLite then reads a truncated file, and a partly broken schema.
    source.execute_batch("PRAGMA writable_schema=ON; PRAGMA cell_size_check=ON")?;
    let version = match recognize(&source, path) {
        // A broken first page says nothing about the other pages.
        Err(StoreError::NotOurs(_) | StoreError::Damaged { .. }) => schema::NEWEST,
        version => version?,
    };
    create_new(new)?;
    let mut target = Connection::open(new)?;
    // It is fsynced once, when it is complete.
    target.execute_batch("PRAGMA synchronous=OFF")?;
    schema::migrate(&mut target, schema::STEPS)?;
    let transaction = target.transaction()?;
    let mut rebuild = Rebuild {
        salvage: Salvage { source: &source, version },
        target: &transaction,
        sandboxes: HashSet::new(),
        incomplete: BTreeSet::new(),
        sandbox_ids: BTreeSet::new(),
        exec_ids: BTreeSet::new(),
        position: read::position(&source).unwrap_or(0),
        report: RepairReport::default(),
    };
    rebuild.sandboxes()?;
    rebuild.execs()?;
    rebuild.events()?;
    rebuild.gaps()?;
    rebuild.reservations()?;
    rebuild.about(home)?;
    let report = rebuild.report;
    transaction.commit()?;
    Ok(report)
}

// === impl Rebuild ===

impl Rebuild<'_> {
    fn sandboxes(&mut self) -> rusqlite::Result<()> {
        let sql = "SELECT number, id FROM sandboxes INDEXED BY sqlite_autoindex_sandboxes_1";
        let index = self.salvage.index(sql, &["id"], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)));
        let decode = |row: &Row<'_>| rows::sandbox(row).map(|_| ());
        let (kept, damaged) = self.copy(ChecksummedTable::Sandboxes, &index, decode, |_, _| true)?;
        let mut lost: BTreeSet<String> = damaged.iter().filter_map(|row| text(row, 1)).collect();
        lost.extend(index.keys.iter().filter(|(number, _)| !kept.contains(number)).map(|(_, id)| id.clone()));
        self.sandbox_ids.extend(index.keys.into_iter().map(|(_, id)| id));
        self.sandbox_ids.extend(lost.iter().filter(|id| SandboxId::qualified(id.as_str()).is_ok()).cloned());
        self.report.lost_sandboxes = lost.into_iter().collect();
        self.sandboxes = kept;
        Ok(())
    }

    fn execs(&mut self) -> rusqlite::Result<()> {
        let sql = "SELECT number, id FROM execs INDEXED BY sqlite_autoindex_execs_1";
        let index = self.salvage.index(sql, &["id"], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)));
        let decode = |row: &Row<'_>| rows::exec(row).map(|_| ());
        let (_, damaged) =
            self.copy(ChecksummedTable::Execs, &index, decode, |known, row| known.contains(&integer(row, 2)))?;
        self.exec_ids.extend(index.keys.into_iter().map(|(_, id)| id));
        for row in damaged {
            self.incomplete.extend(self.sandboxes.get(&integer(&row, 2)));
        }
        Ok(())
    }

    fn events(&mut self) -> rusqlite::Result<()> {
        let sql = "SELECT position, sandbox FROM events INDEXED BY events_of_sandbox";
        let order = ["sandbox", "sequence"];
        let index = self.salvage.index(sql, &order, |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)));
        // Any valid id is sufficient to decode the row.
        let Ok(any) = SandboxId::new("none") else { return Ok(()) };
        let decode = move |row: &Row<'_>| rows::event(row, any.clone()).map(|_| ());
        let (kept, _) =
            self.copy(ChecksummedTable::Events, &index, decode, |known, row| known.contains(&integer(row, 1)))?;
        let lost = index.keys.iter().filter(|(position, _)| !kept.contains(position));
        self.incomplete.extend(lost.filter_map(|(_, sandbox)| self.sandboxes.get(sandbox)));
        let highest = kept.iter().chain(index.keys.iter().map(|(position, _)| position)).max();
        self.position = self.position.max(highest.and_then(|highest| u64::try_from(*highest).ok()).unwrap_or(0));
        Ok(())
    }

    /// Copies the intact rows of a table that have an owner; returns their keys, and the damaged rows as far as they
    /// can be read.
    fn copy<T>(
        &mut self,
        table: ChecksummedTable,
        index: &IndexKeys<T>,
        decode: impl Fn(&Row<'_>) -> rusqlite::Result<()>,
        belongs: impl Fn(&HashSet<i64>, &[Value]) -> bool,
    ) -> rusqlite::Result<(HashSet<i64>, Vec<Vec<Value>>)> {
        let insert = table.insert().replacen("INSERT", "INSERT OR IGNORE", 1);
        let mut insert = self.target.prepare(&insert)?;
        let (mut kept, mut damaged, mut orphaned) = (HashSet::new(), Vec::new(), HashSet::new());
        let mut failed = None;
        let is_whole = self.salvage.table(table, index, |row| {
            let values = |row: &Row<'_>| (0..table.width()).map(|at| row.get(at)).collect::<Result<Vec<Value>, _>>();
            let Ok(values) = values(row) else { return };
            let key = integer(&values, 0);
            if decode(row).is_err() {
                damaged.push(values);
            } else if !belongs(&self.sandboxes, &values) {
                orphaned.insert(key);
            } else if let Err(error) = execute(&mut insert, table, values) {
                failed = Some(error);
            } else {
                kept.insert(key);
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let mut known: HashSet<i64> = index.keys.iter().map(|(key, _)| *key).collect();
        known.extend(damaged.iter().map(|row| integer(row, 0)));
        known.extend(&orphaned);
        let lost = known.difference(&kept).count() as u64;
        let at_least = !is_whole && !index.is_whole();
        self.report.tables.push(RepairedTable { name: table.name(), kept: kept.len() as u64, lost, at_least });
        Ok((kept, damaged))
    }

    /// Copies the recorded gaps, and records those that the damage caused.
    fn gaps(&mut self) -> rusqlite::Result<()> {
        let insert = ChecksummedTable::Gaps.insert().replacen("INSERT", "INSERT OR REPLACE", 1);
        let mut insert = self.target.prepare(&insert)?;
        let sql = format!("SELECT {} FROM gaps g", ChecksummedTable::Gaps.selected("g", self.salvage.version));
        let (mut gaps, mut damaged) = (BTreeSet::new(), BTreeSet::new());
        let is_whole = self.salvage.visit_both_ways(&sql, &["sandbox", "after"], |row| {
            let Ok(gap) = row.get(0).and_then(|sandbox| Ok((sandbox, row.get(1)?, row.get::<_, i64>(2)?))) else {
                return;
            };
            let known = self.sandboxes.contains(&gap.0) && ChecksummedTable::Gaps.verify(row).is_ok();
            if known {
                gaps.insert(gap)
            } else {
                damaged.insert(gap)
            };
        });
        let (kept, lost) = (gaps.len() as u64, damaged.len() as u64);
        self.report.tables.push(RepairedTable { name: "gaps", kept, lost, at_least: !is_whole });
        let trimmed = self.trimmed()?;
        let holes = self.holes(&gaps, &trimmed)?;
        self.incomplete.extend(holes.iter().map(|(sandbox, ..)| *sandbox));
        for (sandbox, after, until) in gaps.into_iter().chain(holes) {
            execute(&mut insert, ChecksummedTable::Gaps, vec![sandbox.into(), after.into(), until.into()])?;
        }
        Ok(())
    }

    /// Copies the retention records; returns the trimmed sequence of each sandbox.
    fn trimmed(&mut self) -> rusqlite::Result<HashMap<i64, i64>> {
        let (mut kept, mut damaged) = (BTreeMap::new(), 0);
        let mut is_whole = true;
        if self.salvage.version >= schema::TRIMMED {
            let sql =
                format!("SELECT {} FROM trimmed t", ChecksummedTable::Trimmed.selected("t", self.salvage.version));
            is_whole = self.salvage.visit_both_ways(&sql, &["sandbox"], |row| {
                let Ok(found) = row.get(0).and_then(|sandbox: i64| Ok((sandbox, (row.get(1)?, row.get(2)?)))) else {
                    return;
                };
                if self.sandboxes.contains(&found.0) && ChecksummedTable::Trimmed.verify(row).is_ok() {
                    kept.insert(found.0, found.1);
                } else {
                    damaged += 1;
                }
            });
        }
        let mut insert = self.target.prepare(&ChecksummedTable::Trimmed.insert())?;
        for (sandbox, (events, execs)) in &kept {
            execute(
                &mut insert,
                ChecksummedTable::Trimmed,
                vec![(*sandbox).into(), Value::from(*events), Value::from(*execs)],
            )?;
        }
        let name = ChecksummedTable::Trimmed.name();
        self.report.tables.push(RepairedTable { name, kept: kept.len() as u64, lost: damaged, at_least: !is_whole });
        Ok(kept.into_iter().map(|(sandbox, (events, _)): (i64, (i64, i64))| (sandbox, events)).collect())
    }

    /// Ranges of missing sequences without a recorded gap.
    fn holes(
        &self,
        gaps: &BTreeSet<(i64, i64, i64)>,
        trimmed: &HashMap<i64, i64>,
    ) -> rusqlite::Result<Vec<(i64, i64, i64)>> {
        let mut statement = self.target.prepare(
            "SELECT s.number, e.sequence, s.last_sequence FROM sandboxes s LEFT JOIN events e ON e.sandbox = s.number
                ORDER BY s.number, e.sequence",
        )?;
        let mut rows = statement.query([])?;
        let mut holes = Vec::new();
        // The sandbox, the sequence up to which nothing is missing, and its newest sequence.
        let mut at: Option<(i64, i64, i64)> = None;
        let until = |gaps: &BTreeSet<(i64, i64, i64)>, sandbox, after| {
            gaps.range((sandbox, after, i64::MIN)..=(sandbox, after, i64::MAX)).next_back().map(|gap| gap.2)
        };
        let mut close = |(sandbox, after, newest): (i64, i64, i64)| {
            if after < newest {
                holes.push((sandbox, after, newest));
            }
        };
        while let Some(row) = rows.next()? {
            let (sandbox, sequence, last): (i64, Option<i64>, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let reached = match at {
                Some((number, reached, _)) if number == sandbox => reached,
                other => {
                    if let Some(other) = other {
                        close(other);
                    }
                    trimmed.get(&sandbox).copied().unwrap_or(0)
                }
            };
            let mut after = reached;
            if let Some(sequence) = sequence {
                while let Some(until) = until(gaps, sandbox, after).filter(|until| *until > after && *until < sequence)
                {
                    after = until;
                }
                close((sandbox, after, sequence - 1));
                after = sequence;
            }
            at = Some((sandbox, after, last));
        }
        if let Some(last) = at {
            close(last);
        }
        Ok(holes)
    }

    /// Reserves every id that was ever in use.
    fn reservations(&mut self) -> rusqlite::Result<()> {
        for (name, known) in [("reserved_sandboxes", &mut self.sandbox_ids), ("reserved_execs", &mut self.exec_ids)] {
            let mut found = BTreeSet::new();
            let is_whole = self.salvage.visit_both_ways(&format!("SELECT id FROM {name}"), &["id"], |row| {
                found.extend(row.get::<_, String>(0).ok());
            });
            let kept = found.len() as u64;
            self.report.tables.push(RepairedTable { name, kept, lost: 0, at_least: !is_whole });
            known.extend(found);
            let mut insert = self.target.prepare(&format!("INSERT OR IGNORE INTO {name} VALUES (?1)"))?;
            for id in known.iter() {
                insert.execute([id])?;
            }
        }
        self.target.execute_batch(
            "INSERT OR IGNORE INTO reserved_sandboxes SELECT id FROM sandboxes;
             INSERT OR IGNORE INTO reserved_execs SELECT id FROM execs;
             INSERT OR IGNORE INTO reserved_execs SELECT subject FROM events WHERE about = 2;",
        )
    }

    fn about(&mut self, home: Option<&MarkerRecord>) -> rusqlite::Result<()> {
        let lacking = "SELECT sandbox FROM events e WHERE about = 2 AND subject NOT IN (SELECT id FROM execs)
            GROUP BY sandbox HAVING count(DISTINCT subject)
                > ifnull((SELECT execs FROM trimmed t WHERE t.sandbox = e.sandbox), 0)";
        let mut statement = self.target.prepare(lacking)?;
        for number in statement.query_map([], |row| row.get::<_, i64>(0))? {
            self.incomplete.insert(number?);
        }
        for number in &self.incomplete {
            self.target.execute("INSERT OR IGNORE INTO incomplete_sandboxes VALUES (?1)", [number])?;
        }
        if self.position == 0 {
            // The position is unknown; each event had one, so the sum of the sequences is a lower bound.
            let known = "SELECT ifnull(sum(last_sequence), 0) FROM sandboxes";
            self.position = self.target.query_row(known, [], |row| row.get(0))?;
        }
        set_position(self.target, self.position)?;
        let own = self.salvage.source.query_row("SELECT identity FROM about", [], |row| row.get::<_, String>(0));
        let own = own.ok().and_then(|own| StoreIdentity::parse(&own));
        let identity = own.or_else(|| home.map(|home| home.identity.clone()));
        // The home has seen events that the remaining rows do not contain.
        self.report.missing = home
            .filter(|home| Some(&home.identity) == identity.as_ref() && home.position > self.position)
            .map(|home| MissingEvents { after: self.position, until: home.position });
        if let Some(identity) = identity {
            self.target.execute("UPDATE about SET identity = ?1", [identity.as_str()])?;
        }
        self.target.execute_batch("UPDATE about SET restored = 1, clean = 1")
    }
}

fn integer(row: &[Value], at: usize) -> i64 {
    if let Some(Value::Integer(number)) = row.get(at) { *number } else { 0 }
}

fn text(row: &[Value], at: usize) -> Option<String> {
    if let Some(Value::Text(text)) = row.get(at) { Some(text.clone()) } else { None }
}
