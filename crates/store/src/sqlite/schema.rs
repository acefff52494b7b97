//! The schema, and the migrations from older versions.

use rusqlite::Connection;

use super::checksum::ChecksummedTable;

/// The application id in the file header: `Crrl`.
pub(super) const APPLICATION: i32 = 0x4372_726c;

/// The migration to each version from the previous one. Released steps never change.
pub(super) const STEPS: &[MigrationStep] = &[
    MigrationStep::sql(FIRST),
    MigrationStep { sql: SECOND, code: Some(backfill_checksums_v2) },
    MigrationStep::sql(THIRD),
];

/// The version that this code writes.
pub(super) const NEWEST: usize = STEPS.len();
/// Since this version a store has an identity, and its rows have checksums.
pub(super) const CHECKSUMS: usize = 2;
/// Since this version a store records what retention removed.
pub(super) const TRIMMED: usize = 3;

/// The migration from one version to the next.
#[derive(Clone, Copy)]
pub(super) struct MigrationStep {
    sql: &'static str,
    /// What SQL cannot do; it runs after the SQL in the same transaction.
    code: Option<fn(&Connection) -> rusqlite::Result<()>>,
}

const FIRST: &str = "
    CREATE TABLE about (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        boot TEXT NOT NULL,
        clean INTEGER NOT NULL
    ) STRICT;
    INSERT INTO about VALUES (1, '', 1);

    CREATE TABLE reserved_sandboxes (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
    CREATE TABLE reserved_execs (id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

    CREATE TABLE sandboxes (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        owner INTEGER NOT NULL,
        state INTEGER NOT NULL,
        desired INTEGER NOT NULL,
        reason TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        disk TEXT NOT NULL,
        journal INTEGER NOT NULL,
        idle_ms INTEGER,
        created_at INTEGER NOT NULL,
        state_changed_at INTEGER NOT NULL,
        active_at INTEGER NOT NULL,
        error_code TEXT NOT NULL,
        error_message TEXT NOT NULL,
        last_sequence INTEGER NOT NULL,
        floor INTEGER NOT NULL,
        ceiling INTEGER NOT NULL,
        image TEXT NOT NULL,
        labels TEXT NOT NULL,
        spec TEXT NOT NULL
    ) STRICT;

    CREATE TABLE execs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        sandbox INTEGER NOT NULL,
        state INTEGER NOT NULL,
        cancelling INTEGER NOT NULL,
        command TEXT NOT NULL,
        cwd TEXT NOT NULL,
        env TEXT NOT NULL,
        options TEXT NOT NULL,
        exit_code INTEGER NOT NULL,
        error_code TEXT NOT NULL,
        error_message TEXT NOT NULL,
        stdout_log BLOB NOT NULL,
        stderr_log BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        ended_at INTEGER
    ) STRICT;
    CREATE INDEX execs_of_sandbox ON execs (sandbox);
    CREATE INDEX running_execs ON execs (state) WHERE state = 1;

    CREATE TABLE events (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        sandbox INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        at INTEGER NOT NULL,
        state INTEGER NOT NULL,
        about INTEGER NOT NULL,
        subject TEXT NOT NULL,
        exec_state INTEGER,
        exit_code INTEGER,
        error_code TEXT NOT NULL,
        error_message TEXT NOT NULL,
        reason TEXT NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX events_of_sandbox ON events (sandbox, sequence);

    CREATE TABLE gaps (
        sandbox INTEGER NOT NULL,
        after INTEGER NOT NULL,
        until INTEGER NOT NULL,
        PRIMARY KEY (sandbox, after)
    ) STRICT, WITHOUT ROWID;
";

const SECOND: &str = "
    ALTER TABLE about ADD COLUMN identity TEXT NOT NULL DEFAULT '';
    ALTER TABLE about ADD COLUMN restored INTEGER NOT NULL DEFAULT 0;
    UPDATE about SET identity = lower(hex(randomblob(16)));

    ALTER TABLE sandboxes ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE execs ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE events ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE gaps ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;

    CREATE TABLE incomplete_sandboxes (number INTEGER PRIMARY KEY) STRICT;
";

const THIRD: &str = "
    CREATE TABLE trimmed (
        sandbox INTEGER PRIMARY KEY,
        events INTEGER NOT NULL,
        execs INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT;
";

/// A later version that changes columns has to give this its own list of them.
fn backfill_checksums_v2(connection: &Connection) -> rusqlite::Result<()> {
    ChecksummedTable::SECOND.iter().try_for_each(|table| table.seal(connection))
}

/// The schema version of a store; 0 is one without tables.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<usize> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Migrates a store to the newest version, atomically.
pub(super) fn migrate(connection: &mut Connection, steps: &[MigrationStep]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive)?;
    let version = version(&transaction)?;
    for step in steps.iter().skip(version) {
        transaction.execute_batch(step.sql)?;
        if let Some(code) = step.code {
            code(&transaction)?;
        }
    }
    if version < steps.len() {
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", steps.len())?;
    }
    transaction.commit()
}

// === impl MigrationStep ===

impl MigrationStep {
    const fn sql(sql: &'static str) -> Self {
        Self { sql, code: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD_NOTE: MigrationStep = MigrationStep::sql(
        "ALTER TABLE about ADD COLUMN note TEXT NOT NULL DEFAULT 'none'; DELETE FROM reserved_execs;",
    );

    /// A store of the first version with one row.
    fn old() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &STEPS[..1]).unwrap();
        connection.execute_batch("INSERT INTO reserved_execs VALUES ('exec-1')").unwrap();
        connection
    }

    fn reserved(connection: &Connection) -> u64 {
        connection.query_row("SELECT count(*) FROM reserved_execs", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn an_older_store_is_migrated_step_by_step_and_only_once() {
        let mut connection = old();
        let code = MigrationStep {
            sql: "INSERT INTO reserved_execs VALUES ('exec-2')",
            code: Some(|connection| connection.execute_batch("UPDATE about SET note = 'from code'")),
        };
        let steps = [STEPS[0], ADD_NOTE, code];
        for _ in 0..2 {
            migrate(&mut connection, &steps).unwrap();
            assert_eq!((version(&connection).unwrap(), reserved(&connection)), (3, 1));
        }
        let note: String = connection.query_row("SELECT note FROM about", [], |row| row.get(0)).unwrap();
        assert_eq!(note, "from code");
    }

    #[test]
    fn a_migration_that_fails_leaves_the_older_store() {
        for failing in [
            MigrationStep::sql("INSERT INTO nothing VALUES (1)"),
            MigrationStep { sql: "", code: Some(|_| Err(rusqlite::Error::InvalidQuery)) },
        ] {
            let mut connection = old();
            migrate(&mut connection, &[STEPS[0], ADD_NOTE, failing]).unwrap_err();
            assert_eq!((version(&connection).unwrap(), reserved(&connection)), (1, 1));
            connection.query_row("SELECT note FROM about", [], |_| Ok(())).unwrap_err();
        }
    }
}
