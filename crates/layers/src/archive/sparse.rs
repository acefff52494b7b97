//! Sparse files: where the stored pieces of a file belong.

use super::error::Refusal;

/// The most pieces that a file may be in.
const MOST: usize = 1 << 20;

/// The map of a sparse file, which holds together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    segments: Vec<(u64, u64)>,
    stored: u64,
    size: u64,
}

// === impl Map ===

impl Map {
    /// Adds a piece: where it begins, and how long it is.
    pub(super) fn push(&mut self, offset: u64, length: u64) -> Result<(), Refusal> {
        let end = self.segments.last().map_or(0, |(offset, length)| offset + length);
        if self.segments.len() == MOST || offset < end || offset.checked_add(length).is_none() {
            return Err(Refusal::SparseMap);
        }
        self.stored += length;
        self.segments.push((offset, length));
        Ok(())
    }

    /// Completes a map: the size of the file, and how much of it the archive stores.
    pub(super) fn complete(mut self, size: u64, stored: u64) -> Result<Self, Refusal> {
        let end = self.segments.last().map_or(0, |(offset, length)| offset + length);
        if end > size || self.stored != stored || i64::try_from(size).is_err() {
            return Err(Refusal::SparseMap);
        }
        self.size = size;
        Ok(self)
    }

    pub(super) fn segments(&self) -> &[(u64, u64)] {
        &self.segments
    }

    /// How much of the file the archive stores.
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

    fn map(segments: &[(u64, u64)], size: u64, stored: u64) -> Result<Map, Refusal> {
        let mut map = Map::default();
        for (offset, length) in segments {
            map.push(*offset, *length)?;
        }
        map.complete(size, stored)
    }

    #[test]
    fn a_map_holds_together_or_is_refused() {
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
            assert_eq!(map(segments, size, stored), Err(Refusal::SparseMap), "{segments:?}");
        }
    }
}
