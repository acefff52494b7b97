//! The marker of a home: which store it has, and up to which position that was fsynced.
//!
//! It is outside the store's directory, so that restoring, replacing or removing a store does not affect it.
//! Two records alternate: the checksum reveals a torn record, and then the previous one is valid.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{StoreError, StoreIdentity};

/// The length of a record: one line.
const RECORD_LENGTH: usize = 96;
const RECORDS: u64 = 2;
const NAME: &str = "carrel-store-1";
/// No store ever reaches this position.
const MAX_POSITION: u64 = 1 << 62;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkerRecord {
    pub(crate) identity: StoreIdentity,
    pub(crate) position: u64,
    /// How many records were written before it.
    serial: u64,
}

/// A marker that is open for writing.
#[derive(Debug)]
pub(crate) struct MarkerFile {
    path: PathBuf,
    file: Option<File>,
    next: MarkerRecord,
}

// === impl MarkerFile ===

impl MarkerFile {
    /// Opens the marker of a store. A marker that cannot be opened is logged once and then ignored.
    pub(crate) fn open(path: &Path, identity: StoreIdentity) -> Self {
        let serial = MarkerRecord::read(path).ok().flatten().map_or(0, |record| record.serial + 1);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut marker =
            Self { path: path.to_owned(), file: None, next: MarkerRecord { identity, position: 0, serial } };
        match file {
            Ok(file) => marker.file = Some(file),
            Err(error) => marker.report(&error),
        }
        marker
    }

    /// Records that everything up to a position was fsynced.
    pub(crate) fn write(&mut self, position: u64) {
        let Some(file) = &self.file else { return };
        self.next.position = position;
        let at = (self.next.serial % RECORDS) * RECORD_LENGTH as u64;
        if let Err(error) = file.write_all_at(self.next.line().as_bytes(), at) {
            self.report(&error);
            self.file = None;
        }
        self.next.serial += 1;
    }

    fn report(&self, error: &io::Error) {
        let marker = self.path.display();
        tracing::warn!(%marker, %error, "cannot write the store's marker: a restored store will not be recognized");
    }
}

// === impl MarkerRecord ===

impl MarkerRecord {
    /// The newest valid record of a marker.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, StoreError> {
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| StoreError::file(path, error))?,
        };
        let records =
            bytes.chunks(RECORD_LENGTH).take(2).filter_map(|line| Self::parse(std::str::from_utf8(line).ok()?));
        Ok(records.max_by_key(|record| record.serial))
    }

    fn line(&self) -> String {
        let fields = format!("{NAME} {} {:020} {:016x}", self.identity, self.position, self.serial);
        let sum = crc32fast::hash(fields.as_bytes());
        format!("{:<width$}\n", format!("{fields} {sum:08x}"), width = RECORD_LENGTH - 1)
    }

    fn parse(line: &str) -> Option<Self> {
        let [name, identity, position, serial, _sum] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let record = Self {
            identity: StoreIdentity::parse(identity)?,
            position: position.parse().ok().filter(|position| *position <= MAX_POSITION)?,
            serial: u64::from_str_radix(serial, 16).ok()?,
        };
        (name == NAME && record.line() == line).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(digit: char) -> StoreIdentity {
        StoreIdentity::parse(&digit.to_string().repeat(32)).unwrap()
    }

    fn read(path: &Path) -> Option<(StoreIdentity, u64)> {
        MarkerRecord::read(path).unwrap().map(|record| (record.identity, record.position))
    }

    #[test]
    fn the_newest_valid_record_is_read_and_a_torn_one_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.mark");
        assert_eq!(read(&path), None);
        let mut marker = MarkerFile::open(&path, identity('a'));
        for position in [5, 9, 12] {
            marker.write(position);
            assert_eq!(read(&path), Some((identity('a'), position)));
        }
        // The next store has fewer events, and its record is still the newest.
        let mut marker = MarkerFile::open(&path, identity('b'));
        marker.write(3);
        assert_eq!(read(&path), Some((identity('b'), 3)));
        marker.write(4);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 2 * RECORD_LENGTH);
        let newest =
            if String::from_utf8_lossy(&whole[..RECORD_LENGTH]).contains("00004 ") { 0 } else { RECORD_LENGTH };
        for torn in 0..RECORD_LENGTH {
            let mut bytes = whole.clone();
            bytes[newest + torn..newest + RECORD_LENGTH].fill(0);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path), Some((identity('b'), 3)), "torn at {torn}");
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(&path), None);
    }

    #[test]
    fn a_marker_that_cannot_be_written_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/store.mark");
        MarkerFile::open(&path, identity('a')).write(1);
        assert!(!path.exists());
        assert!(MarkerRecord::read(directory.path()).is_err(), "one that cannot be read is");
    }
}
