//! What an image says about itself: its manifest, and the index that names one for each platform.
//!
//! Both have two spellings, that of the Open Container Initiative and the older one of Docker. Only what is used is
//! read; what is not known is passed over, but a media type has to be one of the list.

mod error;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::Digest;
use crate::platform::Platform;
use crate::unpack::Compression;

pub use self::error::ManifestError;

/// The largest manifest or index.
pub const LARGEST_MANIFEST: u64 = 4 << 20;
/// The largest configuration.
pub const LARGEST_CONFIG: u64 = 8 << 20;
/// The most layers that an image may have.
pub const MOST_LAYERS: usize = 512;
/// How many indexes may lie before a manifest.
const DEEPEST: usize = 4;

/// The media types that are read and written.
pub mod media {
    /// A manifest.
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// An index of manifests.
    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// A configuration.
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    /// A layer.
    pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    /// A layer, by gzip.
    pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    /// A layer, by zstd.
    pub const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    /// A manifest, as Docker writes it.
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// An index of manifests, as Docker writes it.
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    /// A configuration, as Docker writes it.
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// A layer, as Docker writes it.
    pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
    /// A layer by gzip, as Docker writes it.
    pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    /// A layer by zstd, as Docker writes it.
    pub const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";

    /// All that a manifest or an index may be.
    pub const MANIFESTS: [&str; 4] = [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_LIST];
}

/// What is known of a piece of content before it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// What it is called.
    pub digest: Digest,
    /// How long it is.
    pub size: u64,
    /// What it was built for, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// What else is said about it.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// A manifest or an index as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What it is.
    pub media_type: String,
    /// Every byte of it.
    pub bytes: Vec<u8>,
    /// What it has to be called.
    pub digest: Digest,
}

/// A manifest, read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// 2, always.
    pub schema_version: u32,
    /// What it is, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// What is known of its configuration.
    pub config: Descriptor,
    /// What is known of its layers, the lowest first.
    #[serde(deserialize_with = "or_none")]
    pub layers: Vec<Descriptor>,
}

/// An index, read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(deserialize_with = "or_none")]
    pub(crate) manifests: Vec<Descriptor>,
}

/// Reads `null` as nothing at all: some write a list without anything in it like that.
fn or_none<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Chooses the manifest for a platform from an index.
pub fn choose(index: &[u8], platform: &Platform) -> Result<Descriptor, ManifestError> {
    choose_from(&Index::read(index)?.manifests, platform)
}

/// Chooses the manifest for a platform from some.
pub(crate) fn choose_from(manifests: &[Descriptor], platform: &Platform) -> Result<Descriptor, ManifestError> {
    let fits = |descriptor: &&Descriptor| {
        let known = media::MANIFESTS.contains(&descriptor.media_type.as_str());
        known && descriptor.platform.as_ref().is_some_and(|there| platform.accepts(there))
    };
    // Of several the one that says exactly what is asked for is meant.
    let exact = |descriptor: &&Descriptor| descriptor.platform.as_ref() == Some(platform);
    // Else the one that asks for least of the processor, which runs on all.
    let least = |descriptor: &&Descriptor| descriptor.platform.as_ref().map(Platform::level);
    let chosen = manifests.iter().filter(fits).find(exact);
    let chosen = chosen.or_else(|| manifests.iter().filter(fits).min_by_key(least));
    // An index of one thing that does not say what it is for, as layouts have them, leaves no choice.
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

/// Goes on from an index to the manifest for a platform. Whatever comes is checked here, so `fetch` need not.
pub fn resolve<E: From<ManifestError>>(
    first: Manifest,
    platform: &Platform,
    mut fetch: impl FnMut(&Descriptor) -> Result<Vec<u8>, E>,
) -> Result<Manifest, E> {
    let mut current = first;
    for _ in 0..=DEEPEST {
        current.check()?;
        if !is_index(&current.media_type) {
            return Ok(current);
        }
        let next = choose(&current.bytes, platform)?;
        if next.digest == current.digest {
            return Err(ManifestError::Loop(next.digest).into());
        }
        if next.size > LARGEST_MANIFEST {
            let (size, largest) = (next.size, LARGEST_MANIFEST);
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

impl Index {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let index: Self = read("index", bytes, LARGEST_MANIFEST)?;
        version("index", index.schema_version)?;
        match index.media_type {
            Some(itself) if !is_index(&itself) => Err(ManifestError::MediaType { what: "index", found: itself }),
            _ => Ok(index),
        }
    }
}

// === impl Manifest ===

impl Manifest {
    /// Whether it is what it is called, and of a kind that is used.
    pub fn check(&self) -> Result<(), ManifestError> {
        bounded("manifest", self.bytes.len() as u64, LARGEST_MANIFEST)?;
        let found = Digest::of(&self.bytes);
        if found != self.digest {
            return Err(ManifestError::Digest { what: "manifest", expected: self.digest, found });
        }
        if !media::MANIFESTS.contains(&self.media_type.as_str()) {
            return Err(ManifestError::MediaType { what: "manifest", found: self.media_type.clone() });
        }
        Ok(())
    }

    /// Reads it.
    pub fn read(&self) -> Result<ImageManifest, ManifestError> {
        self.check()?;
        let manifest: ImageManifest = read("manifest", &self.bytes, LARGEST_MANIFEST)?;
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
        bounded("configuration", manifest.config.size, LARGEST_CONFIG)?;
        if manifest.layers.len() > MOST_LAYERS {
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
    /// A manifest of our own.
    pub(crate) fn written(manifest: &ImageManifest) -> std::io::Result<Self> {
        let bytes = serde_json::to_vec(manifest)?;
        let media_type = manifest.media_type.clone().unwrap_or_else(|| media::MANIFEST.to_owned());
        Ok(Self { media_type, digest: Digest::of(&bytes), bytes })
    }
}

// === impl ImageManifest ===

impl ImageManifest {
    /// What a manifest of our own says.
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: Some(media::MANIFEST.to_owned()), config, layers }
    }
}

// === impl Descriptor ===

impl Descriptor {
    /// What describes some bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self::new(media_type, Digest::of(bytes), bytes.len() as u64)
    }

    /// What is known of content.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let annotations = std::collections::BTreeMap::new();
        Self { media_type: media_type.to_owned(), digest, size, platform: None, annotations }
    }

    /// How a layer is compressed, if it is one.
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
            Err(ManifestError::Unreadable { what, why: format!("it is of version {other}, and 2 is what is read") })
        }
    }
}
