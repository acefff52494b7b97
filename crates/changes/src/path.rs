//! Relative paths below a project that cannot escape it.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use crate::escape::EscapedName;
use crate::git::is_git;

/// The longest path in bytes that is supported: the kernel's limit.
pub const MAX_PATH_LENGTH: usize = 4095;
/// The deepest path that is supported.
pub const MAX_DEPTH: usize = 1000;
/// The longest file name on Linux.
const LONGEST_NAME: usize = 255;

/// A path below a project: bytes, without `.`, `..` or empty components, so that it cannot escape.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RelativePath(Vec<u8>);

/// A path that is not valid below a project.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRelativePath {
    /// A component is not a valid file name.
    #[error("{} is not a path below a project", EscapedName(.0))]
    Name(Vec<u8>),
    /// It is longer than [`MAX_PATH_LENGTH`].
    #[error("a path is longer than {MAX_PATH_LENGTH} bytes")]
    TooLong,
    /// It is deeper than [`MAX_DEPTH`].
    #[error("a path is deeper than {MAX_DEPTH} directories")]
    TooDeep,
}

// === impl RelativePath ===

impl RelativePath {
    /// Parses a path relative to the project's directory.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, InvalidRelativePath> {
        let bytes = bytes.into();
        if bytes.len() > MAX_PATH_LENGTH {
            return Err(InvalidRelativePath::TooLong);
        }
        let mut depth = 0;
        for name in bytes.split(|byte| *byte == b'/') {
            if matches!(name, b"" | b"." | b"..") || name.len() > LONGEST_NAME || name.contains(&0) {
                return Err(InvalidRelativePath::Name(bytes));
            }
            depth += 1;
        }
        if depth > MAX_DEPTH { Err(InvalidRelativePath::TooDeep) } else { Ok(Self(bytes)) }
    }

    /// Joins a directory and a name; the project's own directory is empty.
    pub(crate) fn below(directory: &[u8], name: &[u8]) -> Result<Self, InvalidRelativePath> {
        Self::new(join(directory, name))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For system calls.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// The components, from the root down.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// The topmost `.git` directory that contains it; `None` for a path that is a `.git` itself.
    pub(crate) fn git_directory(&self) -> Option<&[u8]> {
        let mut end = 0;
        for name in self.names() {
            let next = end + name.len();
            if name == b".git" && next < self.0.len() {
                return self.0.get(..next);
            }
            end = next + 1;
        }
        None
    }

    /// The parent; empty for the project's own directory.
    pub(crate) fn directory(&self) -> &[u8] {
        self.split().0
    }

    /// The last component.
    pub(crate) fn name(&self) -> &[u8] {
        self.split().1
    }

    /// Whether it is below a directory, at any depth.
    pub(crate) fn is_below(&self, directory: &Self) -> bool {
        self.0.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'))
    }

    /// The git repository it belongs to: the prefix up to a component that git takes for `.git`, in any spelling.
    pub fn repository(&self) -> Option<Self> {
        let mut end = 0;
        for name in self.names() {
            end += name.len();
            if is_git(name) {
                return Some(Self(self.0.get(..end)?.to_vec()));
            }
            end += 1;
        }
        None
    }

    fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (self.0.get(..slash).unwrap_or_default(), self.0.get(slash + 1..).unwrap_or_default()),
            None => (&[], &self.0),
        }
    }
}

/// Sorts a directory right before its content.
impl Ord for RelativePath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(other.names())
    }
}

impl PartialOrd for RelativePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EscapedName(&self.0).fmt(f)
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Joins without validation.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.changes.changes-leave-project
    #[test]
    fn a_relative_path_cannot_escape() {
        for good in ["a", "a/b", "..a", "a...", "\u{1b}[31m", "a b\n"] {
            assert_eq!(RelativePath::new(good).unwrap().as_bytes(), good.as_bytes());
        }
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b"] {
            assert_eq!(RelativePath::new(bad), Err(InvalidRelativePath::Name(bad.into())));
        }
        assert!(RelativePath::new(vec![b'a'; 256]).is_err());
        assert_eq!(RelativePath::new(vec![b'a'; 4096]), Err(InvalidRelativePath::TooLong));
        assert!(RelativePath::new("a/".repeat(999) + "a").is_ok());
        assert_eq!(RelativePath::new("a/".repeat(1000) + "a"), Err(InvalidRelativePath::TooDeep));
    }

    #[test]
    fn a_directory_sorts_right_before_its_content() {
        let mut paths = ["a.c", "a/z", "a", "a-b", "a/b/c", "a/b"].map(|path| RelativePath::new(path).unwrap());
        paths.sort();
        assert_eq!(paths.map(|path| path.to_string()), ["a", "a/b", "a/b/c", "a/z", "a-b", "a.c"]);
    }

    //= promises.changes.changes-git-depth-spelling
    #[test]
    fn every_spelling_of_dot_git_is_a_repository() {
        for (path, expected) in [
            (".git", Some(".git")),
            (".git/hooks/post-checkout", Some(".git")),
            ("vendor/a/.GiT/config", Some("vendor/a/.GiT")),
            (".git/modules/.git/x", Some(".git")),
            (".gitignore", None),
            ("git/.github/x", None),
            ("a.git/x", None),
        ] {
            let found = RelativePath::new(path).unwrap().repository();
            assert_eq!(found, expected.map(|path| RelativePath::new(path).unwrap()), "{path}");
        }
    }

    #[test]
    fn a_path_has_a_parent_and_a_name() {
        let path = RelativePath::new("a/b/c").unwrap();
        assert_eq!((path.directory(), path.name()), (&b"a/b"[..], &b"c"[..]));
        let top = RelativePath::new("a").unwrap();
        assert_eq!((top.directory(), top.name()), (&b""[..], &b"a"[..]));
        assert!(path.is_below(&top) && !top.is_below(&top));
        assert!(!RelativePath::new("ab").unwrap().is_below(&top));
    }
}
