//! Consistent copies of a whole store, which other processes may use meanwhile.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rusqlite::Connection;

use super::inspect::{has_log, with_suffix};
use super::open::{ReadOnlyConnection, read_when_ready};
use crate::StoreError;

/// Keeps a copy of a store before its migration, so that the user can go back to the older version. Only the first copy
/// of a version is kept.
pub(super) fn keep_before_migration(connection: &Connection, path: &Path, version: usize) -> Result<(), StoreError> {
    let backup = with_suffix(path, &format!(".v{version}.bak"));
    if backup.exists() {
        return Ok(());
    }
    let partial = with_suffix(&backup, ".partial");
    write_copy(connection, &partial)?;
    finish(&partial, &backup)?;
    tracing::info!(backup = %backup.display(), version, "migrating the store; the old version is kept");
    Ok(())
}

/// Copies what a connection reads to a file with mode 0600. It replaces an existing file.
pub(super) fn write_copy(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::file(to, error);
    create_new(to)?;
    let name = to.to_str().ok_or_else(|| failed(io::Error::other("its name is not UTF-8")))?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(StoreError::reading)?;
    std::fs::set_permissions(to, Permissions::from_mode(0o600)).map_err(failed)
}

/// Creates an empty file with mode 0600, which SQLite treats as a new database. It replaces an existing file.
pub(super) fn create_new(path: &Path) -> Result<(), StoreError> {
    remove_database(path)?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map(drop).map_err(|error| StoreError::file(path, error))
}

/// Gives a complete file its final name, durably. It replaces an existing file.
pub(crate) fn finish(partial: &Path, path: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::file(path, error);
    File::open(partial).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(partial, path).map_err(failed)?;
    sync_directory(path)
}

/// The directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fsyncs the directory of a file.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = directory_of(path);
    File::open(directory).and_then(|file| file.sync_all()).map_err(|error| StoreError::file(directory, error))
}

/// Copies a snapshot of a store.
pub(crate) fn copy_store(from: &Path, to: &Path) -> Result<(), StoreError> {
    loop {
        let is_immutable = read_when_ready(|| {
            let ReadOnlyConnection { connection, is_immutable } = ReadOnlyConnection::open(from)?;
            write_copy(&connection, to)?;
            Ok(is_immutable)
        })?;
        // A daemon started to write, so the reads may come from two snapshots.
        if !(is_immutable && has_log(from)) {
            return Ok(());
        }
    }
}

/// Marks a store as restored, so that the next open recognizes it.
pub(crate) fn mark_restored(path: &Path) -> Result<(), StoreError> {
    let connection = Connection::open(path)?;
    // A store without an identity counts as an older one anyway.
    if super::schema::version(&connection)? >= super::schema::CHECKSUMS {
        // The copy is complete without a log, even if the original had one.
        connection.execute("UPDATE about SET restored = 1, clean = 1", [])?;
    }
    Ok(())
}

/// Removes a database that no process uses, with all files that SQLite created beside it.
pub(crate) fn remove_database(path: &Path) -> Result<(), StoreError> {
    for end in ["", "-wal", "-shm", "-journal"] {
        let file = with_suffix(path, end);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::file(file, error)),
            _ => {}
        }
    }
    Ok(())
}

/// The current time, formatted for file names.
pub(crate) fn timestamp() -> Result<String, StoreError> {
    let connection = Connection::open_in_memory()?;
    Ok(connection.query_row("SELECT strftime('%Y%m%dT%H%M%SZ', 'now')", [], |row| row.get(0))?)
}
