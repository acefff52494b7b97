//! Names that a sandbox gives to its files: the words of a stranger.

use std::fmt;

use carrel_changes::EscapedName;

/// The longest name that a file system takes.
const LONGEST: usize = 255;

/// The name of one entry of a directory, which leads nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileName(String);

/// What is no name of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadFileName(String);

// === impl FileName ===

impl FileName {
    /// A name as such.
    pub(crate) fn new(name: &str) -> Result<Self, BadFileName> {
        let leads_elsewhere = matches!(name, "" | "." | "..") || name.contains(['/', '\0']);
        if leads_elsewhere || name.len() > LONGEST {
            Err(BadFileName(name.to_owned()))
        } else {
            Ok(Self(name.to_owned()))
        }
    }

    /// The last name of a path, whatever stands before it.
    pub(crate) fn last(path: &str) -> Result<Self, BadFileName> {
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

// === impl BadFileName ===

impl fmt::Display for BadFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not the name of a file", EscapedName(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_one_entry_and_nowhere_else() {
        for name in ["a", "...", "..a", "a b", "-rf", "~", "ä", &"n".repeat(255)] {
            assert_eq!(FileName::new(name).unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "/", "a/b", "/etc", "../x", "a/", "a\0b", &"n".repeat(256)] {
            assert!(FileName::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn of_a_path_only_the_last_name_counts() {
        assert_eq!(FileName::last("/etc/../../x").unwrap().as_str(), "x");
        assert_eq!(FileName::last("plain").unwrap().as_str(), "plain");
        for path in ["/etc/..", "/etc/", "/", "", "/a/."] {
            assert!(FileName::last(path).is_err(), "{path}");
        }
    }
}
