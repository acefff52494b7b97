//! What the store writes down: of an image, of a layer, of a name.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::digest::Digest;
use crate::manifest::Descriptor;
use crate::unpack::Unpacked;

/// An image: `image.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) digest: Digest,
    pub(super) media_type: String,
    /// How long the manifest is.
    pub(super) size: u64,
    pub(super) described: Descriptor,
    pub(super) config: Config,
    /// The lowest first.
    pub(super) layers: Vec<Layer>,
    /// The directories of those that can be seen, the uppermost first.
    pub(super) shown: Vec<Digest>,
    /// The sizes of all files of all layers.
    pub(super) unpacked: u64,
    /// Whether directories lie over the layers that have their attributes from below.
    pub(super) patched: bool,
    /// Seconds since 1970.
    pub(super) stored: u64,
}

/// What is known of all images.
#[derive(Default)]
pub(super) struct Records {
    pub(super) read: Vec<Record>,
    /// Those of which it cannot be read.
    pub(super) damaged: Vec<Digest>,
}

/// A layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layer {
    /// The digest of its tar.
    pub(super) diff_id: Digest,
    /// What its directory is called.
    pub(super) place: Digest,
    pub(super) blob: Descriptor,
}

/// An unpacked layer: `about.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct About {
    /// What it was unpacked from, for who looks.
    blob: Option<Digest>,
    diff_id: Option<Digest>,
    pub(super) bytes: u64,
    pub(super) entries: u64,
    pub(super) skipped: u64,
    /// Directories without an entry of their own.
    made: Vec<Written>,
    /// The boot in which it was unpacked. Later ones do not know whether it came to the disk, unless an image has it.
    boot: String,
}

/// What a name stands for: `names/<digest of the name>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) digest: Digest,
    /// Seconds since 1970.
    pub(super) resolved: u64,
}

/// A path. Most are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

// === impl Records ===

impl Records {
    /// The directories of all layers.
    pub(super) fn places(&self) -> HashSet<Digest> {
        self.read.iter().flat_map(Record::places).collect()
    }

    /// All blobs that belong to one.
    pub(super) fn blobs(&self) -> HashSet<Digest> {
        self.read.iter().flat_map(Record::blobs).collect()
    }
}

// === impl Record ===

impl Record {
    /// The directories of its layers.
    pub(super) fn places(&self) -> impl Iterator<Item = Digest> {
        self.layers.iter().map(|layer| layer.place)
    }

    /// All blobs that belong to it.
    pub(super) fn blobs(&self) -> impl Iterator<Item = Digest> {
        self.layers.iter().map(|layer| layer.blob.digest).chain([self.digest, self.described.digest])
    }

    /// The sizes of all blobs, each once.
    pub(super) fn packed(&self) -> u64 {
        let mut seen = HashSet::new();
        let layers = self.layers.iter().filter(|layer| seen.insert(layer.blob.digest)).map(|layer| layer.blob.size);
        layers.fold(self.size.saturating_add(self.described.size), u64::saturating_add)
    }
}

/// The directories of layers that can be seen, the uppermost first. One that is there twice counts where it is
/// uppermost: what it brings or takes away further below it does above, too, and the kernel refuses to have it twice.
pub(super) fn shown(layers: &[Layer]) -> Vec<Digest> {
    let mut seen = HashSet::new();
    layers.iter().rev().map(|layer| layer.place).filter(|place| seen.insert(*place)).collect()
}

// === impl About ===

impl About {
    pub(super) fn new(unpacked: &Unpacked, blob: Digest) -> Self {
        let written = |path: &PathBuf| match path.to_str() {
            Some(text) => Written::Text(text.to_owned()),
            None => Written::Bytes(path.as_os_str().as_bytes().to_vec()),
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

    /// Directories without an entry of their own.
    pub(super) fn made(&self) -> impl Iterator<Item = PathBuf> {
        self.made.iter().map(|written| match written {
            Written::Text(text) => PathBuf::from(text),
            Written::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes.clone())),
        })
    }

    /// What it takes of what an image may take, in bytes.
    pub(super) fn spent(&self) -> u64 {
        let entries = self.entries.saturating_add(self.made.len() as u64);
        entries.saturating_mul(crate::archive::ENTRY).saturating_add(self.bytes)
    }

    /// Whether nothing can have been lost since it was unpacked.
    pub(super) fn of_this_boot(&self) -> bool {
        !self.boot.is_empty() && self.boot == boot()
    }
}

/// What tells this start of the machine from others; nothing, if that cannot be told.
fn boot() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

/// Now, in seconds since 1970.
pub(super) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_text_is_written_down_too() {
        let paths = [PathBuf::new(), "usr/lib".into(), OsString::from_vec(b"a\xff/b".to_vec()).into()];
        let (bytes, entries, skipped) = (1, 2, 3);
        let unpacked = Unpacked { diff_id: Digest::of(b""), bytes, entries, skipped, made: paths.to_vec() };
        let text = serde_json::to_string(&About::new(&unpacked, Digest::of(b""))).unwrap();
        let about: About = serde_json::from_str(&text).unwrap();
        assert_eq!(about.made().collect::<Vec<_>>(), paths);
        assert!(about.of_this_boot() && !About::default().of_this_boot());
    }

    #[test]
    fn a_layer_that_is_there_twice_counts_where_it_is_uppermost() {
        let place = |name: &str| Digest::of(name.as_bytes());
        let layer =
            |name| Layer { diff_id: place(name), place: place(name), blob: Descriptor::new("", place(name), 1) };
        let layers = ["base", "empty", "tools", "empty"].map(layer);
        assert_eq!(shown(&layers), ["empty", "tools", "base"].map(place));
    }
}
