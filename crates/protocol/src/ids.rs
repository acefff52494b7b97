//! Which correlation ids belong to whom, and the words before the first frame that say so.
//!
//! A server speaks first: `[first id u32][id behind the last u32]`, then `core.ready`. The legacy form is one word, the
//! offset of the range. The two are told apart by the second word: of the legacy form it is the length of a frame.

use crate::frame::{MAX_LENGTH, MIN_LENGTH};

/// How the two sides frame the start of a connection, and whose ids are whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Two words, 128 ranges.
    Current,
    /// One word, 16 ranges; messages are stamped with generation 1.
    LegacyV1,
}

/// A non-empty range of ids without 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdRange {
    start: u32,
    end: u32,
}

/// What the eight bytes at the start of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// The form that was used.
    pub codec: Codec,
    /// The ids that this connection may use.
    pub ids: IdRange,
    /// How many of the eight bytes belong to the first frame already.
    pub frame_bytes: usize,
}

/// A range without ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id range {start} to {end} is empty")]
pub struct EmptyRange {
    /// The first id.
    pub start: u32,
    /// The id behind the last.
    pub end: u32,
}

// === impl Codec ===

impl Codec {
    /// How many connections share the ids.
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

    /// The ids of a slot. The first of every step is assigned to nobody.
    pub const fn range(self, slot: u32) -> Option<IdRange> {
        if slot >= self.slots() {
            return None;
        }
        let offset = slot * self.step();
        Some(IdRange { start: offset + 1, end: offset + self.step() })
    }

    /// The slot that an id belongs to.
    pub const fn slot_of(self, id: u32) -> u32 {
        id / self.step()
    }

    /// Who an id belongs to: the client of its slot or, in the upper half of the last slot, the host itself.
    pub const fn owner_of(self, id: u32) -> u32 {
        let slot = self.slot_of(id);
        let last = self.slots() - 1;
        if slot == last && id - last * self.step() > self.step() / 2 { self.slots() } else { slot }
    }

    /// The words before the first frame.
    pub fn prologue(self, ids: IdRange) -> Vec<u8> {
        match self {
            Self::Current => [ids.start.to_be_bytes(), ids.end.to_be_bytes()].concat(),
            Self::LegacyV1 => (ids.start - 1).to_be_bytes().to_vec(),
        }
    }
}

// === impl IdRange ===

impl IdRange {
    /// Every id but 0: a channel without other clients.
    pub const WHOLE: Self = Self { start: 1, end: u32::MAX };

    /// A range from `start` up to, without, `end`. An id of 0 is uncorrelated, so no range holds it.
    pub const fn new(start: u32, end: u32) -> Result<Self, EmptyRange> {
        let first = if start == 0 { 1 } else { start };
        if first >= end { Err(EmptyRange { start, end }) } else { Ok(Self { start: first, end }) }
    }

    /// The first id.
    pub const fn start(self) -> u32 {
        self.start
    }

    /// The id behind the last.
    pub const fn end(self) -> u32 {
        self.end
    }

    /// Whether the id is one of these.
    pub const fn contains(self, id: u32) -> bool {
        self.start <= id && id < self.end
    }
}

// === impl Prologue ===

impl Prologue {
    /// Reads the first eight bytes of a connection.
    pub fn parse(bytes: [u8; 8]) -> Result<Self, EmptyRange> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let (first, second) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let frame_length = (MIN_LENGTH..=MAX_LENGTH).contains(&second);
        if frame_length && (first == 0 || first >= second) {
            let end = first.saturating_add(Codec::LegacyV1.step());
            let ids = IdRange::new(first.saturating_add(1), end)?;
            return Ok(Self { codec: Codec::LegacyV1, ids, frame_bytes: 4 });
        }
        Ok(Self { codec: Codec::Current, ids: IdRange::new(first, second)?, frame_bytes: 0 })
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
        assert_eq!(Codec::Current.prologue(Codec::Current.range(0).unwrap()), [0, 0, 0, 1, 1, 0xff, 0xff, 0xff]);
        assert_eq!(Codec::Current.range(1).unwrap().start(), 33_554_432);
        assert_eq!(Codec::LegacyV1.step(), 268_435_455);
        assert_eq!(Codec::LegacyV1.prologue(Codec::LegacyV1.range(1).unwrap()), 268_435_455u32.to_be_bytes());
    }

    //= carrel.protocol.id-ranges-prologue-both
    #[test]
    fn slots_are_disjoint_and_an_id_finds_its_slot() {
        for codec in [Codec::Current, Codec::LegacyV1] {
            let mut end = 0;
            for slot in 0..codec.slots() {
                let range = codec.range(slot).unwrap();
                assert!(range.start() > end, "slot {slot} begins behind the one before, with a gap of one");
                assert_eq!(codec.slot_of(range.start()), slot);
                assert_eq!(codec.slot_of(range.end() - 1), slot);
                end = range.end() - 1;
            }
            assert_eq!(codec.range(codec.slots()), None);
        }
    }

    #[test]
    fn the_upper_half_of_the_last_slot_belongs_to_the_host() {
        let range = Codec::Current.range(127).unwrap();
        let half = range.start() + Codec::Current.step() / 2;
        assert_eq!(Codec::Current.owner_of(1), 0);
        assert_eq!(Codec::Current.owner_of(range.start()), 127);
        assert_eq!(Codec::Current.owner_of(half - 1), 127);
        assert_eq!(Codec::Current.owner_of(half), 128);
        assert_eq!(Codec::Current.owner_of(u32::MAX), 128);
    }

    //= versioning.three-kinds-change.change-format-sorted-handshake
    #[test]
    fn every_current_range_is_told_from_the_legacy_form() {
        for slot in 0..Codec::Current.slots() {
            let ids = Codec::Current.range(slot).unwrap();
            let parsed = Prologue::parse(words(ids.start(), ids.end())).unwrap();
            assert_eq!(parsed, Prologue { codec: Codec::Current, ids, frame_bytes: 0 });
        }
        for slot in 0..Codec::LegacyV1.slots() {
            let ids = Codec::LegacyV1.range(slot).unwrap();
            let parsed = Prologue::parse(words(ids.start() - 1, 95)).unwrap();
            assert_eq!(parsed.codec, Codec::LegacyV1);
            assert_eq!((parsed.ids.start(), parsed.frame_bytes), (ids.start(), 4));
        }
    }

    //= carrel.protocol.id-ranges-prologue-both
    #[test]
    fn edges_of_the_prologue_are_as_published_clients_take_them() {
        assert_eq!(Prologue::parse(words(0, 33_554_431)).unwrap().ids.start(), 1);
        assert_eq!(Prologue::parse(words(1, 2)).unwrap().ids, IdRange { start: 1, end: 2 });
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
