//! The store's records of images, layers and names.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::manifest::Descriptor;
use crate::unpack::UnpackedLayer;

/// An image: `image.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) digest: Digest,
    pub(super) media_type: String,
    /// The size of the manifest.
    pub(super) size: u64,
    pub(super) described: Descriptor,
    pub(super) config: ImageConfig,
    /// The lowest first.
    pub(super) layers: Vec<ImageLayer>,
    /// The directories of the visible layers, the uppermost first.
    pub(super) shown: Vec<Digest>,
    /// The sum of all file sizes in all layers.
    pub(super) unpacked: u64,
    /// Whether the image has a patch layer.
    pub(super) patched: bool,
    /// Seconds since 1970.
    pub(super) stored: u64,
}

#[derive(Default)]
pub(super) struct ImageRecords {
    pub(super) read: Vec<ImageRecord>,
    /// Images whose record cannot be read.
    pub(super) damaged: Vec<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageLayer {
    /// The digest of the uncompressed tar.
    pub(super) diff_id: Digest,
    /// The name of its directory.
    pub(super) place: Digest,
    pub(super) blob: Descriptor,
}

/// An unpacked layer: `about.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    /// Informational.
    blob: Option<Digest>,
    diff_id: Option<Digest>,
    pub(super) bytes: u64,
    pub(super) entries: u64,
    pub(super) skipped: u64,
    /// Directories without an entry.
    made: Vec<RecordedPath>,
    /// The boot ID at unpacking. After a reboot the files may be incomplete on disk, unless an image refers to them.
    boot: String,
}

/// The image of a name: `names/<digest of the name>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NameRecord {
    pub(super) name: String,
    pub(super) digest: Digest,
    /// Seconds since 1970.
    pub(super) resolved: u64,
}

/// A path; bytes if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum RecordedPath {
    Text(String),
    Bytes(Vec<u8>),
}

// === impl ImageRecords ===

impl ImageRecords {
    /// The directories of all layers.
    pub(super) fn places(&self) -> HashSet<Digest> {
        self.read.iter().flat_map(ImageRecord::places).collect()
    }

    pub(super) fn blobs(&self) -> HashSet<Digest> {
        self.read.iter().flat_map(ImageRecord::blobs).collect()
    }
}

// === impl ImageRecord ===

impl ImageRecord {
    /// The directories of its layers.
    pub(super) fn places(&self) -> impl Iterator<Item = Digest> {
        self.layers.iter().map(|layer| layer.place)
    }

    pub(super) fn blobs(&self) -> impl Iterator<Item = Digest> {
        self.layers.iter().map(|layer| layer.blob.digest).chain([self.digest, self.described.digest])
    }

    /// The sum of its distinct blob sizes.
    pub(super) fn packed(&self) -> u64 {
        let mut observed = HashSet::new();
        let layers = self.layers.iter().filter(|layer| observed.insert(layer.blob.digest)).map(|layer| layer.blob.size);
        layers.fold(self.size.saturating_add(self.described.size), u64::saturating_add)
    }
}

/// The directories of visible layers, the uppermost first. A layer that occurs twice counts where it is uppermost, with
/// the same result, because overlayfs does not accept a directory twice.
pub(super) fn shown(layers: &[ImageLayer]) -> Vec<Digest> {
    let mut observed = HashSet::new();
    layers.iter().rev().map(|layer| layer.place).filter(|place| observed.insert(*place)).collect()
}

// === impl LayerRecord ===

impl LayerRecord {
    pub(super) fn new(unpacked: &UnpackedLayer, blob: Digest) -> Self {
        let written = |path: &PathBuf| match path.to_str() {
            Some(text) => RecordedPath::Text(text.to_owned()),
            None => RecordedPath::Bytes(path.as_os_str().as_bytes().to_vec()),
        };
        Self {
            blob: Some(blob),
            diff_id: Some(unpacked.diff_id),
            bytes: unpacked.bytes,
            entries: unpacked.entries,
            skipped: unpacked.skipped,
            made: unpacked.made.iter().map(written).collect(),
            boot: boot(),
        }
    }

    /// Directories without an entry.
    pub(super) fn made(&self) -> impl Iterator<Item = PathBuf> {
        self.made.iter().map(|written| match written {
            RecordedPath::Text(text) => PathBuf::from(text),
            RecordedPath::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes.clone())),
        })
    }

    /// Bytes that count towards the image's limit.
    pub(super) fn spent(&self) -> u64 {
        let entries = self.entries.saturating_add(self.made.len() as u64);
        entries.saturating_mul(crate::archive::ENTRY).saturating_add(self.bytes)
    }

    /// Whether it was unpacked since the last boot.
    pub(super) fn of_this_boot(&self) -> bool {
        !self.boot.is_empty() && self.boot == boot()
    }
}

/// The boot ID; empty if unknown.
fn boot() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_utf8_is_recorded_too() {
        let paths = [PathBuf::new(), "usr/lib".into(), OsString::from_vec(b"a\xff/b".to_vec()).into()];
        let (bytes, entries, skipped) = (1, 2, 3);
        let unpacked = UnpackedLayer { diff_id: Digest::of(b""), bytes, entries, skipped, made: paths.to_vec() };
        let text = serde_json::to_string(&LayerRecord::new(&unpacked, Digest::of(b""))).unwrap();
        let about: LayerRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(about.made().collect::<Vec<_>>(), paths);
        assert!(about.of_this_boot() && !LayerRecord::default().of_this_boot());
    }

    #[test]
    fn a_layer_that_occurs_twice_counts_where_it_is_uppermost() {
        let place = |name: &str| Digest::of(name.as_bytes());
        let layer =
            |name| ImageLayer { diff_id: place(name), place: place(name), blob: Descriptor::new("", place(name), 1) };
        let layers = ["base", "empty", "tools", "empty"].map(layer);
        assert_eq!(shown(&layers), ["empty", "tools", "base"].map(place));
    }
}
