//! Images in an archive as `docker save` writes it.
//!
//! Such an archive has no manifest of its own that names its layers by digest. One is written for it: a layer that is
//! not compressed is called what the configuration says that it is, and is checked against that like every other.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::Files;
use super::layout::hint;
use super::{Source, SourceError};
use crate::config::Described;
use crate::digest::{Digest, Digesting};
use crate::manifest::{
    Descriptor, ImageManifest, LARGEST_CONFIG, LARGEST_MANIFEST, MOST_LAYERS, Manifest, ManifestError, media,
};
use crate::platform::Platform;
use crate::unpack::{Compression, Plain};

/// Where newer archives have their content, by digest.
const BLOBS: &str = "blobs/sha256/";

/// An image in an archive of Docker's.
pub struct DockerArchive {
    files: Files,
    manifest: Manifest,
    /// The files of what the manifest names.
    places: HashMap<Digest, String>,
}

/// What is wrong with an archive.
#[derive(Debug, thiserror::Error)]
enum DockerError {
    #[error("image {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not an archive of `docker save`: {why}", path.display())]
    None { path: PathBuf, why: String },
    #[error("{} holds no image {name:?}{}", path.display(), hint(there))]
    NoSuch { path: PathBuf, name: String, there: Vec<String> },
    #[error("{} holds {number} images{}", path.display(), hint(there))]
    Several { path: PathBuf, number: usize, there: Vec<String> },
}

/// One image, as `manifest.json` has it.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

// === impl DockerArchive ===

impl DockerArchive {
    /// The image of a name with its tag in an archive; see [`Store::docker_archive`](crate::Store::docker_archive).
    pub(crate) fn tar(path: &Path, name: Option<&str>, plain: &dyn Plain) -> Result<Self, SourceError> {
        let unreadable = |source| SourceError::other(DockerError::Unreadable { path: path.to_owned(), source });
        let none = |why: String| SourceError::other(DockerError::None { path: path.to_owned(), why });
        let files = Files::tar(path, plain).map_err(unreadable)?;
        let list = files.small("manifest.json", LARGEST_MANIFEST).map_err(unreadable)?;
        let list = list.ok_or_else(|| none("it has no file `manifest.json`".into()))?;
        let images: Vec<Image> = serde_json::from_slice(&list).map_err(|error| none(error.to_string()))?;
        let image = meant(path, &images, name).map_err(SourceError::other)?;
        let config = files.small(&image.config, LARGEST_CONFIG).map_err(unreadable)?;
        let config = config.ok_or_else(|| none(format!("it has no file {:?}", image.config)))?;
        let described = Described::read(&config)?;
        let (layers, diff_ids) = (image.layers.len(), described.layers.len());
        if layers != diff_ids {
            return Err(ManifestError::Layers { layers, diff_ids }.into());
        }
        if layers > MOST_LAYERS {
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

impl Source for DockerArchive {
    fn manifest(&self, _: &Platform) -> Result<Manifest, SourceError> {
        Ok(self.manifest.clone())
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        let missing = || SourceError::Missing { what: "blob", digest: descriptor.digest };
        let name = self.places.get(&descriptor.digest).ok_or_else(missing)?;
        Ok(self.files.open(name, from)?.ok_or_else(missing)?.0)
    }
}

/// The image that is meant by a name.
fn meant(path: &Path, images: &[Image], name: Option<&str>) -> Result<Image, DockerError> {
    let path = path.to_owned();
    let there = || images.iter().flat_map(|image| image.repo_tags.iter().flatten()).cloned().collect();
    match (name, images) {
        (None, [one]) => Ok(one.clone()),
        (None, []) => Err(DockerError::None { path, why: "it holds no image".into() }),
        (None, several) => Err(DockerError::Several { path, number: several.len(), there: there() }),
        (Some(name), images) => {
            let called = |image: &&Image| image.repo_tags.iter().flatten().any(|tag| full(tag) == full(name));
            let found = images.iter().find(called).cloned();
            found.ok_or_else(|| DockerError::NoSuch { path, name: name.to_owned(), there: there() })
        }
    }
}

/// A name as it is meant, with what may be left out: Docker writes some names in full and some not.
fn full(name: &str) -> String {
    let tagged = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    if tagged { name.to_owned() } else { format!("{name}:latest") }
}

/// What is known of a layer, if it is there. What files were digested to is known when they are named again.
fn layer(
    files: &Files,
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
            let mut digesting = Digesting::new(reader);
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
    fn a_name_is_the_same_with_and_without_what_may_be_left_out() {
        assert_eq!(full("busybox"), full("docker.io/library/busybox:latest"));
        assert_eq!(full("localhost:5000/a"), "localhost:5000/a:latest");
        assert_ne!(full("a/busybox"), full("busybox"));
    }
}
