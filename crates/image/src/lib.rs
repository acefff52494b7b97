//! From an image reference to a root file system.
//!
//! A reference is always given, never defaulted. What it yields is a description ([`RootFs`]); nothing is mounted here,
//! and nothing is unpacked: what needs a store is found there first.

pub mod accounts;
mod host;
mod reference;
mod stacked;

use std::path::{Path, PathBuf};

pub use self::reference::{BadReference, ImageRef};
pub use self::stacked::{Stacked, Whereabouts};

/// A root file system, described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootFs {
    /// Directories whose trees lie over one another, the uppermost first. Without any, the root is empty.
    pub layers: Vec<PathBuf>,
    /// Which directory the uppermost layer has to be, by device and inode, whatever is at its path by now.
    pub identity: Option<(u64, u64)>,
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
    /// There is nothing at its path, or nothing that can be read.
    #[error("image {}: {source}", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// What is there is neither a directory nor a file.
    #[error("image {} is neither a directory nor the tar of one", .0.display())]
    Neither(PathBuf),
    /// It is no directory.
    #[error("image {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// It has to be had from a store.
    #[error("image {0} is not a directory: it needs a store to be unpacked into")]
    NoStore(ImageRef),
}

/// What a path stands for.
pub enum Found {
    /// A directory, by its absolute path.
    Directory(PathBuf),
    /// A file.
    File,
}

// === impl RootFs ===

impl RootFs {
    /// Finds what a reference stands for, without a store.
    pub fn resolve(reference: &ImageRef) -> Result<Self, ImageError> {
        match reference {
            ImageRef::Host => Ok(host::root(Path::new("/"))),
            ImageRef::Path(path) | ImageRef::Directory(path) => match (find(path)?, reference) {
                (Found::Directory(directory), _) => Ok(Self::layer(directory)),
                (Found::File, ImageRef::Directory(_)) => Err(ImageError::NotDirectory(path.clone())),
                (Found::File, _) => Err(ImageError::NoStore(reference.clone())),
            },
            other => Err(ImageError::NoStore(other.clone())),
        }
    }

    /// One directory, and nothing else.
    pub fn layer(directory: PathBuf) -> Self {
        Self { layers: vec![directory], ..Self::default() }
    }

    /// Where a directory has to be made so that it is there, which is where links of the layers lead; none if it is there,
    /// or cannot be.
    pub fn missing(&self, path: &str) -> Option<GuestPath> {
        let found = Stacked::open(&self.layers).ok()?.whereabouts(&GuestPath::new(path).ok()?)?;
        let is_described = self.directories.iter().any(|made| made.path == found.path);
        (!found.is_there && !is_described).then_some(found.path)
    }
}

/// Looks at what is at a path.
pub fn find(path: &Path) -> Result<Found, ImageError> {
    let missing = |source| ImageError::Missing { path: path.to_owned(), source };
    let kind = std::fs::metadata(path).map_err(missing)?.file_type();
    if kind.is_dir() {
        std::fs::canonicalize(path).map(Found::Directory).map_err(missing)
    } else if kind.is_file() {
        Ok(Found::File)
    } else {
        Err(ImageError::Neither(path.to_owned()))
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

    //= promises.sandbox.path-inside
    #[test]
    fn a_path_inside_cannot_leave() {
        assert_eq!(GuestPath::new("/a//b/").unwrap().as_path(), Path::new("a/b"));
        for bad in ["", "/", "..", "/a/../b", "./a", "a/.."] {
            assert!(GuestPath::new(bad).is_err(), "{bad}");
        }
    }

    //= promises.sandbox.image-directory
    #[test]
    fn a_directory_is_one_layer_and_a_file_needs_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| ImageRef::Path(dir.path().join(name));
        let root = RootFs::resolve(&at("")).unwrap();
        assert_eq!(root.layers, [std::fs::canonicalize(dir.path()).unwrap()]);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(RootFs::resolve(&at("file")), Err(ImageError::NoStore(_))));
        let file = ImageRef::Directory(dir.path().join("file"));
        assert!(matches!(RootFs::resolve(&file), Err(ImageError::NotDirectory(_))));
        assert!(matches!(RootFs::resolve(&"debian".parse().unwrap()), Err(ImageError::NoStore(_))));
        assert!(matches!(RootFs::resolve(&at("missing")), Err(ImageError::Missing { .. })));
        assert!(matches!(RootFs::resolve(&ImageRef::Path("/dev/null".into())), Err(ImageError::Neither(_))));
    }
}
