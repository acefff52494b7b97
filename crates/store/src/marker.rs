//! The marker of a home: which store is there, and up to which position it was flushed.
//!
//! It lies outside the store's directory, so that a store that is restored, replaced or removed does not take it along.
//! Two records take turns: one that a crash cuts short is recognized by its checksum, and the one before it counts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{StoreError, StoreIdentity};

/// The length of a record: one line.
const RECORD: usize = 96;
const RECORDS: u64 = 2;
const NAME: &str = "carrel-store-1";
/// No store ever gets as far.
const FARTHEST: u64 = 1 << 62;

/// What a marker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkerRecord {
    pub(crate) identity: StoreIdentity,
    pub(crate) position: u64,
    /// How many records were written before it.
    serial: u64,
}

/// A marker that is being written.
#[derive(Debug)]
pub(crate) struct MarkerFile {
    path: PathBuf,
    file: Option<File>,
    next: MarkerRecord,
}

// === impl MarkerFile ===

impl MarkerFile {
    /// Begins to write a marker for a store. One that cannot be written is reported, and not written.
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

    /// Notes that everything up to a position was flushed.
    pub(crate) fn write(&mut self, position: u64) {
        let Some(file) = &self.file else { return };
        self.next.position = position;
        let at = (self.next.serial % RECORDS) * RECORD as u64;
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
    /// The newest record of a marker that is whole.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, StoreError> {
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| StoreError::file(path, error))?,
        };
        let records = bytes.chunks(RECORD).take(2).filter_map(|line| Self::parse(std::str::from_utf8(line).ok()?));
        Ok(records.max_by_key(|record| record.serial))
    }

    fn line(&self) -> String {
        let said = format!("{NAME} {} {:020} {:016x}", self.identity, self.position, self.serial);
        let sum = crc32fast::hash(said.as_bytes());
        format!("{:<width$}\n", format!("{said} {sum:08x}"), width = RECORD - 1)
    }

    fn parse(line: &str) -> Option<Self> {
        let [name, identity, position, serial, _sum] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let record = Self {
            identity: StoreIdentity::parse(identity)?,
            position: position.parse().ok().filter(|position| *position <= FARTHEST)?,
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
    fn the_newest_record_counts_and_one_that_is_torn_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.mark");
        assert_eq!(read(&path), None);
        let mut marker = MarkerFile::open(&path, identity('a'));
        for position in [5, 9, 12] {
            marker.write(position);
            assert_eq!(read(&path), Some((identity('a'), position)));
        }
        // The next store has fewer events, and counts all the same.
        let mut marker = MarkerFile::open(&path, identity('b'));
        marker.write(3);
        assert_eq!(read(&path), Some((identity('b'), 3)));
        marker.write(4);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 2 * RECORD);
        let newest = if String::from_utf8_lossy(&whole[..RECORD]).contains("00004 ") { 0 } else { RECORD };
        for torn in 0..RECORD {
            let mut bytes = whole.clone();
            bytes[newest + torn..newest + RECORD].fill(0);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path), Some((identity('b'), 3)), "torn at {torn}");
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(&path), None);
    }

    #[test]
    fn a_marker_that_cannot_be_written_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/store.mark");
        MarkerFile::open(&path, identity('a')).write(1);
        assert!(!path.exists());
        assert!(MarkerRecord::read(directory.path()).is_err(), "one that cannot be read is");
    }
}
