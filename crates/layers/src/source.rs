//! Where images are pulled from and pushed to.

mod docker;
mod files;
mod layout;

use std::io::{self, Read};

use crate::digest::Digest;
use crate::manifest::{Descriptor, Manifest, ManifestError};
use crate::platform::Platform;

pub use self::docker::DockerArchive;
pub use self::layout::OciLayout;

/// Where an image is pulled from. The store verifies all its content.
pub trait ImageSource: Sync {
    /// The manifest of the image for a platform. A source with an index calls [`resolve`](crate::resolve).
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError>;

    /// The content of a configuration or layer from an offset on, to resume an earlier read.
    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError>;
}

/// Where an image is pushed to.
pub trait ImageTarget: Sync {
    /// Whether it already has a configuration or layer.
    fn has(&self, descriptor: &Descriptor) -> Result<bool, SourceError>;

    /// Stores a configuration or layer. `open` may be called again for each attempt.
    fn blob(
        &self,
        descriptor: &Descriptor,
        open: &dyn Fn() -> io::Result<Box<dyn Read + Send>>,
    ) -> Result<(), SourceError>;

    /// Stores the manifest, after everything it refers to.
    fn manifest(&self, media_type: &str, bytes: &[u8]) -> Result<(), SourceError>;
}

/// An error of a source or target.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The manifest is not valid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The source lacks the content.
    #[error("{what} {digest} not found")]
    Missing {
        /// The kind of content.
        what: &'static str,
        /// The digest of the content.
        digest: Digest,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// An error of the implementation.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

// === impl SourceError ===

impl SourceError {
    /// Wraps an error of the implementation.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}
