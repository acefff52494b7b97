//! Paths below a project: bytes that cannot leave it.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use crate::git::is_git;
use crate::words::Shown;

/// The longest path that is looked at, in bytes: what the kernel takes in one call.
pub const LONGEST: usize = 4095;
/// The deepest path that is looked at, in names.
pub const DEEPEST: usize = 1000;
/// The longest name that a file system of Linux takes.
const LONGEST_NAME: usize = 255;

/// A path below a project: bytes, without `.`, `..` or empty names, so that it cannot leave.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RelativePath(Vec<u8>);

/// A path that cannot be one below a project.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// It has a name that no file has.
    #[error("{} is not a path below a project", Shown(.0))]
    Name(Vec<u8>),
    /// It is longer than [`LONGEST`].
    #[error("a path is longer than {LONGEST} bytes")]
    TooLong,
    /// It is deeper than [`DEEPEST`].
    #[error("a path is deeper than {DEEPEST} directories")]
    TooDeep,
}

// === impl RelativePath ===

impl RelativePath {
    /// A path, given from the project's directory.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, BadPath> {
        let bytes = bytes.into();
        if bytes.len() > LONGEST {
            return Err(BadPath::TooLong);
        }
        let mut depth = 0;
        for name in bytes.split(|byte| *byte == b'/') {
            if matches!(name, b"" | b"." | b"..") || name.len() > LONGEST_NAME || name.contains(&0) {
                return Err(BadPath::Name(bytes));
            }
            depth += 1;
        }
        if depth > DEEPEST { Err(BadPath::TooDeep) } else { Ok(Self(bytes)) }
    }

    /// A name in a directory; the directory of the project itself is empty.
    pub(crate) fn below(directory: &[u8], name: &[u8]) -> Result<Self, BadPath> {
        Self::new(join(directory, name))
    }

    /// The path as it is.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as the system takes it.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Its names, the uppermost first.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// The uppermost `.git` that it is in; not if it is that itself.
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

    /// The directory that it lies in; that of the project itself is empty.
    pub(crate) fn directory(&self) -> &[u8] {
        self.split().0
    }

    /// Its last name.
    pub(crate) fn name(&self) -> &[u8] {
        self.split().1
    }

    /// Whether it lies below a directory, at any depth.
    pub(crate) fn is_below(&self, directory: &Self) -> bool {
        self.0.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'))
    }

    /// The repository of git that it belongs to: the path up to a name that git takes for one, however it is spelled.
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

/// A directory comes right before what is in it.
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
        Shown(&self.0).fmt(f)
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A name in a directory, unchecked.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.changes.changes-leave-project
    #[test]
    fn a_path_below_a_project_cannot_leave() {
        for good in ["a", "a/b", "..a", "a...", "\u{1b}[31m", "a b\n"] {
            assert_eq!(RelativePath::new(good).unwrap().as_bytes(), good.as_bytes());
        }
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b"] {
            assert_eq!(RelativePath::new(bad), Err(BadPath::Name(bad.into())));
        }
        assert!(RelativePath::new(vec![b'a'; 256]).is_err());
        assert_eq!(RelativePath::new(vec![b'a'; 4096]), Err(BadPath::TooLong));
        assert!(RelativePath::new("a/".repeat(999) + "a").is_ok());
        assert_eq!(RelativePath::new("a/".repeat(1000) + "a"), Err(BadPath::TooDeep));
    }

    #[test]
    fn a_directory_comes_right_before_what_is_in_it() {
        let mut paths = ["a.c", "a/z", "a", "a-b", "a/b/c", "a/b"].map(|path| RelativePath::new(path).unwrap());
        paths.sort();
        assert_eq!(paths.map(|path| path.to_string()), ["a", "a/b", "a/b/c", "a/z", "a-b", "a.c"]);
    }

    //= promises.changes.changes-git-depth-spelling
    #[test]
    fn whatever_is_called_git_is_a_repository() {
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
    fn a_path_knows_where_it_lies() {
        let path = RelativePath::new("a/b/c").unwrap();
        assert_eq!((path.directory(), path.name()), (&b"a/b"[..], &b"c"[..]));
        let top = RelativePath::new("a").unwrap();
        assert_eq!((top.directory(), top.name()), (&b""[..], &b"a"[..]));
        assert!(path.is_below(&top) && !top.is_below(&top));
        assert!(!RelativePath::new("ab").unwrap().is_below(&top));
    }
}
