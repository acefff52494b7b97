//! Wire types of a root file system and of host paths.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use carrel_image::{GuestPath, RootFs, RootFsBindMount, RootFsDirectory, RootFsFile, RootFsSymlink};
use carrel_protocol::cbor::{self, CborEncodeError, Wire};
use carrel_protocol::minicbor::encode::Write;
use carrel_protocol::minicbor::{Decoder, Encoder};
use carrel_protocol::schema::WireShape;
use carrel_protocol::{DecodeError, record};

use crate::messages::FileIdentity;

/// A path: bytes, not necessarily UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath(pub PathBuf);

/// A root file system with a path that escapes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct InvalidRootFsPath(#[from] carrel_image::InvalidGuestPath);

record! {
    /// The description of a root file system.
    pub struct RootDescription {
        /// Overlay layers, the uppermost first.
        layers: Vec<HostPath> => default,
        /// The expected uppermost layer, in case the path was replaced.
        identity: Option<FileIdentity> => omitted,
        /// Bind mounts of the host.
        trees: Vec<RootBind> => default,
        /// Symbolic links.
        links: Vec<RootSymlink> => default,
        files: Vec<RootFile> => default,
        directories: Vec<RootDirectory> => default,
    }

    /// A bind mount of the host.
    pub struct RootBind {
        /// The path on the host.
        source: HostPath => required,
        /// The mount point.
        target: HostPath => required,
    }

    pub struct RootSymlink {
        path: HostPath => required,
        target: HostPath => required,
    }

    /// A file with generated content.
    pub struct RootFile {
        path: HostPath => required,
        content: ByteString => required,
        /// Its permissions.
        mode: u32 => required,
    }

    pub struct RootDirectory {
        path: HostPath => required,
        /// Its permissions.
        mode: u32 => required,
        /// Its owner inside the sandbox.
        owner: u32 => required,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteString(pub Vec<u8>);

// === impl ByteString ===

impl<'b> Wire<'b> for ByteString {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.bytes(&self.0)?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        Ok(Self(cbor::bytes(d)?.into_owned()))
    }

    fn shape() -> WireShape {
        WireShape::Scalar("bytes")
    }
}

// === impl HostPath ===

impl<'b> Wire<'b> for HostPath {
    fn encode<W: Write<Error = Infallible>>(&self, e: &mut Encoder<W>) -> Result<(), CborEncodeError> {
        e.bytes(self.0.as_os_str().as_bytes())?;
        Ok(())
    }

    fn decode(d: &mut Decoder<'b>) -> Result<Self, DecodeError> {
        Ok(Self(OsString::from_vec(cbor::bytes(d)?.into_owned()).into()))
    }

    fn shape() -> WireShape {
        WireShape::Scalar("bytes")
    }
}

impl<P: AsRef<Path>> From<P> for HostPath {
    fn from(path: P) -> Self {
        Self(path.as_ref().to_owned())
    }
}

// === impl RootDescription ===

impl From<&RootFs> for RootDescription {
    fn from(root: &RootFs) -> Self {
        let path = |path: &GuestPath| HostPath::from(path.as_path());
        Self {
            layers: root.layers.iter().map(HostPath::from).collect(),
            identity: root.identity.map(|(device, inode)| FileIdentity { device, inode }),
            trees: root
                .trees
                .iter()
                .map(|tree| RootBind { source: (&tree.source).into(), target: path(&tree.target) })
                .collect(),
            links: root
                .links
                .iter()
                .map(|link| RootSymlink { path: path(&link.path), target: (&link.target).into() })
                .collect(),
            files: root
                .files
                .iter()
                .map(|file| RootFile {
                    path: path(&file.path),
                    content: ByteString(file.content.clone()),
                    mode: file.mode,
                })
                .collect(),
            directories: root
                .directories
                .iter()
                .map(|made| RootDirectory { path: path(&made.path), mode: made.mode, owner: made.owner })
                .collect(),
        }
    }
}

impl TryFrom<RootDescription> for RootFs {
    type Error = InvalidRootFsPath;

    fn try_from(root: RootDescription) -> Result<Self, InvalidRootFsPath> {
        let layers = root.layers.into_iter().map(|layer| layer.0).collect();
        let identity = root.identity.map(|identity| (identity.device, identity.inode));
        let mut described = Self { layers, identity, ..Self::default() };
        for tree in root.trees {
            described.trees.push(RootFsBindMount { source: tree.source.0, target: GuestPath::new(tree.target.0)? });
        }
        for link in root.links {
            described.links.push(RootFsSymlink { path: GuestPath::new(link.path.0)?, target: link.target.0 });
        }
        for file in root.files {
            described.files.push(RootFsFile {
                path: GuestPath::new(file.path.0)?,
                content: file.content.0,
                mode: file.mode,
            });
        }
        for made in root.directories {
            described.directories.push(RootFsDirectory {
                path: GuestPath::new(made.path.0)?,
                mode: made.mode,
                owner: made.owner,
            });
        }
        Ok(described)
    }
}
