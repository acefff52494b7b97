//! The one version number: a counter that goes up by one whenever the protocol gains something.

use std::fmt;

/// A protocol generation, as stamped on every message in the envelope's `v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u8);

// === impl Generation ===

impl Generation {
    /// The first generation, spoken by runtimes that predate the current prologue.
    pub const LEGACY: Self = Self(1);
    /// The generation from which a peer understands `core.error`.
    pub const ERRORS: Self = Self(5);
    /// The generation that introduced raw bulk records.
    pub const BULK: Self = Self(8);
    /// The generation that introduced execution acknowledgements.
    pub const EXEC_FLOW: Self = Self(10);
    /// The highest generation that published clients know; all that is ever announced to a stranger.
    pub const PUBLISHED: Self = Self(10);
    /// The highest generation this crate implements. What lies above [`Self::PUBLISHED`] is spoken only between
    /// Carrel's own programs, and only after both said so.
    pub const CURRENT: Self = Self(11);
    /// The oldest generation this crate still carries the code for.
    pub const HORIZON: Self = Self::LEGACY;

    /// A generation by its number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Reads the envelope's `v`. A number too large for us is only ever compared, so it is clamped, not refused.
    pub fn from_wire(v: u64) -> Self {
        Self(u8::try_from(v).unwrap_or(u8::MAX))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// What two peers speak to each other: the lower of the two.
    pub fn negotiate(self, peer: Self) -> Self {
        self.min(peer)
    }

    /// Every generation from the first to the current one.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (Self::LEGACY.0..=Self::CURRENT.0).map(Self)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= versioning.number-agreed-upon-once.settle-lower-two-use
    #[test]
    fn the_negotiated_generation_is_the_lower_of_the_two() {
        for (ours, theirs) in Generation::all().flat_map(|a| Generation::all().map(move |b| (a, b))) {
            assert_eq!(ours.negotiate(theirs).get(), ours.get().min(theirs.get()));
        }
    }

    #[test]
    fn a_number_beyond_ours_is_clamped() {
        assert_eq!(Generation::from_wire(u64::MAX).get(), u8::MAX);
        assert_eq!(Generation::from_wire(10), Generation::PUBLISHED);
    }
}
