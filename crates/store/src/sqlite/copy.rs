//! Copies of a whole store, made by SQLite: consistent, whoever writes meanwhile.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rusqlite::Connection;

use super::inspect::{beside, log_of};
use super::open::{ReadOnly, read_when_ready};
use crate::StoreError;

/// Keeps a store of an older version beside the one that is about to be migrated, so that one can go back to it. The first
/// one is kept: whatever came later is newer.
pub(super) fn keep_before_migration(connection: &Connection, path: &Path, version: usize) -> Result<(), StoreError> {
    let backup = beside(path, &format!(".v{version}.bak"));
    if backup.exists() {
        return Ok(());
    }
    let partial = beside(&backup, ".partial");
    write_copy(connection, &partial)?;
    finish(&partial, &backup)?;
    tracing::info!(backup = %backup.display(), version, "the store is migrated; the old one is kept");
    Ok(())
}

/// Writes a copy of what a connection reads to a file that is only its owner's. What was there is replaced.
pub(super) fn write_copy(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::file(to, error);
    create_new(to)?;
    let name = to.to_str().ok_or_else(|| failed(io::Error::other("its name is not UTF-8")))?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(StoreError::reading)?;
    std::fs::set_permissions(to, Permissions::from_mode(0o600)).map_err(failed)
}

/// Makes an empty file, which SQLite takes for a new database: so its mode is ours from the start. What was there is
/// replaced.
pub(super) fn create_new(path: &Path) -> Result<(), StoreError> {
    remove_database(path)?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map(drop).map_err(|error| StoreError::file(path, error))
}

/// Gives a file that is complete its name, durably. What had that name is replaced.
pub(crate) fn finish(partial: &Path, path: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::file(path, error);
    File::open(partial).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(partial, path).map_err(failed)?;
    sync_directory(path)
}

/// The directory that a file is in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names beside a file durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = directory_of(path);
    File::open(directory).and_then(|file| file.sync_all()).map_err(|error| StoreError::file(directory, error))
}

/// Copies a store, as it is at one moment.
pub(crate) fn copy_store(from: &Path, to: &Path) -> Result<(), StoreError> {
    loop {
        let is_immutable = read_when_ready(|| {
            let ReadOnly { connection, is_immutable } = ReadOnly::open(from)?;
            write_copy(&connection, to)?;
            Ok(is_immutable)
        })?;
        // A daemon began to write it: what was read may be of two moments.
        if !(is_immutable && log_of(from).exists()) {
            return Ok(());
        }
    }
}

/// Notes in a store that it was restored; whoever opens it first is told so.
pub(crate) fn mark_restored(path: &Path) -> Result<(), StoreError> {
    let connection = Connection::open(path)?;
    // A store without an identity is recognized as an older one anyway.
    if super::schema::version(&connection)? >= super::schema::CHECKSUMS {
        // It is complete without a log, whatever the store was from which it was copied.
        connection.execute("UPDATE about SET restored = 1, clean = 1", [])?;
    }
    Ok(())
}

/// Removes a database that nobody uses, with all that SQLite made beside it.
pub(crate) fn remove_database(path: &Path) -> Result<(), StoreError> {
    for end in ["", "-wal", "-shm", "-journal"] {
        let file = beside(path, end);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::file(file, error)),
            _ => {}
        }
    }
    Ok(())
}

/// The time, as it stands in names of files.
pub(crate) fn timestamp() -> Result<String, StoreError> {
    let connection = Connection::open_in_memory()?;
    Ok(connection.query_row("SELECT strftime('%Y%m%dT%H%M%SZ', 'now')", [], |row| row.get(0))?)
}
