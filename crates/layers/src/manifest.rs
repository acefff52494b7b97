//! Manifests of images, and indexes that name a manifest for each platform.
//!
//! Both exist in the OCI format and in Docker's older one. Unknown keys are ignored, but media types must be known.

mod error;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::Digest;
use crate::platform::Platform;
use crate::unpack::Compression;

pub use self::error::ManifestError;

/// The size limit of a manifest or an index.
pub const MAX_MANIFEST_SIZE: u64 = 4 << 20;
/// The size limit of a configuration.
pub const MAX_CONFIG_SIZE: u64 = 8 << 20;
/// The limit of layers in an image.
pub const MAX_LAYERS: usize = 512;
/// How deep indexes may nest.
const MAX_DEPTH: usize = 4;

/// Supported media types.
pub mod media {
    /// An OCI manifest.
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// An OCI index.
    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// An OCI configuration.
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    /// An uncompressed OCI layer.
    pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    /// An OCI layer with gzip.
    pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    /// An OCI layer with zstd.
    pub const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    /// A Docker manifest, version 2.
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// A Docker manifest list.
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    /// A Docker configuration.
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// An uncompressed Docker layer.
    pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
    /// A Docker layer with gzip.
    pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    /// A Docker layer with zstd.
    pub const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";

    /// The media types of manifests and indexes.
    pub const MANIFESTS: [&str; 4] = [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_LIST];
}

/// Refers to content, as in the OCI specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// One of [`media`].
    pub media_type: String,
    /// The digest of the content.
    pub digest: Digest,
    /// The size in bytes.
    pub size: u64,
    /// In an index: the platform of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Free-form metadata.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "std::collections::BTreeMap::is_empty"
    )]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// The raw bytes of a manifest or an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// One of [`media::MANIFESTS`].
    pub media_type: String,
    /// Exactly as received: the digest covers them.
    pub bytes: Vec<u8>,
    /// The digest the bytes must have.
    pub digest: Digest,
}

/// A parsed manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// Always 2.
    pub schema_version: u32,
    /// One of [`media`], if stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Refers to the configuration.
    pub config: Descriptor,
    /// Refer to the layers, the lowest first.
    #[serde(deserialize_with = "null_as_default")]
    pub layers: Vec<Descriptor>,
}

/// A parsed index.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageIndex {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) manifests: Vec<Descriptor>,
}

/// Reads `null` as the default: some tools write an empty list that way.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Selects the manifest for a platform from an index.
pub fn choose(index: &[u8], platform: &Platform) -> Result<Descriptor, ManifestError> {
    choose_from(&ImageIndex::read(index)?.manifests, platform)
}

/// Selects the manifest for a platform.
pub(crate) fn choose_from(manifests: &[Descriptor], platform: &Platform) -> Result<Descriptor, ManifestError> {
    let fits = |descriptor: &&Descriptor| {
        let known = media::MANIFESTS.contains(&descriptor.media_type.as_str());
        known && descriptor.platform.as_ref().is_some_and(|there| platform.accepts(there))
    };
    // An exact match wins.
    let exact = |descriptor: &&Descriptor| descriptor.platform.as_ref() == Some(platform);
    // Otherwise the lowest processor variant, which runs everywhere.
    let least = |descriptor: &&Descriptor| descriptor.platform.as_ref().map(Platform::level);
    let chosen = manifests.iter().filter(fits).find(exact);
    let chosen = chosen.or_else(|| manifests.iter().filter(fits).min_by_key(least));
    // A single manifest without platform, as in layouts, is the only candidate.
    let only = match manifests {
        [only] if only.platform.is_none() => Some(only),
        _ => None,
    };
    chosen.or(only).cloned().ok_or_else(|| {
        let unknown = |there: &Platform| there.os == "unknown";
        let there = manifests.iter().filter_map(|descriptor| descriptor.platform.clone());
        ManifestError::NoPlatform { wanted: platform.clone(), there: there.filter(|there| !unknown(there)).collect() }
    })
}

/// Follows indexes to the manifest for a platform. The result of `fetch` is verified here.
pub fn resolve<E: From<ManifestError>>(
    first: Manifest,
    platform: &Platform,
    mut fetch: impl FnMut(&Descriptor) -> Result<Vec<u8>, E>,
) -> Result<Manifest, E> {
    let mut current = first;
    for _ in 0..=MAX_DEPTH {
        current.check()?;
        if !is_index(&current.media_type) {
            return Ok(current);
        }
        let next = choose(&current.bytes, platform)?;
        if next.digest == current.digest {
            return Err(ManifestError::Loop(next.digest).into());
        }
        if next.size > MAX_MANIFEST_SIZE {
            let (size, largest) = (next.size, MAX_MANIFEST_SIZE);
            return Err(ManifestError::TooLarge { what: "manifest", size, largest }.into());
        }
        let bytes = fetch(&next)?;
        current = Manifest { media_type: next.media_type, bytes, digest: next.digest };
    }
    Err(ManifestError::TooDeep.into())
}

/// Whether a media type is that of an index.
pub fn is_index(media_type: &str) -> bool {
    matches!(media_type, media::INDEX | media::DOCKER_LIST)
}

// === impl Index ===

impl ImageIndex {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let index: Self = read("index", bytes, MAX_MANIFEST_SIZE)?;
        version("index", index.schema_version)?;
        match index.media_type {
            Some(itself) if !is_index(&itself) => Err(ManifestError::MediaType { what: "index", found: itself }),
            _ => Ok(index),
        }
    }
}

// === impl Manifest ===

impl Manifest {
    /// Verifies digest and media type.
    pub fn check(&self) -> Result<(), ManifestError> {
        bounded("manifest", self.bytes.len() as u64, MAX_MANIFEST_SIZE)?;
        let found = Digest::of(&self.bytes);
        if found != self.digest {
            return Err(ManifestError::Digest { what: "manifest", expected: self.digest, found });
        }
        if !media::MANIFESTS.contains(&self.media_type.as_str()) {
            return Err(ManifestError::MediaType { what: "manifest", found: self.media_type.clone() });
        }
        Ok(())
    }

    /// Parses a manifest.
    pub fn read(&self) -> Result<ImageManifest, ManifestError> {
        self.check()?;
        let manifest: ImageManifest = read("manifest", &self.bytes, MAX_MANIFEST_SIZE)?;
        version("manifest", manifest.schema_version)?;
        if let Some(itself) = manifest.media_type.as_ref().filter(|itself| **itself != self.media_type) {
            return Err(ManifestError::TwoTypes { called: self.media_type.clone(), itself: itself.clone() });
        }
        if is_index(&self.media_type) {
            return Err(ManifestError::MediaType { what: "manifest", found: self.media_type.clone() });
        }
        if !matches!(manifest.config.media_type.as_str(), media::CONFIG | media::DOCKER_CONFIG) {
            let found = manifest.config.media_type;
            return Err(ManifestError::MediaType { what: "configuration", found });
        }
        bounded("configuration", manifest.config.size, MAX_CONFIG_SIZE)?;
        if manifest.layers.len() > MAX_LAYERS {
            return Err(ManifestError::TooMany(manifest.layers.len()));
        }
        for layer in &manifest.layers {
            layer.compression()?;
            if layer.digest == self.digest || layer.digest == manifest.config.digest {
                return Err(ManifestError::Loop(layer.digest));
            }
        }
        if manifest.config.digest == self.digest {
            return Err(ManifestError::Loop(self.digest));
        }
        Ok(manifest)
    }
}

impl Manifest {
    /// Serializes a new manifest.
    pub(crate) fn written(manifest: &ImageManifest) -> std::io::Result<Self> {
        let bytes = serde_json::to_vec(manifest)?;
        let media_type = manifest.media_type.clone().unwrap_or_else(|| media::MANIFEST.to_owned());
        Ok(Self { media_type, digest: Digest::of(&bytes), bytes })
    }
}

// === impl ImageManifest ===

impl ImageManifest {
    /// A manifest of these parts.
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: Some(media::MANIFEST.to_owned()), config, layers }
    }
}

// === impl Descriptor ===

impl Descriptor {
    /// Describes `bytes`.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self::new(media_type, Digest::of(bytes), bytes.len() as u64)
    }

    /// A descriptor without platform and annotations.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let annotations = std::collections::BTreeMap::new();
        Self { media_type: media_type.to_owned(), digest, size, platform: None, annotations }
    }

    /// The compression of a layer; an error for other media types.
    pub fn compression(&self) -> Result<Compression, ManifestError> {
        match self.media_type.as_str() {
            media::LAYER | media::DOCKER_LAYER => Ok(Compression::None),
            media::LAYER_GZIP | media::DOCKER_LAYER_GZIP => Ok(Compression::Gzip),
            media::LAYER_ZSTD | media::DOCKER_LAYER_ZSTD => Ok(Compression::Zstd),
            other => Err(ManifestError::MediaType { what: "layer", found: other.to_owned() }),
        }
    }
}

pub(crate) fn bounded(what: &'static str, size: u64, largest: u64) -> Result<(), ManifestError> {
    if size > largest { Err(ManifestError::TooLarge { what, size, largest }) } else { Ok(()) }
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    largest: u64,
) -> Result<T, ManifestError> {
    bounded(what, bytes.len() as u64, largest)?;
    serde_json::from_slice(bytes).map_err(|error| ManifestError::Unreadable { what, why: error.to_string() })
}

fn version(what: &'static str, version: u32) -> Result<(), ManifestError> {
    match version {
        2 => Ok(()),
        other => {
            Err(ManifestError::Unreadable { what, why: format!("schema version {other} is not supported; expected 2") })
        }
    }
}
