//! Names by which a layer says what it takes away from those below it.

use super::error::Refusal;
use super::name::{self, Name};

/// What such a name begins with.
const MARK: &[u8] = b".wh.";
/// What the names begin with that a file system of old kept for itself.
const INTERNAL: &[u8] = b".wh..wh.";
/// The name that hides all that a directory holds in the layers below.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What a name in a layer means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    /// The file that has it.
    Itself,
    /// What has this name beside it, in the layers below, is gone.
    Gone(&'a [u8]),
    /// All that its directory holds in the layers below is gone.
    Opaque,
    /// Nothing: what the layer was once written with has left it behind.
    Nothing,
}

/// Reads a name of a layer.
pub(super) fn meaning(name: &Name) -> Result<Meaning<'_>, Refusal> {
    let (above, own) = name.split();
    if let Some(part) = name::parts(above).find(|part| part.starts_with(MARK)) {
        return if part.starts_with(INTERNAL) { Ok(Meaning::Nothing) } else { Err(Refusal::Whiteout) };
    }
    match own.strip_prefix(MARK) {
        None => Ok(Meaning::Itself),
        Some(_) if own == OPAQUE => Ok(Meaning::Opaque),
        Some(_) if own.starts_with(INTERNAL) => Ok(Meaning::Nothing),
        Some(b"" | b"." | b"..") => Err(Refusal::Whiteout),
        Some(gone) => Ok(Meaning::Gone(gone)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_away_one_file_or_all_of_a_directory_or_nothing() {
        for (raw, expected) in [
            ("a/b", Ok(Meaning::Itself)),
            ("a/.whatever", Ok(Meaning::Itself)),
            ("a/.wh.b", Ok(Meaning::Gone(b"b"))),
            (".wh..hidden", Ok(Meaning::Gone(b".hidden"))),
            ("a/.wh..wh..opq", Ok(Meaning::Opaque)),
            ("a/.wh..wh.aufs", Ok(Meaning::Nothing)),
            (".wh..wh.plnk/12.34", Ok(Meaning::Nothing)),
            ("a/.wh.", Err(Refusal::Whiteout)),
            ("a/.wh..", Err(Refusal::Whiteout)),
            ("a/.wh...", Err(Refusal::Whiteout)),
            ("a/.wh.b/c", Err(Refusal::Whiteout)),
        ] {
            assert_eq!(meaning(&Name::new(raw.as_bytes()).unwrap()), expected, "{raw}");
        }
    }
}
