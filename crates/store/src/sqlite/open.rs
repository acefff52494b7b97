//! Opens a database, after checking that it is ours, intact, and of a known version.

use std::collections::HashMap;
use std::fs::{OpenOptions, Permissions, set_permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::checkpoint::Checkpointer;
use super::inspect::{has_log, inspect, with_suffix};
use super::sequence_floor::{LostEvents, raise};
use super::wal_index::WalIndex;
use super::{Sqlite, copy, read, schema};
use crate::marker::MarkerFile;
use crate::reserve::DiskReserve;
use crate::{StoreError, StoreIdentity, StoreOptions};

/// The busy timeout: only another writing program holds a file lock for so long.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which a reader retries while the WAL index is not ready.
const RETRY: Duration = Duration::from_millis(5);

/// Makes SQLite open the WAL index without writing to it, unless this process already has it open.
const READ_ONLY_INDEX: &str = "readonly_shm=1";

/// How many bytes of its file the log keeps after a reset.
const LOG_KEPT: u64 = 16 << 20;

pub(super) const MODE: u32 = 0o600;

/// The time limit of the damage check at the start: a larger store is served before the check is complete.
const QUICK_CHECK_TIME: Duration = Duration::from_millis(100);
/// After how many virtual machine steps of SQLite the time is checked.
const STEPS: i32 = 1000;

/// A connection that cannot write, and leaves no files behind.
pub(super) struct ReadOnlyConnection {
    pub(super) connection: Connection,
    /// Whether it opened the file as immutable, so that it creates no log for one that has none.
    pub(super) is_immutable: bool,
}

impl Sqlite {
    /// Opens a database, releasing its reserve if the disk is full.
    pub(crate) fn open(path: &Path, boot: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let mut reserve = DiskReserve::open(path, options.reserve);
        loop {
            match Self::open_within(path, boot, options) {
                Err(StoreError::Full) if reserve.release() => {}
                Ok(sqlite) => return Ok(Self { reserve, ..sqlite }.settled()),
                Err(error) => return Err(error),
            }
        }
    }

    fn open_within(path: &Path, boot: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let origin = inspect(path, options.home_marker.as_deref())?;
        create(path).map_err(|error| StoreError::file(path, error))?;
        let mut index = options.index_lock.map(|lock| WalIndex::open(path, lock, options)).transpose()?;
        let mut connection = connect_to_write(path)?;
        let version = recognize(&connection, path)?;
        // SQLite creates the files beside it with the same mode.
        set_permissions(path, Permissions::from_mode(MODE)).map_err(|error| StoreError::file(path, error))?;
        let mode: String = connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            return Err(StoreError::file(path, io::Error::other("it cannot have a write-ahead log there")));
        }
        // A separate thread runs checkpoints, so that no commit waits for one. A log that became long is truncated when
        // it is reset.
        connection.execute_batch("PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=-16384")?;
        connection.query_row(&format!("PRAGMA journal_size_limit={LOG_KEPT}"), [], |_| Ok(()))?;
        quick_check(&connection, Instant::now() + QUICK_CHECK_TIME)?;
        if (1..schema::NEWEST).contains(&version) {
            copy::keep_before_migration(&connection, path, version)?;
        }
        if let Some(index) = &mut index {
            index.make_room(&connection)?;
        }
        schema::migrate(&mut connection, schema::STEPS)?;
        if let Some(index) = &mut index {
            index.make_room(&connection)?;
        }
        record_boot(&mut connection, boot, origin.seen_position())?;
        // The database file itself records that it is in use, so that a copy without its log is recognized.
        let is_full =
            match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).map_err(StoreError::from) {
                Ok(()) => false,
                // The log is complete, and a full disk must not prevent users from deleting sandboxes.
                Err(StoreError::Full) => true,
                Err(error) => return Err(error),
            };
        connection.set_prepared_statement_cache_capacity(64);
        if let Some(pages) = options.max_pages.filter(|_| index.is_none()) {
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        let position = read::position(&connection)?;
        let marker = options.home_marker.as_deref().map(|path| open_marker(&connection, path, position)).transpose()?;
        let checkpoints = Checkpointer::start(connect_to_write(path)?, is_full)?;
        let (sequences, reserve) = (HashMap::new(), DiskReserve::none());
        let (flushes, flush_failed, log_is_stuck) = (true, false, false);
        Ok(Self {
            connection,
            checkpoints,
            flushes,
            flush_failed,
            position,
            marker,
            origin,
            sequences,
            reserve,
            log_is_stuck,
            index,
        })
    }
}

/// Checks for damage, up to a deadline.
fn quick_check(connection: &Connection, until: Instant) -> Result<(), StoreError> {
    connection.progress_handler(STEPS, Some(move || Instant::now() >= until));
    let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    connection.progress_handler(STEPS, None::<fn() -> bool>);
    match found {
        Ok(found) if found == "ok" => Ok(()),
        Ok(found) => Err(StoreError::Damaged { what: found }),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(()),
        Err(error) => Err(StoreError::reading(error)),
    }
}

/// Opens the marker of the home; everything that is in the store by now is fsynced.
fn open_marker(connection: &Connection, path: &Path, position: u64) -> Result<MarkerFile, StoreError> {
    let identity: String = connection.query_row("SELECT identity FROM about", [], |row| row.get(0))?;
    let identity = StoreIdentity::parse(&identity)
        .ok_or_else(|| StoreError::Damaged { what: format!("{identity:?} is no identity of a store") })?;
    let mut marker = MarkerFile::open(path, identity);
    marker.write(position);
    Ok(marker)
}

/// A read-only connection to a store that this process has open. It shares the WAL index with the writer, and creates
/// none after the writer has closed.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    connect_by_uri(path, READ_ONLY_INDEX)
}

impl ReadOnlyConnection {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let is_immutable = !has_log(path);
        let connection = if is_immutable { connect_by_uri(path, "immutable=1")? } else { connect_to_log(path)? };
        Ok(Self { connection, is_immutable })
    }
}

/// Opens a store that has a log for reading, and never writes to the WAL index, which others may have mapped on a full
/// disk.
fn connect_to_log(path: &Path) -> Result<Connection, StoreError> {
    // Without an index SQLite scans the log itself, but requires the file. Opening and closing an existing one would
    // release locks.
    let _ = OpenOptions::new().write(true).create_new(true).mode(MODE).open(with_suffix(path, "-shm"));
    connect_by_uri(path, READ_ONLY_INDEX)
}

/// Runs a read, and retries it while SQLite reports that the WAL index of another process is not ready: while that
/// process starts the log, or ends a transaction just as this one reads the header.
pub(super) fn read_when_ready<T>(mut read: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        match read() {
            Err(error) if error.is_index_not_ready() && Instant::now() < until => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}

fn connect_by_uri(path: &Path, option: &str) -> Result<Connection, StoreError> {
    let escape = |byte: &u8| match byte {
        b'/' | b'-' | b'_' | b'.' | b'~' => char::from(*byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    let path = std::path::absolute(path).map_err(|error| StoreError::file(path, error))?;
    let name: String = path.as_os_str().as_bytes().iter().map(escape).collect();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    connect(format!("file:{name}?{option}").as_ref(), flags)
}

/// A read-write connection. The log is kept when it is closed, unless the store was closed cleanly.
fn connect_to_write(path: &Path) -> Result<Connection, StoreError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// The schema version of a database, if it is a store and the version is supported.
pub(super) fn recognize(connection: &Connection, path: &Path) -> Result<usize, StoreError> {
    let application = match connection.pragma_query_value(None, "application_id", |row| row.get::<_, i32>(0)) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            return Err(StoreError::NotOurs(path.into()));
        }
        other => other.map_err(StoreError::reading)?,
    };
    let version = schema::version(connection).map_err(StoreError::reading)?;
    if application != schema::APPLICATION {
        let tables: u64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(StoreError::reading)?;
        if application != 0 || version != 0 || tables != 0 {
            return Err(StoreError::OtherDatabase(path.into()));
        }
    }
    if version > schema::NEWEST {
        let number = |version| u32::try_from(version).unwrap_or(u32::MAX);
        return Err(StoreError::Newer { path: path.into(), found: number(version), known: number(schema::NEWEST) });
    }
    Ok(version)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Creates the file if it does not exist. It is closed before SQLite opens it, because closing it later would release
/// SQLite's locks.
fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(path).map(drop)
}

/// Records the boot id of the writer. If the last one ended without a close, commits without fsync may be lost; if
/// `seen` is given, clients have seen events up to that position which this store may lack. Their numbers are not
/// reused.
fn record_boot(connection: &mut Connection, boot: &str, observed: Option<u64>) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let (last, clean): (String, bool) =
        transaction.query_row("SELECT boot, clean FROM about", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if let Some(position) = observed {
        raise(&transaction, LostEvents::Since(position))?;
    } else if last != boot && !clean {
        raise(&transaction, LostEvents::Unflushed)?;
    }
    transaction.execute("UPDATE about SET boot = ?1, clean = 0, restored = 0", [boot])?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn damage_is_found_unless_the_deadline_of_the_check_has_passed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large.db");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE t (a); WITH RECURSIVE n (a) AS (VALUES (1) UNION ALL SELECT a + 1 FROM n LIMIT 20000)
                 INSERT INTO t SELECT zeroblob(1000) FROM n",
            )
            .unwrap();
        drop(connection);
        let check = |until| quick_check(&Connection::open(&path).unwrap(), until);
        let [passed, later] = [Instant::now(), Instant::now() + Duration::from_secs(600)];
        check(later).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        // The check goes through the pages from the last one to the first.
        file.write_all_at(&[0xa5; 4096], 1000 * 4096).unwrap();
        assert!(matches!(check(later), Err(StoreError::Damaged { .. })));
        check(passed).unwrap();
    }
}
