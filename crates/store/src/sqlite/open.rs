//! From a path to a database that is ours, whole, and of this version.

use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions, set_permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::checkpoint::Checkpoints;
use super::{Sqlite, schema};
use crate::StoreError;

/// How long one waits for a lock of the file: only another program that writes holds one for so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Only its owner reads it.
const MODE: u32 = 0o600;

/// After a power cut positions go on so much higher: nobody ever sees so many events that are not on the disk.
const JUMP: i64 = 1 << 32;

impl Sqlite {
    pub(crate) fn open(path: &Path, boot: &str, most_pages: Option<u32>) -> Result<Self, StoreError> {
        create(path).map_err(|error| StoreError::file(path, error))?;
        let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        recognize(&connection, path)?;
        // What SQLite makes beside it gets the same mode.
        set_permissions(path, Permissions::from_mode(MODE)).map_err(|error| StoreError::file(path, error))?;
        let mode: String = connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            return Err(StoreError::file(path, io::Error::other("it cannot have a write-ahead log there")));
        }
        // Checkpoints are made beside the writer, so that no commit waits for one.
        connection.execute_batch("PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=-16384")?;
        schema::migrate(&mut connection, schema::STEPS)?;
        begin(&mut connection, boot)?;
        connection.set_prepared_statement_cache_capacity(64);
        if let Some(pages) = most_pages {
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        let checkpoints = Checkpoints::start(connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?)?;
        Ok(Self { connection, checkpoints, flushes: true, doubtful: false, marks: HashMap::new() })
    }
}

/// A connection that cannot write.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// Whether a database is ours, and of a version that is known.
pub(super) fn recognize(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let application = match connection.pragma_query_value(None, "application_id", |row| row.get::<_, i32>(0)) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            return Err(StoreError::NotOurs(path.into()));
        }
        other => other?,
    };
    let version = schema::version(connection)?;
    if application != schema::APPLICATION {
        let tables: u64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if application != 0 || version != 0 || tables != 0 {
            return Err(StoreError::NotOurs(path.into()));
        }
    }
    if version > schema::STEPS.len() {
        let number = |version| u32::try_from(version).unwrap_or(u32::MAX);
        return Err(StoreError::Newer {
            path: path.into(),
            found: number(version),
            known: number(schema::STEPS.len()),
        });
    }
    Ok(())
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}

/// Makes the file if there is none. It is closed before SQLite opens it, whose locks would go with it.
fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(path).map(drop)
}

/// Notes that this start of the host writes from now on. If the last one ended without a close, what it did not flush
/// may be lost, and what was seen of that is not given again.
fn begin(connection: &mut Connection, boot: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let (last, clean): (String, bool) =
        transaction.query_row("SELECT boot, clean FROM about", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if last != boot && !clean {
        // Nothing happens any more to one that is deleted.
        transaction.execute_batch(
            "INSERT OR REPLACE INTO gaps (sandbox, after, until)
                SELECT number, last_sequence, ceiling FROM sandboxes WHERE ceiling > last_sequence AND state <> 6;
             UPDATE sandboxes SET floor = ceiling WHERE ceiling > last_sequence AND state <> 6;",
        )?;
        transaction.execute("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'events'", [JUMP])?;
    }
    transaction.execute("UPDATE about SET boot = ?1, clean = 0", [boot])?;
    transaction.commit()
}
