//! Where a store comes from, as far as the marker of its home can tell.

use std::fmt;

/// Identifies a store: 128 random bits, generated with the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreIdentity(String);

/// How a store relates to the marker of its home, which records what was last fsynced there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreOrigin {
    /// The file is missing or empty.
    Missing {
        /// The position in the home's marker, if there is one: a store was there.
        home: Option<u64>,
    },
    /// The store never had a sandbox.
    Empty {
        /// The position in the home's marker, if that is of another store or newer than this one.
        home: Option<u64>,
    },
    /// The store of this home, with everything that was fsynced.
    Current,
    /// The home has no marker: an older Carrel used it last.
    Unmarked,
    /// The store of this home at an earlier time: from a backup, or a copy without its write-ahead log.
    Older {
        /// The position of its newest event.
        store: u64,
        /// The position in the home's marker; that of the store if the home has no marker.
        home: u64,
    },
    /// The store of another home.
    Foreign {
        store: StoreIdentity,
        /// The identity of the store that was here.
        home: StoreIdentity,
        /// The position in the home's marker.
        position: u64,
    },
}

// === impl StoreIdentity ===

impl StoreIdentity {
    /// Parses 32 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let known = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 32 && text.bytes().all(known)).then(|| Self(text.to_owned()))
    }

    /// The identity as 32 hexadecimal digits.
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
    /// The position above which the store continues, because clients of this home may have seen events up to it.
    pub(crate) fn seen_position(&self) -> Option<u64> {
        match self {
            Self::Missing { home } | Self::Empty { home } => *home,
            Self::Older { home, .. } => Some(*home),
            Self::Foreign { position, .. } => Some(*position),
            Self::Current | Self::Unmarked => None,
        }
    }
}
