//! Errors of the image store.

use std::io;
use std::path::PathBuf;

use crate::digest::Digest;
use crate::manifest::ManifestError;
use crate::source::SourceError;
use crate::unpack::UnpackError;

/// An operation of the image store that failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageStoreError {
    /// The store's directory cannot be used.
    #[error("image store {}: {source}", path.display())]
    Store {
        /// The store's directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Nothing readable exists at the path.
    #[error("image {}: {source}", path.display())]
    Missing {
        /// The path in the reference.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The path is neither a directory nor a regular file.
    #[error("image {} is neither a directory nor a tar", .0.display())]
    NotDirectoryOrFile(PathBuf),
    /// The archive contains layers, not a root file system.
    #[error("image {} contains layers, not a root file system\nhint: write {hint}:{}", path.display(), path.display())]
    Layers {
        /// The archive.
        path: PathBuf,
        /// The prefix of a reference to such an archive.
        hint: &'static str,
    },
    /// The archive was modified while it was read.
    #[error("image {} changed while it was unpacked; retry once it is complete", .0.display())]
    Changed(PathBuf),
    /// The archive could not be unpacked.
    #[error("image {}: {source}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        source: UnpackError,
    },
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The manifest, index or configuration is not valid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A blob has another size than its descriptor.
    #[error("{what} {digest} has {found} bytes, but its descriptor says {expected}")]
    Size {
        /// The kind of blob.
        what: &'static str,
        /// The digest in the descriptor.
        digest: Digest,
        /// The size in the descriptor.
        expected: u64,
        /// The actual size, at least.
        found: u64,
    },
    /// A blob ended early.
    #[error("layer {digest} ends after {found} of {expected} bytes\nhint: run the command again to resume")]
    Truncated {
        /// The digest in the descriptor.
        digest: Digest,
        /// The size in the descriptor.
        expected: u64,
        /// The bytes that arrived.
        found: u64,
    },
    /// The content of a blob has another digest.
    #[error("{what} {expected} has different content: {found}")]
    Digest {
        /// The kind of blob.
        what: &'static str,
        /// The digest in the descriptor.
        expected: Digest,
        /// The digest of the content.
        found: Digest,
    },
    /// A layer unpacks to another diff ID than the configuration states.
    #[error("layer {blob} unpacks to {found}, but the image's configuration says {expected}")]
    DiffId {
        blob: Digest,
        /// The diff ID in the configuration.
        expected: Digest,
        /// The diff ID of the content.
        found: Digest,
    },
    /// A layer could not be unpacked.
    #[error("layer {blob}: {source}")]
    Unpack { blob: Digest, source: UnpackError },
    /// The layers exceed the limit together.
    #[error("the image is larger than the limit of {0} bytes")]
    TooLarge(u64),
    /// The limit for directories without an entry was exceeded.
    #[error("too many directories of the image have no entry in the layers that use them")]
    TooManyMissingEntries,
    /// The disk has too little free space.
    #[error("the disk of {} has too little free space\nhint: run `carrel prune`", .0.display())]
    Full(PathBuf),
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
    /// The record of an image cannot be read.
    #[error("the record of image {digest} cannot be read: {source}\nhint: run `carrel image rm {digest}`")]
    Damaged {
        /// The digest of the manifest.
        digest: Digest,
        /// The error of reading or parsing.
        source: io::Error,
    },
    /// The store has no such image.
    #[error("no such image: {0}\nhint: run `carrel image ls`")]
    Unknown(String),
    /// A prefix matches several digests.
    #[error("{0} matches several images\nhint: write more digits of the digest")]
    Ambiguous(String),
    /// An image name is empty or too long.
    #[error("{0:?} is not a valid image name")]
    InvalidName(String),
    /// The image has users.
    #[error("image {digest} is in use{}\nhint: remove what uses it first", by(users))]
    InUse {
        /// The digest of the manifest.
        digest: Digest,
        /// The users by name; running sandboxes hold a lock instead and are not named.
        users: Vec<String>,
    },
    /// The directory of the image's user does not exist.
    #[error("{} uses an image, but does not exist", .0.display())]
    MissingOwner(PathBuf),
    /// A changed file cannot be saved.
    #[error("cannot save {entry:?}: {source}")]
    Save {
        /// The path of the file.
        entry: String,
        /// The error of reading it.
        source: io::Error,
    },
}

// === impl ImageStoreError ===

impl ImageStoreError {
    /// Whether the image itself is at fault, so that a retry cannot succeed.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Digest { .. } | Self::DiffId { .. } | Self::Size { .. } | Self::Manifest(_) => true,
            Self::TooLarge(_) | Self::TooManyMissingEntries => true,
            Self::Unpack { source, .. } => matches!(source, UnpackError::Refused(_)),
            _ => false,
        }
    }

    /// Whether the disk is full: then partial downloads are removed.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Unpack { source, .. } | Self::Archive { source, .. } => matches!(source, UnpackError::Full(_)),
            Self::Store { source, .. } => is_full(source),
            _ => false,
        }
    }
}

/// Whether the disk or the quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_a_line_of_its_own() {
        let error = ImageStoreError::Unknown("tools:1".into());
        assert_eq!(error.to_string(), "no such image: tools:1\nhint: run `carrel image ls`");
        let error = ImageStoreError::Full("/var/lib/carrel/images".into());
        assert!(error.to_string().ends_with("free space\nhint: run `carrel prune`"), "{error}");
    }
}
