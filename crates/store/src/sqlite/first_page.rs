//! Rebuilds the first page of a damaged database: the header, and where each table begins.
//!
//! Every store is created by the same migration steps, or copied by SQLite in the same order, so its tables begin at
//! the same pages as those of a new one. The checksums of the rows tell whether that is right.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rusqlite::Connection;

use super::copy::{create_new, remove_database};
use super::inspect::{log_of, with_suffix};
use super::schema;
use crate::StoreError;

/// How the root pages of the tables were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableLayout {
    /// In creation order, when the store was created or repaired.
    Created,
    /// By `VACUUM`, when the store was restored from a backup.
    Copied,
}

const PAGE: usize = 4096;
/// The offsets of the format versions, the page count and the freelist in the first page.
const VERSIONS: usize = 18;
const PAGES: usize = 28;
const FREE: usize = 32;
/// The format versions of a database in WAL mode.
const WITH_LOG: [u8; 2] = [2, 2];

// === impl TableLayout ===

impl TableLayout {
    pub(super) const ALL: [Self; 2] = [Self::Created, Self::Copied];

    /// Copies a database with its log, and rebuilds the first page of the copy.
    pub(super) fn copy(self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let failed = |error| StoreError::file(to, error);
        let mut page = self.first_page(&with_suffix(to, ".new"))?;
        remove_database(to)?;
        create_new(to)?;
        let length = std::fs::copy(from, to).map_err(failed)?;
        let pages = u32::try_from(length / PAGE as u64).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?;
        page[PAGES..PAGES + 4].copy_from_slice(&pages.to_be_bytes());
        page[FREE..FREE + 8].fill(0);
        if log_of(from).exists() {
            page[VERSIONS..VERSIONS + 2].copy_from_slice(&WITH_LOG);
            std::fs::copy(log_of(from), log_of(to)).map_err(failed)?;
        }
        File::options().write(true).open(to).and_then(|file| file.write_all_at(&page, 0)).map_err(failed)
    }

    /// The first page of a store without rows.
    fn first_page(self, path: &Path) -> Result<[u8; PAGE], StoreError> {
        create_new(path)?;
        let mut connection = Connection::open(path)?;
        schema::migrate(&mut connection, schema::STEPS)?;
        if self == Self::Copied {
            connection.execute_batch("VACUUM")?;
        }
        drop(connection);
        let mut page = [0; PAGE];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut page));
        read.map_err(|error| StoreError::file(path, error))?;
        remove_database(path)?;
        Ok(page)
    }
}
