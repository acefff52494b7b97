//! Errors of manifests and indexes.

use super::{MAX_DEPTH, MAX_LAYERS};
use crate::digest::Digest;
use crate::platform::Platform;

/// A manifest, index or configuration that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The size limit is exceeded.
    #[error("{what} of {size} bytes is larger than the limit of {largest}")]
    TooLarge {
        /// The kind of document.
        what: &'static str,
        /// The actual size.
        size: u64,
        /// The limit.
        largest: u64,
    },
    /// The content has another digest.
    #[error("the {what} should be {expected}, but its content is {found}")]
    Digest {
        /// The kind of document.
        what: &'static str,
        /// The digest that refers to it.
        expected: Digest,
        /// The digest of the content.
        found: Digest,
    },
    /// It cannot be parsed.
    #[error("the {what} cannot be read: {why}")]
    Unreadable {
        /// The kind of document.
        what: &'static str,
        /// The parser's message.
        why: String,
    },
    /// The media type is not supported.
    #[error("the {what} has the media type {found:?}, which is not supported")]
    MediaType {
        /// The kind of document.
        what: &'static str,
        /// The media type it states.
        found: String,
    },
    /// Header and document state different media types.
    #[error("the manifest was sent as {called:?}, but states {itself:?}")]
    TwoTypes {
        /// The media type of the response or descriptor.
        called: String,
        /// The media type in the document.
        itself: String,
    },
    /// One digest is used for two different things.
    #[error("the manifest uses {0} for two different things")]
    Loop(Digest),
    /// The nesting limit of indexes is exceeded.
    #[error("indexes are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// The layer limit is exceeded.
    #[error("the image has {0} layers; the limit is {MAX_LAYERS}")]
    TooMany(usize),
    /// No manifest matches the platform.
    #[error("the image is not available for {wanted}; it is available for {}", list(there))]
    NoPlatform {
        /// The requested platform.
        wanted: Platform,
        /// The platforms in the index.
        there: Vec<Platform>,
    },
    /// Manifest and configuration differ in the number of layers.
    #[error("the manifest has {layers} layers, but its configuration has {diff_ids}")]
    Layers {
        layers: usize,
        /// Diff IDs in the configuration.
        diff_ids: usize,
    },
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "no stated platform".to_owned(),
        platforms => platforms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
