//! Reads the metadata of a store without changing it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::open::{ReadOnlyConnection, read_when_ready, recognize};
use super::read::position;
use super::schema::CHECKSUMS;
use crate::marker::MarkerRecord;
use crate::{MissingEvents, StoreError, StoreIdentity, StoreOrigin};

/// The metadata of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreFacts {
    pub(crate) version: u32,
    pub(crate) identity: Option<StoreIdentity>,
    pub(crate) position: u64,
    is_clean: bool,
    /// Whether it was restored from a backup, and not opened since.
    is_restored: bool,
    /// Whether it ever had a sandbox.
    is_used: bool,
}

/// The offset of the read version in the header, which tells whether the database is in WAL mode.
const READ_VERSION: usize = 19;
const WITH_LOG: u8 = 2;
/// The length of the header of a write-ahead log.
const LOG_HEADER: u64 = 32;

/// The write-ahead log of a database.
pub(crate) fn log_of(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}

/// Whether there is a write-ahead log to read. One with a header and no frame has nothing to read, nor has one with a damaged
/// header, and SQLite cannot open either with a read-only index: it takes it for one that changes all the time.
pub(crate) fn has_log(path: &Path) -> bool {
    let log = log_of(path);
    log.symlink_metadata().is_ok_and(|found| found.len() < LOG_HEADER || (found.len() > LOG_HEADER && has_header(&log)))
}

/// Whether a log begins with a valid header: a magic number and the version, the page size, and their checksum.
fn has_header(log: &Path) -> bool {
    const MAGIC: u32 = 0x377f_0682;
    let mut header = [0; 32];
    if File::open(log).and_then(|mut file| file.read_exact(&mut header)).is_err() {
        return true;
    }
    let mut words = header.chunks_exact(4).map(|word| word.try_into().unwrap_or_default());
    let header: [[u8; 4]; 8] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let magic = u32::from_be_bytes(header[0]);
    // The lowest bit tells in which byte order the checksum was computed.
    let number = if magic & 1 == 1 { u32::from_be_bytes } else { u32::from_le_bytes };
    let (mut first, mut second) = (0u32, 0u32);
    for pair in header[..6].chunks_exact(2) {
        first = first.wrapping_add(number(pair[0])).wrapping_add(second);
        second = second.wrapping_add(number(pair[1])).wrapping_add(first);
    }
    magic & !1 == MAGIC && [first, second].map(u32::to_be_bytes) == header[6..]
}

/// The path with a suffix appended to its file name.
pub(crate) fn with_suffix(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// Compares a store with the marker of its home, without changing either.
pub(crate) fn inspect(path: &Path, home_marker: Option<&Path>) -> Result<StoreOrigin, StoreError> {
    let home = home_marker.map(MarkerRecord::read).transpose()?.flatten();
    let missing = StoreOrigin::Missing { home: home.as_ref().map(|home| home.position) };
    match std::fs::metadata(path) {
        Ok(found) if found.len() > 0 => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::file(path, error)),
        _ => return Ok(missing),
    }
    let Some(facts) = read_when_ready(|| read_facts(path))? else { return Ok(missing) };
    // An older store that was closed was restored by hand; one that was not closed has lost a part of its log.
    if let Some(missing) = home.as_ref().filter(|_| !facts.is_clean).and_then(|home| facts.missing(home)) {
        return Err(StoreError::LogIncomplete { path: path.into(), missing });
    }
    Ok(facts.origin(home))
}

/// Whether a store has sandboxes; a daemon may use it meanwhile.
pub(crate) fn has_sandboxes(path: &Path) -> Result<bool, StoreError> {
    // A missing file is not an empty store.
    std::fs::metadata(path).map_err(|error| StoreError::file(path, error))?;
    let has_row = |connection: &Connection, _| {
        let found = connection.query_row("SELECT EXISTS (SELECT 1 FROM sandboxes)", [], |row| row.get(0));
        found.map_err(StoreError::reading)
    };
    loop {
        let (found, is_immutable) = read_when_ready(|| read_store(path, has_row))?;
        // A daemon started to write, so the reads may come from two snapshots.
        if !(is_immutable && has_log(path)) {
            return Ok(found.unwrap_or(false));
        }
    }
}

/// The metadata of a store, if it has tables.
fn read_facts(path: &Path) -> Result<Option<StoreFacts>, StoreError> {
    read_store(path, |_, facts| Ok(facts)).map(|(facts, _)| facts)
}

/// Reads from a snapshot of a store, if it has tables. Returns also whether the file was opened as immutable.
fn read_store<T>(
    path: &Path,
    read: impl Fn(&Connection, StoreFacts) -> Result<T, StoreError>,
) -> Result<(Option<T>, bool), StoreError> {
    let ReadOnlyConnection { connection, is_immutable } = ReadOnlyConnection::open(path)?;
    connection.execute_batch("BEGIN")?;
    let version = recognize(&connection, path)?;
    if version == 0 {
        return Ok((None, is_immutable));
    }
    let facts = StoreFacts::read(&connection, version).map_err(StoreError::reading)?;
    if is_immutable && facts.lacks_log(path)? {
        return Err(StoreError::LogMissing(path.into()));
    }
    Ok((Some(read(&connection, facts)?), is_immutable))
}

// === impl StoreFacts ===

impl StoreFacts {
    pub(super) fn read(connection: &Connection, version: usize) -> rusqlite::Result<Self> {
        let columns = if version < CHECKSUMS { "clean, '', 0" } else { "clean, identity, restored" };
        let used = "EXISTS (SELECT 1 FROM reserved_sandboxes)";
        let position = position(connection)?;
        connection.query_row(&format!("SELECT {columns}, {used} FROM about"), [], |row| {
            Ok(Self {
                version: u32::try_from(version).unwrap_or(u32::MAX),
                identity: StoreIdentity::parse(&row.get::<_, String>(1)?),
                position,
                is_clean: row.get(0)?,
                is_restored: row.get(2)?,
                is_used: row.get(3)?,
            })
        })
    }

    /// Whether the log of the store is missing: a store in use has a log until it is closed. A copy that SQLite made is
    /// marked as needing none.
    pub(crate) fn lacks_log(&self, path: &Path) -> Result<bool, StoreError> {
        let mut header = [0; READ_VERSION + 1];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
        read.map_err(|error| StoreError::file(path, error))?;
        Ok(!self.is_clean && header[READ_VERSION] == WITH_LOG && !log_of(path).exists())
    }

    /// The events that were fsynced in the home and that the store lacks. For a restored store they are expected to be
    /// missing.
    pub(crate) fn missing(&self, home: &MarkerRecord) -> Option<MissingEvents> {
        let is_lost =
            !self.is_restored && self.identity.as_ref() == Some(&home.identity) && self.position < home.position;
        is_lost.then_some(MissingEvents { after: self.position, until: home.position })
    }

    fn origin(self, home: Option<MarkerRecord>) -> StoreOrigin {
        let store = self.position;
        let is_same = |home: &MarkerRecord| self.identity.as_ref() == Some(&home.identity);
        if !self.is_used {
            let lost = home.filter(|home| !is_same(home) || home.position > store);
            return StoreOrigin::Empty { home: lost.map(|home| home.position) };
        }
        match (home, self.identity) {
            (Some(home), Some(identity)) if identity != home.identity => {
                StoreOrigin::Foreign { store: identity, home: home.identity, position: home.position }
            }
            // A store without an identity is older than the marker.
            (Some(home), None) => StoreOrigin::Older { store, home: home.position },
            (Some(home), _) if self.is_restored || store < home.position => {
                StoreOrigin::Older { store, home: home.position }
            }
            (None, _) if self.is_restored => StoreOrigin::Older { store, home: store },
            (Some(_), _) => StoreOrigin::Current,
            (None, _) => StoreOrigin::Unmarked,
        }
    }
}
