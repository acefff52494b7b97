//! Where a store comes from, as far as the home that opens it can tell.

use std::fmt;

/// What tells one store from every other: 128 random bits, made with the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreIdentity(String);

/// How a store relates to the marker of its home, which says what was last flushed there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreOrigin {
    /// There is no file, or nothing in it.
    Missing {
        /// The position that the home's marker has, if there is one: a store was there.
        home: Option<u64>,
    },
    /// There is a store, and no sandbox was ever created in it.
    Empty {
        /// The position that the home's marker has, if that is of another store or newer than this one.
        home: Option<u64>,
    },
    /// It is the store of this home, with everything that was flushed.
    Current,
    /// The home has no marker: it was last used by a Carrel that wrote none.
    Unmarked,
    /// It is the store of this home as it was earlier: from a backup, or a copy without its write-ahead log.
    Older {
        /// The position of its newest event.
        store: u64,
        /// The position that the home's marker has; that of the store if the home has no marker.
        home: u64,
    },
    /// It is another store.
    Foreign {
        /// Its identity.
        store: StoreIdentity,
        /// That of the store that was here.
        home: StoreIdentity,
        /// The position that the home's marker has.
        position: u64,
    },
}

// === impl StoreIdentity ===

impl StoreIdentity {
    /// Takes 32 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let known = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 32 && text.bytes().all(known)).then(|| Self(text.to_owned()))
    }

    /// As 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl StoreOrigin ===

impl StoreOrigin {
    /// Above which position the store continues, because clients of this home may have seen events up to it.
    pub(crate) fn seen(&self) -> Option<u64> {
        match self {
            Self::Missing { home } | Self::Empty { home } => *home,
            Self::Older { home, .. } => Some(*home),
            Self::Foreign { position, .. } => Some(*position),
            Self::Current | Self::Unmarked => None,
        }
    }
}
