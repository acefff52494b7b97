//! Why a manifest is not used.

use super::{DEEPEST, MOST_LAYERS};
use crate::digest::Digest;
use crate::platform::Platform;

/// A manifest or an index that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is too large.
    #[error("{what} of {size} bytes is larger than {largest}, which is the most that is read")]
    TooLarge {
        /// What is.
        what: &'static str,
        /// How large it is.
        size: u64,
        /// How large it may be.
        largest: u64,
    },
    /// It is not what it is called.
    #[error("the {what} is called {expected}, but its content is {found}")]
    Digest {
        /// What it is.
        what: &'static str,
        /// What it is called.
        expected: Digest,
        /// What its content is called.
        found: Digest,
    },
    /// It is not JSON of the kind it has to be.
    #[error("the {what} cannot be read: {why}")]
    Unreadable {
        /// What it is.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// It is of a kind that is not used.
    #[error("the {what} is of the media type {found:?}, which is not one that is used here")]
    MediaType {
        /// What it is.
        what: &'static str,
        /// What it says it is.
        found: String,
    },
    /// It says that it is two things.
    #[error("the manifest is called {called:?}, and calls itself {itself:?}")]
    TwoTypes {
        /// What it was said to be.
        called: String,
        /// What it says it is.
        itself: String,
    },
    /// It names itself, or one thing as two.
    #[error("the manifest names {0} as two things that cannot be one")]
    Loop(Digest),
    /// Indexes lie in indexes, too deep.
    #[error("indexes lie in indexes, deeper than {DEEPEST}")]
    TooDeep,
    /// It has too many layers.
    #[error("it has {0} layers, and {MOST_LAYERS} is the most that one may have")]
    TooMany(usize),
    /// It is not built for what is asked for.
    #[error("there is nothing in it for {wanted}; there is {}", list(there))]
    NoPlatform {
        /// What is asked for.
        wanted: Platform,
        /// What there is.
        there: Vec<Platform>,
    },
    /// Layers and their digests differ in number.
    #[error("the manifest names {layers} layers, and its configuration {diff_ids}")]
    Layers {
        /// In the manifest.
        layers: usize,
        /// In the configuration.
        diff_ids: usize,
    },
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "nothing that says what it is for".to_owned(),
        platforms => platforms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
