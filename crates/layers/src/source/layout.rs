//! OCI image layouts, in a directory or a tar.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::NamedFiles;
use super::{ImageSource, SourceError};
use crate::digest::Digest;
use crate::manifest::{Descriptor, ImageIndex, MAX_MANIFEST_SIZE, Manifest, choose_from, resolve};
use crate::platform::Platform;
use crate::unpack::Decompress;

/// Annotations with an image's name.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
/// The size limit of `oci-layout`.
const LARGEST_MARK: u64 = 4096;

/// One image of an OCI layout.
pub struct OciLayout {
    path: PathBuf,
    files: NamedFiles,
    name: Option<String>,
}

#[derive(Debug, thiserror::Error)]
enum LayoutError {
    #[error("image {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not an OCI layout: {why}", path.display())]
    None { path: PathBuf, why: String },
    #[error("{} contains no image {name:?}{}", path.display(), hint(there))]
    NoSuch { path: PathBuf, name: String, there: Vec<String> },
    #[error("{} contains several images{}", path.display(), hint(there))]
    Several { path: PathBuf, there: Vec<String> },
    #[error("{} contains no image", .0.display())]
    Empty(PathBuf),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayoutVersion {
    image_layout_version: String,
}

// === impl OciLayout ===

impl OciLayout {
    /// Selects an image of a directory by tag, or by `@` and a digest. The name is optional if there is one image.
    pub fn directory(path: &Path, name: Option<&str>) -> Result<Self, SourceError> {
        Self::open(path, name, NamedFiles::directory(path))
    }

    /// The same in a tar; see [`ImageStore::layout`](crate::ImageStore::layout).
    pub(crate) fn tar(path: &Path, name: Option<&str>, plain: &dyn Decompress) -> Result<Self, SourceError> {
        Self::open(path, name, NamedFiles::tar(path, plain))
    }

    fn open(path: &Path, name: Option<&str>, files: std::io::Result<NamedFiles>) -> Result<Self, SourceError> {
        let unreadable = |source| SourceError::other(LayoutError::Unreadable { path: path.to_owned(), source });
        let none = |why: String| SourceError::other(LayoutError::None { path: path.to_owned(), why });
        let files = files.map_err(unreadable)?;
        let mark = files.read_bounded("oci-layout", LARGEST_MARK).map_err(unreadable)?;
        let mark = mark.ok_or_else(|| none("it has no file `oci-layout`".into()))?;
        let mark: LayoutVersion = serde_json::from_slice(&mark).map_err(|error| none(error.to_string()))?;
        if !mark.image_layout_version.starts_with("1.") {
            return Err(none(format!("it is of version {:?}, and 1 is what is read", mark.image_layout_version)));
        }
        Ok(Self { path: path.to_owned(), files, name: name.map(ToOwned::to_owned) })
    }

    /// Selects an image from the index of the layout.
    fn select_manifest(&self, platform: &Platform) -> Result<Descriptor, SourceError> {
        let index = self.files.read_bounded("index.json", MAX_MANIFEST_SIZE)?;
        let none = |why: &str| LayoutError::None { path: self.path.clone(), why: why.into() };
        let index = index.ok_or_else(|| SourceError::other(none("it has no file `index.json`")))?;
        let all = ImageIndex::read(&index)?.manifests;
        let there = || names(&all);
        let candidates: Vec<_> = match self.name.as_deref() {
            None => all.clone(),
            Some(name) => all.iter().filter(|descriptor| is_called(descriptor, name)).cloned().collect(),
        };
        let path = self.path.clone();
        match (candidates.as_slice(), &self.name) {
            ([], None) => Err(SourceError::other(LayoutError::Empty(path))),
            ([], Some(name)) => {
                Err(SourceError::other(LayoutError::NoSuch { path, name: name.clone(), there: there() }))
            }
            ([one], _) => Ok(one.clone()),
            // Different names are different images; manifests with the same name are for different platforms.
            (_, None) if there().len() > 1 => Err(SourceError::other(LayoutError::Several { path, there: there() })),
            (several, _) => Ok(choose_from(several, platform)?),
        }
    }

    fn bytes(&self, descriptor: &Descriptor) -> Result<Vec<u8>, SourceError> {
        let missing = SourceError::Missing { what: "manifest", digest: descriptor.digest };
        self.files.read_bounded(&place(descriptor.digest), MAX_MANIFEST_SIZE)?.ok_or(missing)
    }
}

impl ImageSource for OciLayout {
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError> {
        let manifest = self.select_manifest(platform)?;
        let bytes = self.bytes(&manifest)?;
        let first = Manifest { media_type: manifest.media_type, bytes, digest: manifest.digest };
        resolve(first, platform, |next| self.bytes(next))
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        let missing = SourceError::Missing { what: "blob", digest: descriptor.digest };
        Ok(self.files.open(&place(descriptor.digest), from)?.ok_or(missing)?.0)
    }
}

/// The path of content in a layout.
fn place(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn is_called(descriptor: &Descriptor, name: &str) -> bool {
    match name.strip_prefix('@') {
        Some(digest) => descriptor.digest.to_string() == digest,
        None => NAMES.iter().any(|key| descriptor.annotations.get(*key).is_some_and(|there| there == name)),
    }
}

/// The names of all images.
fn names(descriptors: &[Descriptor]) -> Vec<String> {
    let name = |descriptor: &Descriptor| NAMES.iter().find_map(|key| descriptor.annotations.get(*key)).cloned();
    let mut names: Vec<_> = descriptors.iter().filter_map(name).collect();
    names.sort();
    names.dedup();
    names
}

pub(super) fn hint(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("\nhint: name one of {}", names.join(", ")) }
}
