//! Correlation ids: the range of each client, and the prologue that assigns it.
//!
//! A server sends first: `[first id u32][end of the range u32]`, then `core.ready`. The legacy form is one word, the
//! offset of the range. The second word distinguishes them: in the legacy form it is the length of a frame.

use crate::frame::{MAX_LENGTH, MIN_LENGTH};

/// The form of the prologue, and with it the layout of the id ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrologueFormat {
    /// Two words, 128 ranges.
    Current,
    /// One word, 16 ranges; messages are stamped with generation 1.
    LegacyV1,
}

/// A non-empty range of ids without 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CorrelationIdRange {
    start: u32,
    end: u32,
}

/// The parsed start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// The detected form.
    pub codec: PrologueFormat,
    /// The ids of this connection.
    pub ids: CorrelationIdRange,
    /// How many of the eight bytes already belong to the first frame.
    pub frame_bytes: usize,
}

/// A range without ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("id range {start} to {end} is empty")]
pub struct EmptyCorrelationIdRange {
    /// The first id.
    pub start: u32,
    /// The end of the range, exclusive.
    pub end: u32,
}

// === impl PrologueFormat ===

impl PrologueFormat {
    /// The number of client slots.
    pub const fn slots(self) -> u32 {
        match self {
            Self::Current => 128,
            Self::LegacyV1 => 16,
        }
    }

    /// The distance between two ranges.
    pub const fn step(self) -> u32 {
        u32::MAX / self.slots()
    }

    /// The ids of a slot. The first id of every step is unassigned.
    pub const fn range(self, slot: u32) -> Option<CorrelationIdRange> {
        if slot >= self.slots() {
            return None;
        }
        let offset = slot * self.step();
        Some(CorrelationIdRange { start: offset + 1, end: offset + self.step() })
    }

    /// The slot of an id.
    pub const fn slot_of(self, id: u32) -> u32 {
        id / self.step()
    }

    /// The owner of an id: the client of its slot or, in the upper half of the last slot, the host itself.
    pub const fn owner_of(self, id: u32) -> u32 {
        let slot = self.slot_of(id);
        let last = self.slots() - 1;
        if slot == last && id - last * self.step() > self.step() / 2 { self.slots() } else { slot }
    }

    /// The prologue as it is sent.
    pub fn prologue(self, ids: CorrelationIdRange) -> Vec<u8> {
        match self {
            Self::Current => [ids.start.to_be_bytes(), ids.end.to_be_bytes()].concat(),
            Self::LegacyV1 => (ids.start - 1).to_be_bytes().to_vec(),
        }
    }
}

// === impl CorrelationIdRange ===

impl CorrelationIdRange {
    /// Every id but 0, for a channel without other clients.
    pub const WHOLE: Self = Self { start: 1, end: u32::MAX };

    /// A range from `start` to `end`, exclusive. Id 0 is uncorrelated, so no range contains it.
    pub const fn new(start: u32, end: u32) -> Result<Self, EmptyCorrelationIdRange> {
        let first = if start == 0 { 1 } else { start };
        if first >= end { Err(EmptyCorrelationIdRange { start, end }) } else { Ok(Self { start: first, end }) }
    }

    /// The first id.
    pub const fn start(self) -> u32 {
        self.start
    }

    /// The end of the range, exclusive.
    pub const fn end(self) -> u32 {
        self.end
    }

    /// Whether the range contains the id.
    pub const fn contains(self, id: u32) -> bool {
        self.start <= id && id < self.end
    }
}

// === impl Prologue ===

impl Prologue {
    /// Parses the first eight bytes of a connection.
    pub fn parse(bytes: [u8; 8]) -> Result<Self, EmptyCorrelationIdRange> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let (first, second) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let frame_length = (MIN_LENGTH..=MAX_LENGTH).contains(&second);
        if frame_length && (first == 0 || first >= second) {
            let end = first.saturating_add(PrologueFormat::LegacyV1.step());
            let ids = CorrelationIdRange::new(first.saturating_add(1), end)?;
            return Ok(Self { codec: PrologueFormat::LegacyV1, ids, frame_bytes: 4 });
        }
        Ok(Self { codec: PrologueFormat::Current, ids: CorrelationIdRange::new(first, second)?, frame_bytes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(first: u32, second: u32) -> [u8; 8] {
        [first.to_be_bytes(), second.to_be_bytes()].concat().try_into().unwrap()
    }

    //= carrel.protocol.id-ranges-prologue-both
    #[test]
    fn the_first_slots_are_the_published_ones() {
        assert_eq!(
            PrologueFormat::Current.prologue(PrologueFormat::Current.range(0).unwrap()),
            [0, 0, 0, 1, 1, 0xff, 0xff, 0xff]
        );
        assert_eq!(PrologueFormat::Current.range(1).unwrap().start(), 33_554_432);
        assert_eq!(PrologueFormat::LegacyV1.step(), 268_435_455);
        assert_eq!(
            PrologueFormat::LegacyV1.prologue(PrologueFormat::LegacyV1.range(1).unwrap()),
            268_435_455u32.to_be_bytes()
        );
    }

    //= carrel.protocol.id-ranges-prologue-both
    #[test]
    fn slots_are_disjoint_and_every_id_maps_to_its_slot() {
        for codec in [PrologueFormat::Current, PrologueFormat::LegacyV1] {
            let mut end = 0;
            for slot in 0..codec.slots() {
                let range = codec.range(slot).unwrap();
                assert!(range.start() > end, "slot {slot} starts after the previous one, with a gap of one");
                assert_eq!(codec.slot_of(range.start()), slot);
                assert_eq!(codec.slot_of(range.end() - 1), slot);
                end = range.end() - 1;
            }
            assert_eq!(codec.range(codec.slots()), None);
        }
    }

    #[test]
    fn the_upper_half_of_the_last_slot_belongs_to_the_host() {
        let range = PrologueFormat::Current.range(127).unwrap();
        let half = range.start() + PrologueFormat::Current.step() / 2;
        assert_eq!(PrologueFormat::Current.owner_of(1), 0);
        assert_eq!(PrologueFormat::Current.owner_of(range.start()), 127);
        assert_eq!(PrologueFormat::Current.owner_of(half - 1), 127);
        assert_eq!(PrologueFormat::Current.owner_of(half), 128);
        assert_eq!(PrologueFormat::Current.owner_of(u32::MAX), 128);
    }

    //= versioning.three-kinds-change.change-format-sorted-handshake
    #[test]
    fn every_current_range_is_distinguished_from_the_legacy_form() {
        for slot in 0..PrologueFormat::Current.slots() {
            let ids = PrologueFormat::Current.range(slot).unwrap();
            let parsed = Prologue::parse(words(ids.start(), ids.end())).unwrap();
            assert_eq!(parsed, Prologue { codec: PrologueFormat::Current, ids, frame_bytes: 0 });
        }
        for slot in 0..PrologueFormat::LegacyV1.slots() {
            let ids = PrologueFormat::LegacyV1.range(slot).unwrap();
            let parsed = Prologue::parse(words(ids.start() - 1, 95)).unwrap();
            assert_eq!(parsed.codec, PrologueFormat::LegacyV1);
            assert_eq!((parsed.ids.start(), parsed.frame_bytes), (ids.start(), 4));
        }
    }

    //= carrel.protocol.id-ranges-prologue-both
    #[test]
    fn edge_cases_of_the_prologue_match_published_clients() {
        assert_eq!(Prologue::parse(words(0, 33_554_431)).unwrap().ids.start(), 1);
        assert_eq!(Prologue::parse(words(1, 2)).unwrap().ids, CorrelationIdRange { start: 1, end: 2 });
        assert!(Prologue::parse(words(1, 1)).is_err());
        assert!(Prologue::parse(words(u32::MAX, 1)).is_err());
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_prologue_yields_only_usable_ranges() {
        bolero::check!().with_type::<[u8; 8]>().for_each(|bytes| {
            if let Ok(prologue) = Prologue::parse(*bytes) {
                assert!(prologue.ids.start() > 0 && prologue.ids.start() < prologue.ids.end());
            }
        });
    }
}
