//! Resolves an image reference to a root file system.
//!
//! A reference is always explicit; there is no default image. The result is a description ([`RootFs`]): this crate
//! mounts and unpacks nothing, and images that must be unpacked first come from the layer store.

pub mod accounts;
mod host;
mod layer_stack;
mod reference;

use std::path::{Path, PathBuf};

pub use self::layer_stack::{LayerStack, ResolvedDirectory};
pub use self::reference::{ImageRef, InvalidImageRef};

/// The description of a root file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootFs {
    /// Overlay layers, the uppermost first. Without any, the root is empty.
    pub layers: Vec<PathBuf>,
    /// The device and inode that the uppermost layer must have, in case its path was replaced since.
    pub identity: Option<(u64, u64)>,
    /// Bind mounts of host directories: read-only, `nodev`, `nosuid`.
    pub trees: Vec<RootFsBindMount>,
    /// Symlinks to create.
    pub links: Vec<RootFsSymlink>,
    /// Files to create.
    pub files: Vec<RootFsFile>,
    /// Directories to create.
    pub directories: Vec<RootFsDirectory>,
}

/// A read-only bind mount of a host directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFsBindMount {
    /// The directory on the host.
    pub source: PathBuf,
    /// The mount point inside.
    pub target: GuestPath,
}

/// A symlink to create in a root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFsSymlink {
    pub path: GuestPath,
    /// The path it points to.
    pub target: PathBuf,
}

/// A file to create in a root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFsFile {
    /// Parent directories are created as needed.
    pub path: GuestPath,
    /// All bytes of the file.
    pub content: Vec<u8>,
    /// The permission bits.
    pub mode: u32,
}

/// A directory to create in a root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFsDirectory {
    /// Parent directories are created as needed.
    pub path: GuestPath,
    /// The permission bits.
    pub mode: u32,
    /// The uid and gid inside the sandbox.
    pub owner: u32,
}

/// A path inside a sandbox: relative to the root, without `.`, `..` or empty components, so that it cannot escape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestPath(PathBuf);

/// A path that is empty, or has `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a path inside a sandbox")]
pub struct InvalidGuestPath(pub PathBuf);

/// An image that cannot be used without a store.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Nothing readable exists at the path.
    #[error("image {}: {source}", path.display())]
    Missing {
        /// The path in the reference.
        path: PathBuf,
        /// The error of `stat` or `realpath`.
        source: std::io::Error,
    },
    /// The path is neither a directory nor a regular file.
    #[error("image {} is neither a directory nor the tar of one", .0.display())]
    NotDirectoryOrFile(PathBuf),
    /// `dir:` was given a file.
    #[error("image {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// The image must be unpacked into a store first.
    #[error("image {0} is not a directory: it needs a store to be unpacked into")]
    NoStore(ImageRef),
}

/// The kind of image at a path.
pub enum ImagePathKind {
    /// A root file system, by its absolute path.
    Directory(PathBuf),
    /// A regular file, which should be a tar.
    File,
}

// === impl RootFs ===

impl RootFs {
    /// Resolves a reference that needs no store.
    pub fn resolve(reference: &ImageRef) -> Result<Self, ImageError> {
        match reference {
            ImageRef::Host => Ok(host::root(Path::new("/"))),
            ImageRef::Path(path) | ImageRef::Directory(path) => match (path_kind(path)?, reference) {
                (ImagePathKind::Directory(directory), _) => Ok(Self::layer(directory)),
                (ImagePathKind::File, ImageRef::Directory(_)) => Err(ImageError::NotDirectory(path.clone())),
                (ImagePathKind::File, _) => Err(ImageError::NoStore(reference.clone())),
            },
            other => Err(ImageError::NoStore(other.clone())),
        }
    }

    /// A root file system of one layer.
    pub fn layer(directory: PathBuf) -> Self {
        Self { layers: vec![directory], ..Self::default() }
    }

    /// The path at which a directory must be created for `path` to exist, with the symlinks of the layers resolved;
    /// `None` if it exists or cannot be created.
    pub fn missing_directory(&self, path: &str) -> Option<GuestPath> {
        let found = LayerStack::open(&self.layers).ok()?.resolve_directory(&GuestPath::new(path).ok()?)?;
        let is_described = self.directories.iter().any(|made| made.path == found.path);
        (!found.exists && !is_described).then_some(found.path)
    }
}

/// Checks what kind of image is at a path.
pub fn path_kind(path: &Path) -> Result<ImagePathKind, ImageError> {
    let missing = |source| ImageError::Missing { path: path.to_owned(), source };
    let kind = std::fs::metadata(path).map_err(missing)?.file_type();
    if kind.is_dir() {
        std::fs::canonicalize(path).map(ImagePathKind::Directory).map_err(missing)
    } else if kind.is_file() {
        Ok(ImagePathKind::File)
    } else {
        Err(ImageError::NotDirectoryOrFile(path.to_owned()))
    }
}

// === impl GuestPath ===

impl GuestPath {
    /// Parses a path that is absolute or relative to the root.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidGuestPath> {
        use std::path::Component;
        let path = path.as_ref();
        let mut inside = PathBuf::new();
        for part in path.components() {
            match part {
                Component::RootDir => {}
                Component::Normal(name) => inside.push(name),
                Component::CurDir | Component::ParentDir | Component::Prefix(_) => {
                    return Err(InvalidGuestPath(path.to_owned()));
                }
            }
        }
        if inside.as_os_str().is_empty() { Err(InvalidGuestPath(path.to_owned())) } else { Ok(Self(inside)) }
    }

    /// The path relative to the root, without a leading slash.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.sandbox.path-inside
    #[test]
    fn a_guest_path_cannot_escape() {
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
        assert!(matches!(RootFs::resolve(&ImageRef::Path("/dev/null".into())), Err(ImageError::NotDirectoryOrFile(_))));
    }
}
