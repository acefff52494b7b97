//! Why an image is not had, kept or removed.

use std::io;
use std::path::PathBuf;

use crate::digest::Digest;
use crate::manifest::ManifestError;
use crate::source::SourceError;
use crate::unpack::UnpackError;

/// Something that the store does not do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be used.
    #[error("the store of images, {}: {source}", path.display())]
    Store {
        /// Where it is.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing at a path, or nothing that can be read.
    #[error("image {}: {source}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is at a path is no file.
    #[error("image {} is neither a directory nor the tar of one", .0.display())]
    Neither(PathBuf),
    /// A file holds layers instead of a tree.
    #[error("image {} holds layers, not a root file system\nhint: write {hint}:{}", path.display(), path.display())]
    Layers {
        /// The path.
        path: PathBuf,
        /// How such a file is named.
        hint: &'static str,
    },
    /// A file was written to while it was read.
    #[error("image {} changed while it was unpacked: try again once it is complete", .0.display())]
    Changed(PathBuf),
    /// A file is not unpacked.
    #[error("image {}: {source}", path.display())]
    Archive {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        source: UnpackError,
    },
    /// The source does not give it.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// What it says about itself cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A blob is not as long as is said.
    #[error("{what} {digest} is {found} bytes long, and its descriptor says {expected}")]
    Size {
        /// What it is.
        what: &'static str,
        /// What it is called.
        digest: Digest,
        /// How long it has to be.
        expected: u64,
        /// How long it is, at least.
        found: u64,
    },
    /// A blob ends before its end.
    #[error("layer {digest} ends after {found} of {expected} bytes\nhint: a new attempt goes on from there")]
    Cut {
        /// What it is called.
        digest: Digest,
        /// How long it has to be.
        expected: u64,
        /// How much of it came.
        found: u64,
    },
    /// A blob is not what it is called.
    #[error("{what} {expected} has another content: {found}")]
    Digest {
        /// What it is.
        what: &'static str,
        /// What it is called.
        expected: Digest,
        /// What its content is called.
        found: Digest,
    },
    /// A layer unpacks to something else than the configuration says.
    #[error("layer {blob} unpacks to {found}, and the configuration of the image says {expected}")]
    DiffId {
        /// Its blob.
        blob: Digest,
        /// What it has to unpack to.
        expected: Digest,
        /// What it unpacks to.
        found: Digest,
    },
    /// A layer is not unpacked.
    #[error("layer {blob}: {source}")]
    Unpack {
        /// Its blob.
        blob: Digest,
        /// What is wrong with it.
        source: UnpackError,
    },
    /// All together is too much.
    #[error("the image is larger than {0} bytes, which is the most that one may have")]
    TooLarge(u64),
    /// Too many of its directories have no entry of their own.
    #[error("too many directories of the image have no entry of their own in layers that put something into them")]
    Unfounded,
    /// The disk has too little room.
    #[error("the disk of {} has too little room left\nhint: `carrel prune` removes what nothing needs", .0.display())]
    Full(PathBuf),
    /// Whoever wanted it does not any more.
    #[error("it was stopped before it was complete")]
    Stopped,
    /// What is known of an image cannot be read.
    #[error("what is known of image {digest} cannot be read: {source}\nhint: `carrel image rm {digest}` removes it")]
    Damaged {
        /// Its digest.
        digest: Digest,
        /// What is wrong with it.
        source: io::Error,
    },
    /// There is no such image.
    #[error("there is no image {0}\nhint: `carrel image ls` names those that there are")]
    Unknown(String),
    /// Several images are meant.
    #[error("{0} is the beginning of several digests\nhint: write more of it")]
    Ambiguous(String),
    /// A name is too long, or empty.
    #[error("{0:?} is not a name of an image")]
    BadName(String),
    /// It is in use.
    #[error("image {digest} is in use{}\nhint: remove what uses it first", by(users))]
    InUse {
        /// Its digest.
        digest: Digest,
        /// By whom, as far as that is known. Something that runs has no name here.
        users: Vec<String>,
    },
    /// Somebody needs it whose directory is not there.
    #[error("{} needs an image, but is not there", .0.display())]
    NoOwner(PathBuf),
    /// What has changed cannot be read.
    #[error("{entry:?} cannot be saved: {source}")]
    Save {
        /// What.
        entry: String,
        /// Why.
        source: io::Error,
    },
}

// === impl StoreError ===

impl StoreError {
    /// Whether it is the image that is wrong: then no other attempt ends in another way.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Digest { .. } | Self::DiffId { .. } | Self::Size { .. } | Self::Manifest(_) => true,
            Self::TooLarge(_) | Self::Unfounded => true,
            Self::Unpack { source, .. } => matches!(source, UnpackError::Refused(_)),
            _ => false,
        }
    }

    /// Whether the disk has no room: then what came of an image is in the way of everybody.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Unpack { source, .. } | Self::Archive { source, .. } => matches!(source, UnpackError::Full(_)),
            Self::Store { source, .. } => is_full(source),
            _ => false,
        }
    }
}

/// Whether a disk had no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}
