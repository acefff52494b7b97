//! In-memory images: a source that can inject faults and counts requests, and a target.

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use carrel_layers::{
    Descriptor, Digest, ImageSource, ImageStore, ImageStoreError, ImageTarget, LayerOutcome, Manifest, Platform,
    PullProgress, SourceError, StoredImage, Unpacker, media,
};

use crate::support::{TarBuilder, gzip, names};

/// An image and the faults of its source.
pub(crate) struct MemorySource {
    pub(crate) manifest: Vec<u8>,
    pub(crate) media_type: String,
    pub(crate) blobs: HashMap<Digest, Vec<u8>>,
    /// The bytes that are returned instead of a blob's own content.
    pub(crate) instead: HashMap<Digest, Vec<u8>>,
    /// The stream breaks after this many bytes of a blob, with an error or without.
    pub(crate) cut: HashMap<Digest, (u64, bool)>,
    /// The requested blobs and their offsets.
    pub(crate) requests: Mutex<Vec<(Digest, u64)>>,
    /// How many bytes of blobs were read.
    pub(crate) given: std::sync::Arc<Mutex<u64>>,
}

/// Builds an image.
#[derive(Default)]
pub(crate) struct ImageBuilder {
    layers: Vec<(Descriptor, Digest, Vec<u8>)>,
    config: serde_json::Map<String, serde_json::Value>,
}

/// A home directory with a store.
pub(crate) struct StoreHome {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) store: ImageStore,
}

/// Records progress.
#[derive(Default)]
pub(crate) struct RecordedProgress {
    pub(crate) done: Mutex<BTreeMap<usize, Vec<LayerOutcome>>>,
    pub(crate) messages: Mutex<Vec<String>>,
}

/// Records a push.
#[derive(Default)]
pub(crate) struct MemoryTarget {
    pub(crate) blobs: Mutex<HashMap<Digest, Vec<u8>>>,
    pub(crate) manifest: Mutex<Option<(String, Vec<u8>)>>,
}

// === impl ImageBuilder ===

impl ImageBuilder {
    pub(crate) fn layer(self, tar: Vec<u8>) -> Self {
        let packed = gzip(&tar);
        self.packed(media::LAYER_GZIP, Digest::of(&tar), packed)
    }

    pub(crate) fn packed(mut self, media_type: &str, diff_id: Digest, bytes: Vec<u8>) -> Self {
        self.layers.push((Descriptor::of(media_type, &bytes), diff_id, bytes));
        self
    }

    pub(crate) fn config(mut self, key: &str, value: serde_json::Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    pub(crate) fn source(&self) -> MemorySource {
        self.changed(|_| {})
    }

    /// The image with a modified manifest.
    pub(crate) fn changed(&self, change: impl Fn(&mut serde_json::Value)) -> MemorySource {
        let diff_ids: Vec<_> = self.layers.iter().map(|(_, diff_id, _)| diff_id).collect();
        let rootfs = serde_json::json!({ "type": "layers", "diff_ids": diff_ids });
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": self.config, "rootfs": rootfs,
        });
        let config = serde_json::to_vec(&config).unwrap();
        let described = Descriptor::of(media::CONFIG, &config);
        let layers: Vec<_> = self.layers.iter().map(|(descriptor, ..)| descriptor).collect();
        let mut manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": media::MANIFEST, "config": described, "layers": layers,
        });
        change(&mut manifest);
        let mut blobs: HashMap<_, _> =
            self.layers.iter().map(|(descriptor, _, bytes)| (descriptor.digest, bytes.clone())).collect();
        blobs.insert(described.digest, config);
        MemorySource {
            manifest: serde_json::to_vec(&manifest).unwrap(),
            media_type: media::MANIFEST.to_owned(),
            blobs,
            instead: HashMap::new(),
            cut: HashMap::new(),
            requests: Mutex::default(),
            given: std::sync::Arc::default(),
        }
    }
}

/// An image of two layers, the second of which deletes a file.
pub(crate) fn two_layers() -> ImageBuilder {
    let lower = TarBuilder::default().dir("./").dir("etc").file("etc/hostname", b"carrel\n").file("etc/gone", b"");
    let upper = TarBuilder::default().dir("./").dir("etc").file("etc/.wh.gone", b"").file("etc/motd", b"hello\n");
    ImageBuilder::default().layer(lower.end()).layer(upper.end()).config("Cmd", serde_json::json!(["sh"]))
}

// === impl MemorySource ===

impl MemorySource {
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// The descriptors of its layers.
    pub(crate) fn layers(&self) -> Vec<Descriptor> {
        let manifest: carrel_layers::ImageManifest = serde_json::from_slice(&self.manifest).unwrap();
        manifest.layers
    }

    pub(crate) fn take_requests(&self) -> Vec<(Digest, u64)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    pub(crate) fn given(&self) -> u64 {
        std::mem::take(&mut self.given.lock().unwrap())
    }

    /// Writes it as a layout for other processes.
    pub(crate) fn layout(&self, at: &Path) {
        std::fs::create_dir_all(at.join("blobs/sha256")).unwrap();
        std::fs::write(at.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        for (digest, bytes) in
            self.blobs.iter().map(|(digest, bytes)| (*digest, bytes)).chain([(self.digest(), &self.manifest)])
        {
            std::fs::write(at.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        }
        let descriptor = Descriptor::of(&self.media_type, &self.manifest);
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [descriptor] });
        std::fs::write(at.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
    }
}

/// A stream that counts, and may break.
struct FaultyStream {
    content: Cursor<Vec<u8>>,
    left: Option<(u64, bool)>,
    given: std::sync::Arc<Mutex<u64>>,
}

impl Read for FaultyStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = match self.left {
            Some((0, true)) => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Some((left, _)) => into.len().min(usize::try_from(left).unwrap()),
            None => into.len(),
        };
        let read = self.content.read(&mut into[..most])?;
        *self.given.lock().unwrap() += read as u64;
        if let Some((left, _)) = &mut self.left {
            *left -= read as u64;
        }
        Ok(read)
    }
}

impl ImageSource for MemorySource {
    fn manifest(&self, _: &Platform) -> Result<Manifest, SourceError> {
        let (media_type, bytes) = (self.media_type.clone(), self.manifest.clone());
        Ok(Manifest { media_type, digest: Digest::of(&bytes), bytes })
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        self.requests.lock().unwrap().push((descriptor.digest, from));
        let content = self.instead.get(&descriptor.digest).or_else(|| self.blobs.get(&descriptor.digest));
        let missing = SourceError::Missing { what: "blob", digest: descriptor.digest };
        let mut content = Cursor::new(content.ok_or(missing)?.clone());
        content.set_position(from);
        let left = self.cut.get(&descriptor.digest).map(|(after, error)| (after.saturating_sub(from), *error));
        Ok(Box::new(FaultyStream { content, left, given: std::sync::Arc::clone(&self.given) }))
    }
}

// === impl StoreHome ===

impl StoreHome {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        Self { directory, store }
    }

    pub(crate) fn pull(&self, source: &MemorySource) -> Result<StoredImage, ImageStoreError> {
        self.store.pull(Some("example.org/image:latest"), source, &amd64(), &())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("images").join(path)
    }

    /// The names in a directory of the store.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        names(&self.path(directory))
    }

    /// Asserts that nothing incomplete is left.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        for directory in ["partial", "staging"] {
            assert_eq!(self.names(directory), [""; 0], "{directory}");
        }
    }

    /// Asserts that the store is empty.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        for directory in ["partial", "staging", "blobs", "layers", "images", "names", "archives"] {
            assert_eq!(self.names(directory), [""; 0], "{directory}");
        }
    }
}

pub(crate) fn open(home: &Path) -> ImageStore {
    ImageStore::open(home, Unpacker::new(env!("CARGO_BIN_EXE_carrel-unpack"))).unwrap()
}

/// All entries of a tree, without the times of whiteouts.
pub(crate) fn tree(at: &Path) -> BTreeMap<PathBuf, String> {
    let mut entries = crate::trees::described(at);
    for line in entries.values_mut().filter(|line| line.starts_with("mode 20000 ")) {
        "gone".clone_into(line);
    }
    entries
}

/// Releases a lock. Closing is not enough: a process that another test just starts has inherited the descriptor.
pub(crate) fn release(lock: impl std::os::fd::AsFd) {
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::Unlock).unwrap();
}

pub(crate) fn amd64() -> Platform {
    "linux/amd64".parse().unwrap()
}

// === impl RecordedProgress ===

impl PullProgress for RecordedProgress {
    fn layer_done(&self, layer: usize, how: LayerOutcome) {
        self.done.lock().unwrap().entry(layer).or_default().push(how);
    }

    fn message(&self, text: &str) {
        self.messages.lock().unwrap().push(text.to_owned());
    }
}

// === impl MemoryTarget ===

impl ImageTarget for MemoryTarget {
    fn has(&self, descriptor: &Descriptor) -> Result<bool, SourceError> {
        Ok(self.blobs.lock().unwrap().contains_key(&descriptor.digest))
    }

    fn blob(
        &self,
        descriptor: &Descriptor,
        open: &dyn Fn() -> std::io::Result<Box<dyn Read + Send>>,
    ) -> Result<(), SourceError> {
        let mut bytes = Vec::new();
        open()?.read_to_end(&mut bytes)?;
        let mut again = Vec::new();
        open()?.read_to_end(&mut again)?;
        assert!(bytes == again, "it can be read again from its beginning");
        assert_eq!(Digest::of(&bytes), descriptor.digest);
        assert!(self.blobs.lock().unwrap().insert(descriptor.digest, bytes).is_none(), "it is sent once");
        Ok(())
    }

    fn manifest(&self, media_type: &str, bytes: &[u8]) -> Result<(), SourceError> {
        *self.manifest.lock().unwrap() = Some((media_type.to_owned(), bytes.to_vec()));
        Ok(())
    }
}

impl MemoryTarget {
    /// The image that was pushed, as a source.
    pub(crate) fn source(self) -> MemorySource {
        let (media_type, manifest) = self.manifest.into_inner().unwrap().unwrap();
        let blobs = self.blobs.into_inner().unwrap();
        MemorySource { manifest, media_type, blobs, ..ImageBuilder::default().source() }
    }
}
