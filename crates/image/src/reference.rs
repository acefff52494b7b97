//! What a person writes to name an image.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A reference to an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageRef {
    /// The host's own programs and libraries, and nothing else of it.
    Host,
    /// A directory that is a root file system, or the tar of one. Which of the two is found out when it is used.
    Path(PathBuf),
}

/// A reference that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an image: give `host`, or the path of a directory or of its tar (with a slash in it)")]
pub struct BadReference(pub String);

// === impl ImageRef ===

impl FromStr for ImageRef {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        match text {
            "host" => Ok(Self::Host),
            // A slash tells a path from a name, so that names can come to mean more.
            path if path.contains('/') => Ok(Self::Path(path.into())),
            other => Err(BadReference(other.to_owned())),
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_explicit() {
        assert_eq!("host".parse(), Ok(ImageRef::Host));
        assert_eq!("./root".parse(), Ok(ImageRef::Path("./root".into())));
        assert_eq!("images/root.tar".parse(), Ok(ImageRef::Path("images/root.tar".into())));
        for bad in ["", "debian", "Host", "root.tar"] {
            assert_eq!(bad.parse::<ImageRef>(), Err(BadReference(bad.into())));
        }
    }
}
