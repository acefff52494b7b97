//! Image archives of `docker save`.
//!
//! Such an archive has no manifest with digests, so one is generated: the digest of an uncompressed layer is the diff
//! ID in the configuration, and is verified like every other.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::NamedFiles;
use super::layout::hint;
use super::{ImageSource, SourceError};
use crate::config::ParsedConfig;
use crate::digest::{Digest, DigestReader};
use crate::manifest::{
    Descriptor, ImageManifest, MAX_CONFIG_SIZE, MAX_LAYERS, MAX_MANIFEST_SIZE, Manifest, ManifestError, media,
};
use crate::platform::Platform;
use crate::unpack::{Compression, Decompress};

/// The directory of content in newer archives.
const BLOBS: &str = "blobs/sha256/";

/// One image of a `docker save` archive.
pub struct DockerArchive {
    files: NamedFiles,
    manifest: Manifest,
    /// File names of the content that the manifest refers to.
    places: HashMap<Digest, String>,
}

#[derive(Debug, thiserror::Error)]
enum DockerError {
    #[error("image {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not an archive of `docker save`: {why}", path.display())]
    None { path: PathBuf, why: String },
    #[error("{} contains no image {name:?}{}", path.display(), hint(there))]
    NoSuch { path: PathBuf, name: String, there: Vec<String> },
    #[error("{} contains {number} images{}", path.display(), hint(there))]
    Several { path: PathBuf, number: usize, there: Vec<String> },
}

/// An element of `manifest.json`.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImageEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

// === impl DockerArchive ===

impl DockerArchive {
    /// Selects an image by name and tag; see [`ImageStore::docker_archive`](crate::ImageStore::docker_archive).
    pub(crate) fn tar(path: &Path, name: Option<&str>, plain: &dyn Decompress) -> Result<Self, SourceError> {
        let unreadable = |source| SourceError::other(DockerError::Unreadable { path: path.to_owned(), source });
        let none = |why: String| SourceError::other(DockerError::None { path: path.to_owned(), why });
        let files = NamedFiles::tar(path, plain).map_err(unreadable)?;
        let list = files.read_bounded("manifest.json", MAX_MANIFEST_SIZE).map_err(unreadable)?;
        let list = list.ok_or_else(|| none("it has no file `manifest.json`".into()))?;
        let images: Vec<DockerImageEntry> = serde_json::from_slice(&list).map_err(|error| none(error.to_string()))?;
        let image = select_image(path, &images, name).map_err(SourceError::other)?;
        let config = files.read_bounded(&image.config, MAX_CONFIG_SIZE).map_err(unreadable)?;
        let config = config.ok_or_else(|| none(format!("it has no file {:?}", image.config)))?;
        let described = ParsedConfig::read(&config)?;
        let (layers, diff_ids) = (image.layers.len(), described.layers.len());
        if layers != diff_ids {
            return Err(ManifestError::Layers { layers, diff_ids }.into());
        }
        if layers > MAX_LAYERS {
            return Err(ManifestError::TooMany(layers).into());
        }
        let (mut places, mut known, mut blobs) = (HashMap::new(), HashMap::new(), Vec::new());
        for (name, diff_id) in image.layers.iter().zip(described.layers) {
            let blob = layer(&files, name, diff_id, &mut known).map_err(unreadable)?;
            let blob = blob.ok_or_else(|| none(format!("it has no file {name:?}")))?;
            places.insert(blob.digest, name.clone());
            blobs.push(blob);
        }
        let described = Descriptor::of(media::CONFIG, &config);
        places.insert(described.digest, image.config);
        let manifest = Manifest::written(&ImageManifest::new(described, blobs))?;
        Ok(Self { files, manifest, places })
    }
}

impl ImageSource for DockerArchive {
    fn manifest(&self, _: &Platform) -> Result<Manifest, SourceError> {
        Ok(self.manifest.clone())
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        let missing = || SourceError::Missing { what: "blob", digest: descriptor.digest };
        let name = self.places.get(&descriptor.digest).ok_or_else(missing)?;
        Ok(self.files.open(name, from)?.ok_or_else(missing)?.0)
    }
}

fn select_image(path: &Path, images: &[DockerImageEntry], name: Option<&str>) -> Result<DockerImageEntry, DockerError> {
    let path = path.to_owned();
    let there = || images.iter().flat_map(|image| image.repo_tags.iter().flatten()).cloned().collect();
    match (name, images) {
        (None, [one]) => Ok(one.clone()),
        (None, []) => Err(DockerError::None { path, why: "it contains no image".into() }),
        (None, several) => Err(DockerError::Several { path, number: several.len(), there: there() }),
        (Some(name), images) => {
            let called =
                |image: &&DockerImageEntry| image.repo_tags.iter().flatten().any(|tag| full(tag) == full(name));
            let found = images.iter().find(called).cloned();
            found.ok_or_else(|| DockerError::NoSuch { path, name: name.to_owned(), there: there() })
        }
    }
}

/// A name with the default registry, repository and tag: Docker omits some of them in some archives.
fn full(name: &str) -> String {
    let tagged = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    if tagged { name.to_owned() } else { format!("{name}:latest") }
}

/// The descriptor of a layer, if its file exists. `digests` caches those of files that are listed twice.
fn layer(
    files: &NamedFiles,
    name: &str,
    diff_id: Digest,
    known: &mut HashMap<String, Digest>,
) -> io::Result<Option<Descriptor>> {
    let Some((reader, size)) = files.open(name, 0)? else { return Ok(None) };
    let mut start = Vec::new();
    reader.take(4).read_to_end(&mut start)?;
    let (media_type, digest) = match Compression::of(&start) {
        Compression::None => (media::LAYER, Some(diff_id)),
        Compression::Gzip => (media::LAYER_GZIP, None),
        Compression::Zstd => (media::LAYER_ZSTD, None),
    };
    let named = || name.strip_prefix(BLOBS).and_then(|digits| Digest::from_hex(digits).ok());
    let named = || named().or_else(|| known.get(name).copied());
    let digest = match digest.or_else(named) {
        Some(digest) => digest,
        None => {
            let Some((reader, _)) = files.open(name, 0)? else { return Ok(None) };
            let mut digesting = DigestReader::new(reader);
            io::copy(&mut digesting, &mut io::sink())?;
            let digest = digesting.digest();
            known.insert(name.to_owned(), digest);
            digest
        }
    };
    Ok(Some(Descriptor::new(media_type, digest, size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_matches_with_and_without_its_default_parts() {
        assert_eq!(full("busybox"), full("docker.io/library/busybox:latest"));
        assert_eq!(full("localhost:5000/a"), "localhost:5000/a:latest");
        assert_ne!(full("a/busybox"), full("busybox"));
    }
}
