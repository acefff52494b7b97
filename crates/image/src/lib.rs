//! From an image reference to a root file system.
//!
//! A reference is always given, never defaulted: `host`, or the path of a directory. What it yields is a description
//! ([`RootFs`]); nothing is mounted or copied here.

mod host;
mod reference;

use std::path::{Path, PathBuf};

pub use self::reference::{BadReference, ImageRef};

/// A root file system, described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootFs {
    /// Directories whose trees lie over one another, the uppermost first. Without any, the root is empty.
    pub layers: Vec<PathBuf>,
    /// Trees of the host that are shown as they are: read-only, without devices and without raised privileges.
    pub trees: Vec<Tree>,
    /// Symbolic links.
    pub links: Vec<Link>,
    /// Files with a content of their own.
    pub files: Vec<File>,
    /// Directories.
    pub directories: Vec<Directory>,
}

/// A tree of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it is shown.
    pub target: GuestPath,
}

/// A symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it is.
    pub path: GuestPath,
    /// What it points to.
    pub target: PathBuf,
}

/// A file with a content of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it is.
    pub path: GuestPath,
    /// What is in it.
    pub content: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// A directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Where it is.
    pub path: GuestPath,
    /// Its permissions.
    pub mode: u32,
    /// Its owner inside.
    pub owner: u32,
}

/// A path inside: relative to the root, without `.`, `..` or empty parts, so that it cannot leave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestPath(PathBuf);

/// A path that cannot be one inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a path inside a sandbox")]
pub struct BadGuestPath(pub PathBuf);

/// An image that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such directory.
    #[error("image {}: {source}", path.display())]
    NoDirectory {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is there, but is no directory.
    #[error("image {} is not a directory", .0.display())]
    NotADirectory(PathBuf),
}

// === impl RootFs ===

impl RootFs {
    /// Finds what a reference stands for.
    pub fn resolve(reference: &ImageRef) -> Result<Self, ImageError> {
        match reference {
            ImageRef::Host => Ok(host::root(Path::new("/"))),
            ImageRef::Directory(path) => {
                let absolute = std::fs::canonicalize(path)
                    .map_err(|source| ImageError::NoDirectory { path: path.clone(), source })?;
                if !absolute.is_dir() {
                    return Err(ImageError::NotADirectory(path.clone()));
                }
                Ok(Self { layers: vec![absolute], ..Self::default() })
            }
        }
    }
}

// === impl GuestPath ===

impl GuestPath {
    /// A path inside, given from its root.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, BadGuestPath> {
        use std::path::Component;
        let path = path.as_ref();
        let mut inside = PathBuf::new();
        for part in path.components() {
            match part {
                Component::RootDir => {}
                Component::Normal(name) => inside.push(name),
                Component::CurDir | Component::ParentDir | Component::Prefix(_) => {
                    return Err(BadGuestPath(path.to_owned()));
                }
            }
        }
        if inside.as_os_str().is_empty() { Err(BadGuestPath(path.to_owned())) } else { Ok(Self(inside)) }
    }

    /// The path, relative to the root.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_inside_cannot_leave() {
        assert_eq!(GuestPath::new("/a//b/").unwrap().as_path(), Path::new("a/b"));
        for bad in ["", "/", "..", "/a/../b", "./a", "a/.."] {
            assert!(GuestPath::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_is_one_layer_and_nothing_else_is_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let root = RootFs::resolve(&ImageRef::Directory(dir.path().to_owned())).unwrap();
        assert_eq!(root.layers, [std::fs::canonicalize(dir.path()).unwrap()]);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(RootFs::resolve(&ImageRef::Directory(file)), Err(ImageError::NotADirectory(_))));
        let missing = ImageRef::Directory(dir.path().join("missing"));
        assert!(matches!(RootFs::resolve(&missing), Err(ImageError::NoDirectory { .. })));
    }
}
