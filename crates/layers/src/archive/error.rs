//! Errors of unpacking an archive.

use std::io;

/// The longest name in an error message.
const SHOWN: usize = 256;

/// An archive that could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file is not a tar.
    #[error("not a tar archive{}", .0.map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
    NotATar(Option<&'static str>),
    /// The archive is truncated.
    #[error("the archive is truncated: it ends {}", within(.0))]
    CutShort(Option<String>),
    /// A header is missing or has a wrong checksum.
    #[error("the archive is damaged: there is no header at byte {at}, after entry {entry:?}")]
    Damaged {
        /// The offset of the expected header.
        at: u64,
        /// The previous entry, shortened if long.
        entry: String,
    },
    /// An entry is not valid or not supported.
    #[error("entry {entry:?} is rejected: {why}")]
    Refused {
        /// Its name, shortened if long.
        entry: String,
        /// What is wrong with it.
        why: EntryRejection,
    },
    /// The archive could not be read.
    #[error("reading the archive: {0}")]
    Read(io::Error),
    /// The content of an entry could not be read.
    #[error("reading entry {entry:?}: {source}")]
    Content {
        /// Its name, shortened if long.
        entry: String,
        /// The error of the read.
        source: io::Error,
    },
    /// An entry could not be written to disk.
    #[error("writing entry {entry:?}: {source}")]
    Write {
        /// Its name, shortened if long.
        entry: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Why an entry is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryRejection {
    /// The name contains `..`.
    #[error("a name with `..` escapes the archive")]
    Leaves,
    /// An absolute name in a layer.
    #[error("its name is absolute, but names in a layer are relative")]
    Absolute,
    /// An empty name, or the root's for something that is not a directory.
    #[error("it has no name")]
    Nameless,
    /// A NUL byte in a name or target.
    #[error("its name or its target has a NUL byte")]
    ZeroByte,
    /// A name or target beyond the kernel's limit.
    #[error("its name or its target is too long")]
    TooLong,
    /// The depth limit is exceeded.
    #[error("it is nested deeper than {0} directories")]
    TooDeep(usize),
    /// A parent is not a directory.
    #[error("its path leads through a symlink or a file")]
    Through,
    /// A directory and another entry have the same name.
    #[error("it would replace a directory with another kind of file, or the other way round")]
    Replaces,
    /// Two entries have the same name.
    #[error("an earlier entry has the same name")]
    Twice,
    /// The target is not an earlier file.
    #[error("it is a hard link to {0:?}, which is not an earlier file of this archive")]
    HardLink(String),
    /// A symlink with an empty target.
    #[error("it is a symlink without a target")]
    NoTarget,
    /// The owner is out of range.
    #[error(
        "its owner {0} is out of range: the highest ID in a sandbox is 65535\nhint: change the owner when the image is built"
    )]
    Owner(u64),
    /// The type flag is unknown.
    #[error("its type {0:?} is unknown")]
    Kind(char),
    /// A device outside `dev`.
    #[error("it is a device, which only the host can create")]
    Device,
    /// A whiteout without a name, or one that is not a file.
    #[error("its name begins with `.wh.`, but it is not a valid whiteout")]
    Whiteout,
    /// An opaque whiteout for the root.
    #[error("it deletes all lower layers; rebuild the image without them")]
    OpaqueRoot,
    /// Content where the type has none.
    #[error("an entry of its type has no content, but this one does")]
    Content,
    /// A header field is not a number, or out of range.
    #[error("its {0} is not a valid number")]
    Number(&'static str),
    /// A pax or GNU header is damaged, too large, or followed by no entry.
    #[error("the extended header before it is damaged, too large or out of place")]
    Extension,
    /// A sparse map is inconsistent or too large.
    #[error("the map of a sparse file is inconsistent or too large")]
    SparseMap,
    /// A sparse format that is not supported.
    #[error("it is a sparse file in an old format; write the archive with `tar --sparse-version=1.0`")]
    SparseFormat,
    /// An attribute of overlayfs.
    #[error("its attribute {0:?} is reserved for overlayfs")]
    Attribute(String),
    /// The byte limit is exceeded.
    #[error("the archive unpacks to more than {0} bytes")]
    TooLarge(u64),
    /// The entry limit is exceeded.
    #[error("the archive has more than {0} entries")]
    TooMany(u64),
    /// The limit for directories without an entry is exceeded.
    #[error("too many directories of this layer have no entry")]
    Missing,
}

// === impl ArchiveError ===

impl ArchiveError {
    pub(super) fn refused(name: &[u8], why: EntryRejection) -> Self {
        Self::Refused { entry: shown(name), why }
    }

    /// Whether the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Write { source, .. } if crate::error::is_full(source))
    }

    pub(super) fn write(name: &[u8], source: io::Error) -> Self {
        Self::Write { entry: shown(name), source }
    }
}

/// Where a truncated archive ends.
fn within(entry: &Option<String>) -> String {
    entry.as_ref().map_or_else(|| "without end marker".to_owned(), |entry| format!("within entry {entry:?}"))
}

/// A name for an error message.
pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name.get(..SHOWN).unwrap_or(name)).into_owned()
}
