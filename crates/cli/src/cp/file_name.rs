//! File names that an untrusted sandbox reports.

use std::fmt;

use carrel_changes::EscapedName;

/// The longest name that a file system allows.
const LONGEST: usize = 255;

/// The name of one directory entry, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileName(String);

/// Text that is not the name of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidFileName(String);

// === impl FileName ===

impl FileName {
    /// Checks a name.
    pub(crate) fn new(name: &str) -> Result<Self, InvalidFileName> {
        let is_path = matches!(name, "" | "." | "..") || name.contains(['/', '\0']);
        if is_path || name.len() > LONGEST { Err(InvalidFileName(name.to_owned())) } else { Ok(Self(name.to_owned())) }
    }

    /// The last component of a path.
    pub(crate) fn last(path: &str) -> Result<Self, InvalidFileName> {
        Self::new(path.rsplit('/').next().unwrap_or(path))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EscapedName(self.0.as_bytes()).fmt(f)
    }
}

// === impl InvalidFileName ===

impl fmt::Display for InvalidFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not the name of a file", EscapedName(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_directory_entry_and_not_a_path() {
        for name in ["a", "...", "..a", "a b", "-rf", "~", "ä", &"n".repeat(255)] {
            assert_eq!(FileName::new(name).unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "/", "a/b", "/etc", "../x", "a/", "a\0b", &"n".repeat(256)] {
            assert!(FileName::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn only_the_last_component_of_a_path_is_used() {
        assert_eq!(FileName::last("/etc/../../x").unwrap().as_str(), "x");
        assert_eq!(FileName::last("plain").unwrap().as_str(), "plain");
        for path in ["/etc/..", "/etc/", "/", "", "/a/."] {
            assert!(FileName::last(path).is_err(), "{path}");
        }
    }
}
