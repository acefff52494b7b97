//! Where images come from, and where they go.

mod docker;
mod files;
mod layout;

use std::io::{self, Read};

use crate::digest::Digest;
use crate::manifest::{Descriptor, Manifest, ManifestError};
use crate::platform::Platform;

pub use self::docker::DockerArchive;
pub use self::layout::Layout;

/// Where an image comes from. Every byte that it gives is checked against its digest by the store.
pub trait Source: Sync {
    /// The manifest of the image for a platform. From an index it goes on with [`resolve`](crate::resolve).
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError>;

    /// The content of a configuration or a layer, from a byte on: to go on where an earlier one ended.
    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError>;
}

/// Where an image is sent.
pub trait Target: Sync {
    /// Whether it has a configuration or a layer already.
    fn has(&self, descriptor: &Descriptor) -> Result<bool, SourceError>;

    /// Takes a configuration or a layer, which can be read from its beginning as often as it has to be sent.
    fn blob(
        &self,
        descriptor: &Descriptor,
        open: &dyn Fn() -> io::Result<Box<dyn Read + Send>>,
    ) -> Result<(), SourceError>;

    /// Takes the manifest, when all that it names is there.
    fn manifest(&self, media_type: &str, bytes: &[u8]) -> Result<(), SourceError>;
}

/// A source that does not give, or a target that does not take.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// What it gives cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It does not have it.
    #[error("there is no {what} {digest}")]
    Missing {
        /// What is wanted.
        what: &'static str,
        /// What it is called.
        digest: Digest,
    },
    /// It cannot be read or written.
    #[error(transparent)]
    System(#[from] io::Error),
    /// What it says itself.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

// === impl SourceError ===

impl SourceError {
    /// What a source says itself.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}
