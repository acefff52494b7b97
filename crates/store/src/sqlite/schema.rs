//! The tables, and how an older store gets them.

use rusqlite::Connection;

/// What the file says it is: `Crrl`.
pub(super) const APPLICATION: i32 = 0x4372_726c;

/// What makes each version from the one before. What is released is never changed.
pub(super) const STEPS: &[&str] = &[FIRST];

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

/// The version of a store; 0 is one that has no tables yet.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<usize> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Brings a store to the newest version: wholly, or not at all.
pub(super) fn migrate(connection: &mut Connection, steps: &[&str]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive)?;
    let version = version(&transaction)?;
    for step in steps.iter().skip(version) {
        transaction.execute_batch(step)?;
    }
    if version < steps.len() {
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", steps.len())?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: &str = "ALTER TABLE about ADD COLUMN wish TEXT NOT NULL DEFAULT 'none'; DELETE FROM reserved_execs;";

    /// A store of the first version, with something in it.
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
        let steps = [FIRST, SECOND, "INSERT INTO reserved_execs VALUES ('exec-2')"];
        for _ in 0..2 {
            migrate(&mut connection, &steps).unwrap();
            assert_eq!((version(&connection).unwrap(), reserved(&connection)), (3, 1));
        }
        let wish: String = connection.query_row("SELECT wish FROM about", [], |row| row.get(0)).unwrap();
        assert_eq!(wish, "none");
    }

    #[test]
    fn a_migration_that_fails_leaves_the_older_store() {
        let mut connection = old();
        migrate(&mut connection, &[FIRST, SECOND, "INSERT INTO nothing VALUES (1)"]).unwrap_err();
        assert_eq!((version(&connection).unwrap(), reserved(&connection)), (1, 1));
        connection.query_row("SELECT wish FROM about", [], |_| Ok(())).unwrap_err();
    }
}
