//! Whiteouts: names by which a layer deletes files of lower layers.

use super::error::EntryRejection;
use super::name::{self, ArchiveName};

/// The prefix of all whiteouts.
const MARK: &[u8] = b".wh.";
/// The prefix of internal files of AUFS.
const INTERNAL: &[u8] = b".wh..wh.";
/// Makes its directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What a name in a layer means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WhiteoutMeaning<'a> {
    /// An ordinary file.
    Itself,
    /// Deletes this name in the lower layers.
    Gone(&'a [u8]),
    /// Deletes everything in its directory in the lower layers.
    Opaque,
    /// A leftover of AUFS without meaning.
    Nothing,
}

/// Classifies a name of a layer.
pub(super) fn meaning(name: &ArchiveName) -> Result<WhiteoutMeaning<'_>, EntryRejection> {
    let (above, own) = name.split();
    if let Some(part) = name::parts(above).find(|part| part.starts_with(MARK)) {
        return if part.starts_with(INTERNAL) { Ok(WhiteoutMeaning::Nothing) } else { Err(EntryRejection::Whiteout) };
    }
    match own.strip_prefix(MARK) {
        None => Ok(WhiteoutMeaning::Itself),
        Some(_) if own == OPAQUE => Ok(WhiteoutMeaning::Opaque),
        Some(_) if own.starts_with(INTERNAL) => Ok(WhiteoutMeaning::Nothing),
        Some(b"" | b"." | b"..") => Err(EntryRejection::Whiteout),
        Some(gone) => Ok(WhiteoutMeaning::Gone(gone)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whiteout_deletes_one_name_or_all_of_a_directory_or_nothing() {
        for (raw, expected) in [
            ("a/b", Ok(WhiteoutMeaning::Itself)),
            ("a/.whatever", Ok(WhiteoutMeaning::Itself)),
            ("a/.wh.b", Ok(WhiteoutMeaning::Gone(b"b"))),
            (".wh..hidden", Ok(WhiteoutMeaning::Gone(b".hidden"))),
            ("a/.wh..wh..opq", Ok(WhiteoutMeaning::Opaque)),
            ("a/.wh..wh.aufs", Ok(WhiteoutMeaning::Nothing)),
            (".wh..wh.plnk/12.34", Ok(WhiteoutMeaning::Nothing)),
            ("a/.wh.", Err(EntryRejection::Whiteout)),
            ("a/.wh..", Err(EntryRejection::Whiteout)),
            ("a/.wh...", Err(EntryRejection::Whiteout)),
            ("a/.wh.b/c", Err(EntryRejection::Whiteout)),
        ] {
            assert_eq!(meaning(&ArchiveName::new(raw.as_bytes()).unwrap()), expected, "{raw}");
        }
    }
}
