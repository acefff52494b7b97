//! Sparse files: the offsets of their stored segments.

use super::error::EntryRejection;

/// The limit of segments in a file.
const MOST: usize = 1 << 20;

/// A consistent sparse map.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SparseMap {
    segments: Vec<(u64, u64)>,
    stored: u64,
    size: u64,
}

// === impl SparseMap ===

impl SparseMap {
    /// Adds a segment.
    pub(super) fn push(&mut self, offset: u64, length: u64) -> Result<(), EntryRejection> {
        let end = self.segments.last().map_or(0, |(offset, length)| offset + length);
        if self.segments.len() == MOST || offset < end || offset.checked_add(length).is_none() {
            return Err(EntryRejection::SparseMap);
        }
        self.stored += length;
        self.segments.push((offset, length));
        Ok(())
    }

    /// Completes the map with the size of the file and of the stored bytes.
    pub(super) fn complete(mut self, size: u64, stored: u64) -> Result<Self, EntryRejection> {
        let end = self.segments.last().map_or(0, |(offset, length)| offset + length);
        if end > size || self.stored != stored || i64::try_from(size).is_err() {
            return Err(EntryRejection::SparseMap);
        }
        self.size = size;
        Ok(self)
    }

    pub(super) fn segments(&self) -> &[(u64, u64)] {
        &self.segments
    }

    /// The bytes that the archive stores.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(segments: &[(u64, u64)], size: u64, stored: u64) -> Result<SparseMap, EntryRejection> {
        let mut map = SparseMap::default();
        for (offset, length) in segments {
            map.push(*offset, *length)?;
        }
        map.complete(size, stored)
    }

    #[test]
    fn an_inconsistent_map_is_rejected() {
        let sound = map(&[(0, 10), (10, 0), (100, 5)], 200, 15).unwrap();
        assert_eq!((sound.stored(), sound.size()), (15, 200));
        assert!(map(&[], 1 << 40, 0).is_ok());
        for (segments, size, stored) in [
            (&[(0, 10), (5, 10)][..], 100, 20),
            (&[(10, 1), (0, 1)], 100, 2),
            (&[(0, 10)], 9, 10),
            (&[(0, 10)], 10, 11),
            (&[(u64::MAX, 1)], 10, 1),
            (&[(0, u64::MAX), (u64::MAX, 0)], u64::MAX, u64::MAX),
        ] {
            assert_eq!(map(segments, size, stored), Err(EntryRejection::SparseMap), "{segments:?}");
        }
    }
}
