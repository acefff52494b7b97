//! Why the store refuses, or cannot.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::sqlite::DamagedRow;
use crate::{MissingEvents, Sequence};

/// Why the store refuses, or cannot.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// There is, or was, a sandbox of that id.
    #[error("that id of a sandbox is taken")]
    SandboxIdTaken,
    /// There is, or was, an exec of that id.
    #[error("that id of an exec is taken")]
    ExecIdTaken,
    /// Something happened to the sandbox that the change does not know of.
    #[error("the sandbox has changed since")]
    Stale,
    /// There is no such sandbox, or no such exec in it.
    #[error("there is no such sandbox or exec")]
    Unknown,
    /// The database failed. Nothing has changed; what is asked next is tried anew.
    #[error("the store failed: {0}")]
    Database(#[source] Arc<dyn Error + Send + Sync>),
    /// The disk has no room for it. Nothing has changed. While the store uses its reserve, this is also what is said of
    /// every change that begins something.
    #[error("the disk of the store is full")]
    Full,
    /// Events were removed by retention before they were read.
    #[error("events before {oldest} are no longer kept")]
    Expired {
        /// The oldest that is kept.
        oldest: Sequence,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The file cannot be opened, or is not to be had as it has to be.
    #[error("cannot open the store {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
    /// The file is something else.
    #[error("{} is no store of Carrel", .0.display())]
    NotOurs(PathBuf),
    /// A newer Carrel made it.
    #[error(
        "{} is a store of version {found}, and this Carrel knows none after {known}: use the Carrel that wrote it", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// Something in it is not what was written.
    #[error("the store is damaged: {what}")]
    Damaged {
        /// What was found, and where.
        what: String,
    },
    /// It was not closed, and what was committed last is not there.
    #[error(
        "{path} is not a whole store: it was not closed, and its write-ahead log {path}-wal is missing (a copy of the file alone?)", path = .0.display()
    )]
    LogMissing(PathBuf),
    /// It was not closed, and its log lacks what the home has seen.
    #[error(
        "{path} is not a whole store: it was not closed, and its write-ahead log {path}-wal was truncated or damaged ({missing})", path = path.display()
    )]
    LogIncomplete {
        /// The store.
        path: PathBuf,
        /// What is missing.
        missing: MissingEvents,
    },
}

/// Why events cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventsError {
    /// There is no such sandbox.
    #[error("there is no such sandbox")]
    Unknown,
    /// Nothing has happened there yet.
    #[error("no such event yet: there are {oldest} to {newest}")]
    Future {
        /// The newest there is.
        newest: Sequence,
        /// The oldest there is.
        oldest: Sequence,
    },
    /// What follows was removed by retention.
    #[error("that event is no longer kept: the oldest is {oldest}")]
    Expired {
        /// The oldest there is.
        oldest: Sequence,
    },
}

// === impl StoreError ===

impl StoreError {
    pub(crate) fn database(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Database(Arc::new(error))
    }

    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { path: path.into(), source: Arc::new(source) }
    }

    /// Whether the disk has no room, whatever noticed it.
    pub(crate) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Self::Full => true,
            Self::File { source, .. } => matches!(source.kind(), StorageFull | QuotaExceeded),
            _ => false,
        }
    }

    /// What a failed read means: a file whose structure is broken is damaged, whoever reads it next.
    pub(crate) fn reading(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged { what: error.to_string() },
            _ => error.into(),
        }
    }

    /// Whether SQLite could not read the index of the log at this moment, and wrote nothing to mend it.
    pub(crate) fn is_index_not_ready(&self) -> bool {
        use rusqlite::ffi::{SQLITE_READONLY_CANTINIT, SQLITE_READONLY_RECOVERY};
        let Self::Database(error) = self else { return false };
        let code = error.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error);
        code.is_some_and(|error| [SQLITE_READONLY_CANTINIT, SQLITE_READONLY_RECOVERY].contains(&error.extended_code))
    }

    /// What to do about it, where there is something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Database(_) => Some(
                "see whether the disk fails (`dmesg | tail`); `carrel store restore FILE` returns to a backup, and `carrel store repair` keeps all that can be read",
            ),
            Self::Damaged { .. } => Some(
                "stop the daemon, then run `carrel store restore FILE` to return to a backup, or without one `carrel store repair` to keep all that is intact",
            ),
            Self::LogMissing(_) | Self::LogIncomplete { .. } => Some(
                "`carrel store restore FILE` puts a backup in its place; `carrel store repair` takes what is there",
            ),
            Self::NotOurs(_) => Some(
                "`carrel store restore FILE` puts a backup in its place; without one, `carrel store repair` puts the file aside and keeps what can be read of it",
            ),
            Self::Full => Some("make room on the disk that CARREL_HOME is on, for example with `carrel prune`"),
            _ => None,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        if let rusqlite::Error::FromSqlConversionFailure(_, _, source) = &error {
            if let Some(row) = source.downcast_ref::<DamagedRow>() {
                return Self::Damaged { what: row.to_string() };
            }
        }
        if is_full(&error) {
            return Self::Full;
        }
        Self::database(error)
    }
}

/// Whether the disk had no room. For the index of the log SQLite has a code of its own.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
    })
}
