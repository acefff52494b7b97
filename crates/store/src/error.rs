//! The errors of the store.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::sqlite::DamagedRow;
use crate::{MissingEvents, Sequence};

/// Why an operation of the store failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A sandbox has or had that id.
    #[error("the sandbox id is already in use")]
    SandboxIdTaken,
    /// An exec has or had that id.
    #[error("the exec id is already in use")]
    ExecIdTaken,
    /// The sandbox has a newer event than the change is based on.
    #[error("the sandbox has changed since")]
    Stale,
    /// The sandbox or the exec does not exist.
    #[error("no such sandbox or exec")]
    Unknown,
    /// The database failed. Nothing has changed; the next request is independent of it.
    #[error("the store failed: {0}")]
    Database(#[source] Arc<dyn Error + Send + Sync>),
    /// The disk is full. Nothing has changed. While the store uses its reserve, it also refuses every change that
    /// starts something with this error.
    #[error("the disk of the store is full")]
    Full,
    /// Retention removed events before the cursor read them.
    #[error("events before {oldest} are no longer kept")]
    Expired {
        /// The sequence of the oldest event that is kept.
        oldest: Sequence,
    },
    #[error("the store is closed")]
    Closed,
    /// The file cannot be opened or prepared.
    #[error("cannot open the store {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: Arc<io::Error>,
    },
    /// The file is not a store.
    #[error("{} is not a Carrel store", .0.display())]
    NotOurs(PathBuf),
    /// The file is an SQLite database, and not a store.
    #[error("{} is a database of another program", .0.display())]
    OtherDatabase(PathBuf),
    /// A newer Carrel wrote the store.
    #[error(
        "{} is a store of version {found}, but this Carrel supports versions up to {known}: use the Carrel that wrote it", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest supported version.
        known: u32,
    },
    /// A checksum or the structure of the file is wrong.
    #[error("the store is damaged: {what}")]
    Damaged {
        /// What is damaged, and where.
        what: String,
    },
    /// It was not closed, and its write-ahead log with the last commits is missing.
    #[error(
        "{path} is not a whole store: it was not closed, and its write-ahead log {path}-wal is missing (a copy of the file alone?)", path = .0.display()
    )]
    LogMissing(PathBuf),
    /// It was not closed, and its log lacks events that the marker of the home records.
    #[error(
        "{path} is not a whole store: it was not closed, and its write-ahead log {path}-wal was truncated or damaged ({missing})", path = path.display()
    )]
    LogIncomplete {
        /// The file.
        path: PathBuf,
        missing: MissingEvents,
    },
}

/// Why a cursor cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventsError {
    /// The sandbox does not exist.
    #[error("no such sandbox")]
    Unknown,
    /// The sequence is newer than the newest event.
    #[error("no such event yet: events {oldest} to {newest} exist")]
    Future { newest: Sequence, oldest: Sequence },
    /// Retention removed the events that follow.
    #[error("that event is no longer kept: the oldest is {oldest}")]
    Expired { oldest: Sequence },
}

// === impl StoreError ===

impl StoreError {
    pub(crate) fn database(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Database(Arc::new(error))
    }

    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { path: path.into(), source: Arc::new(source) }
    }

    /// Whether the disk is full, whichever layer noticed it.
    pub(crate) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Self::Full => true,
            Self::File { source, .. } => matches!(source.kind(), StorageFull | QuotaExceeded),
            _ => false,
        }
    }

    /// Maps the error of a read: a file with a broken structure is damaged.
    pub(crate) fn reading(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged { what: error.to_string() },
            _ => error.into(),
        }
    }

    /// Whether SQLite could not read the WAL index at this time, and did not write to repair it.
    pub(crate) fn is_index_not_ready(&self) -> bool {
        use rusqlite::ffi::{SQLITE_READONLY_CANTINIT, SQLITE_READONLY_RECOVERY};
        let Self::Database(error) = self else { return false };
        let code = error.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error);
        code.is_some_and(|error| [SQLITE_READONLY_CANTINIT, SQLITE_READONLY_RECOVERY].contains(&error.extended_code))
    }

    /// A stable identifier for programs, if the store cannot be opened.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Damaged { .. } | Self::LogMissing(_) | Self::LogIncomplete { .. } => "store_damaged",
            _ => "store_unavailable",
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let text = |text: &str| Some(text.to_owned());
        match self {
            Self::Database(_) => text(
                "check the disk for errors (`dmesg | tail`); `carrel store restore FILE` returns to a backup, and `carrel store repair` keeps all that can be read",
            ),
            Self::Damaged { .. } => text(
                "stop the daemon, then run `carrel store restore FILE` to return to a backup, or without one `carrel store repair` to keep all that is intact",
            ),
            Self::LogMissing(_) | Self::LogIncomplete { .. } => {
                text("`carrel store restore FILE` returns to a backup; `carrel store repair` keeps what is there")
            }
            Self::NotOurs(_) => text(
                "`carrel store restore FILE` returns to a backup; without one, `carrel store repair` moves the file aside and keeps all that can be read",
            ),
            Self::OtherDatabase(path) => Some(format!(
                "`carrel store restore FILE` returns to a backup and keeps this file beside it; without one, move it away: \
                 mv {path} {path}.other",
                path = path.display()
            )),
            Self::Newer { path, known, .. } => Some(format!(
                "install the newer Carrel; or return to the store as it was before the upgrade: carrel store restore \
                 {}.v{known}.bak",
                path.display()
            )),
            Self::Full => text("free space on the disk of CARREL_HOME, for example with `carrel prune`"),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        if let rusqlite::Error::FromSqlConversionFailure(_, _, source) = &error
            && let Some(row) = source.downcast_ref::<DamagedRow>()
        {
            return Self::Damaged { what: row.to_string() };
        }
        if is_full(&error) {
            return Self::Full;
        }
        Self::database(error)
    }
}

/// Whether the disk is full. SQLite has a separate code for the WAL index.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
    })
}
