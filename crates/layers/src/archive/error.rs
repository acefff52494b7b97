//! Why an archive is not unpacked.

use std::io;

/// The longest name that an error repeats.
const SHOWN: usize = 256;

/// An archive that is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is something else.
    #[error("not a tar archive{}", .0.map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
    NotATar(Option<&'static str>),
    /// It ends before its end.
    #[error("the archive is cut short: it ends {}", within(.0))]
    CutShort(Option<String>),
    /// There is no header where one has to be.
    #[error("the archive is damaged: there is no header at byte {at}, behind entry {entry:?}")]
    Damaged {
        /// Where it should be.
        at: u64,
        /// The entry before, shortened where it is very long.
        entry: String,
    },
    /// One entry cannot be accepted.
    #[error("entry {entry:?} is refused: {why}")]
    Refused {
        /// Its name, shortened where it is very long.
        entry: String,
        /// What is wrong with it.
        why: Refusal,
    },
    /// It cannot be read.
    #[error("reading the archive: {0}")]
    Read(io::Error),
    /// The content of an entry cannot be read.
    #[error("reading entry {entry:?}: {source}")]
    Content {
        /// Its name, shortened where it is very long.
        entry: String,
        /// What the system said.
        source: io::Error,
    },
    /// An entry cannot be written.
    #[error("writing entry {entry:?}: {source}")]
    Write {
        /// Its name, shortened where it is very long.
        entry: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its name would leave the tree.
    #[error("a name with `..` in it leaves the tree")]
    Leaves,
    /// Its name begins at a root that is not its own.
    #[error("its name is absolute, and a layer has names within an image only")]
    Absolute,
    /// It has no name, or that of the root without being a directory.
    #[error("it has no name of its own")]
    Nameless,
    /// A name or a target holds a byte that none can hold.
    #[error("there is a zero byte in its name or its target")]
    ZeroByte,
    /// A name or a target is longer than the system has them.
    #[error("its name or its target is too long")]
    TooLong,
    /// It lies too deep.
    #[error("it lies deeper than {0} directories")]
    TooDeep(usize),
    /// What should be a directory on its way is none.
    #[error("its path leads through a link or a file")]
    Through,
    /// A directory would replace something else, or something else a directory.
    #[error("an earlier entry of that name is a directory and this is not, or the other way round")]
    Replaces,
    /// Its name is that of an earlier entry.
    #[error("an earlier entry of this archive has that name")]
    Twice,
    /// A hard link to nothing, to a directory, or through a link.
    #[error("it is a hard link to {0:?}, which is no earlier file of this archive")]
    HardLink(String),
    /// A symbolic link to nothing.
    #[error("it is a symbolic link without a target")]
    NoTarget,
    /// Its owner is none that a sandbox has.
    #[error(
        "its owner {0} is above 65535, the last that a sandbox has\nhint: give it to one of those where the image is made"
    )]
    Owner(u64),
    /// It is of a kind that is not known.
    #[error("it is of an unknown kind ({0:?})")]
    Kind(char),
    /// It is a device.
    #[error("it is a device, and those are made by the host alone")]
    Device,
    /// It takes something away that has no name, or it is no file.
    #[error("a name that begins with `.wh.` takes away what has the rest as its name, and this one cannot")]
    Whiteout,
    /// It takes the whole root away.
    #[error("it takes away all layers below its own; write them anew without them")]
    OpaqueRoot,
    /// It has a content, and its kind has none.
    #[error("an entry of its kind has no content, and this one claims some")]
    Content,
    /// A number in its header is none, or out of bounds.
    #[error("its {0} is not a number that one can have")]
    Number(&'static str),
    /// What describes it is damaged, too large, or describes nothing.
    #[error("the extended header before it is damaged, too large or out of place")]
    Extension,
    /// The map of a sparse file contradicts itself, or is too large.
    #[error("the map of a sparse file contradicts itself or is too large")]
    SparseMap,
    /// A sparse file in a format that is not read.
    #[error("it is a sparse file in an old format; write the archive with `tar --sparse-version=1.0`")]
    SparseFormat,
    /// An attribute that would speak to the overlay file system.
    #[error("its attribute {0:?} would speak to the file system below the sandbox")]
    Attribute(String),
    /// The archive unpacks to more than is allowed.
    #[error("with it the archive unpacks to more than {0} bytes")]
    TooLarge(u64),
    /// The archive has more entries than are allowed.
    #[error("with it the archive has more than {0} entries")]
    TooMany(u64),
    /// Too many directories have no entry of their own.
    #[error("with it too many directories of this layer have no entry of their own")]
    Missing,
}

// === impl ArchiveError ===

impl ArchiveError {
    pub(super) fn refused(name: &[u8], why: Refusal) -> Self {
        Self::Refused { entry: shown(name), why }
    }

    /// Whether it was the disk that had no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Write { source, .. } if crate::error::is_full(source))
    }

    pub(super) fn write(name: &[u8], source: io::Error) -> Self {
        Self::Write { entry: shown(name), source }
    }
}

/// Where an archive ends that ends too early.
fn within(entry: &Option<String>) -> String {
    entry.as_ref().map_or_else(|| "without its end mark".to_owned(), |entry| format!("within entry {entry:?}"))
}

/// A name as an error shows it.
pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name.get(..SHOWN).unwrap_or(name)).into_owned()
}
