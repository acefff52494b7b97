//! The protocol version: a counter that is incremented whenever the protocol gains something.

use std::fmt;

/// A protocol generation, as stamped on every message in the envelope's `v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u8);

// === impl Generation ===

impl Generation {
    /// The first generation, used by runtimes that predate the current prologue.
    pub const LEGACY: Self = Self(1);
    /// The first generation with `core.error`.
    pub const ERRORS: Self = Self(5);
    /// The first generation with raw bulk records.
    pub const BULK: Self = Self(8);
    /// The first generation with execution acknowledgements.
    pub const EXEC_FLOW: Self = Self(10);
    /// The highest generation that published clients know; the highest that is announced to unknown peers.
    pub const PUBLISHED: Self = Self(10);
    /// The highest generation that this crate implements. Generations above [`Self::PUBLISHED`] are used only between
    /// Carrel's own programs, after both announced them.
    pub const CURRENT: Self = Self(11);
    /// The oldest supported generation.
    pub const HORIZON: Self = Self::LEGACY;

    /// A generation by its number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Reads the envelope's `v`. A number that is too large is only ever compared, so it is clamped instead of
    /// rejected.
    pub fn from_wire(v: u64) -> Self {
        Self(u8::try_from(v).unwrap_or(u8::MAX))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The generation of a connection: the lower of both sides'.
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
    fn a_number_above_the_current_generation_is_clamped() {
        assert_eq!(Generation::from_wire(u64::MAX).get(), u8::MAX);
        assert_eq!(Generation::from_wire(10), Generation::PUBLISHED);
    }
}
