//! The content-addressed image store: each layer is unpacked once.
//!
//! ```text
//! $HOME/images/            0700: the files inside have their own owners and set-id bits
//!   lock                   shared to add content, exclusive to remove layers and blobs
//!   blobs/<sha256>         manifests, configurations and layers as received, so that they can be pushed
//!   partial/<sha256>       an incomplete blob, locked by the process that downloads it
//!   layers/<sha256>/       an unpacked layer: `tree` and `about.json`; complete and immutable, named by a hash of its
//!                          blob's digest and its diff ID
//!   images/<sha256>/       an image, by the digest of its manifest: `image.json`, `lock`, `users/`, and perhaps `patch/`
//!   names/<sha256>         the image of a name, by the digest of the name
//!   archives/<state>       the image of an archive file, by the file's `stat` fields; also its lock
//!   staging/<random>/      content that is being assembled, locked by its process
//! ```
//!
//! Content is synced to disk before the image is recorded, and the image before its name. So whatever is recorded is
//! complete; other content may be reused by the next pull after verification.

mod archive;
mod attribute_layer;
mod blob;
mod budget;
mod decompress;
mod files;
mod layer;
mod pull;
mod push;
mod record;
mod references;
mod remove;
mod save;
mod usage;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use carrel_image::RootFs;
use rustix::fs::FlockOperation;

pub use self::references::ImagePin;
pub use self::remove::RemovedImages;
pub use self::usage::StoreUsage;

use self::record::{ImageRecord, ImageRecords, NameRecord};
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::lock::{self, StoreLock};
use crate::staging::StagingDirectory;
use crate::unpack::Unpacker;

const LOCK: &str = "lock";
const BLOBS: &str = "blobs";
const PARTIAL: &str = "partial";
const LAYERS: &str = "layers";
const IMAGES: &str = "images";
const NAMES: &str = "names";
const ARCHIVES: &str = "archives";
const STAGING: &str = "staging";

/// In the directory of an image: its record.
const RECORD: &str = "image.json";
/// In the directory of an image: links to its users.
const USERS: &str = "users";
/// In the directory of an image: an extra layer with directory attributes.
const PATCH: &str = "patch";
/// In the directory of a layer: its files.
const TREE: &str = "tree";
/// In the directory of a layer: its record.
const ABOUT: &str = "about.json";

/// The longest image name.
const MAX_NAME_LENGTH: usize = 4096;

/// The store of images in one home directory.
#[derive(Debug)]
pub struct ImageStore {
    path: PathBuf,
    handle: OwnedFd,
    unpacker: Unpacker,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// The digest of its manifest, which identifies it.
    pub digest: Digest,
    /// The media type of its manifest.
    pub media_type: String,
    /// Defaults for its commands.
    pub config: ImageConfig,
    /// The diff IDs, the lowest layer first.
    pub layers: Vec<Digest>,
    /// Its layers as directories of the store.
    pub root: RootFs,
    /// The sum of all file sizes in all layers.
    pub size: u64,
    /// The sum of its blob sizes.
    pub packed: u64,
    /// When it was added to the store.
    pub stored: SystemTime,
    /// Its names: all of them, or the one it was found by.
    pub names: Vec<String>,
}

/// The directory of the store in a home directory.
fn store_directory(home: &Path) -> Result<PathBuf, ImageStoreError> {
    let path = std::path::absolute(home).map(|home| home.join("images"));
    path.map_err(|source| ImageStoreError::Store { path: home.to_owned(), source })
}

// === impl ImageStore ===

impl ImageStore {
    /// Opens the store in a home directory, and creates it if needed.
    pub fn open(home: &Path, unpacker: Unpacker) -> Result<Self, ImageStoreError> {
        let path = store_directory(home)?;
        let handle = files::root(&path).map_err(|source| ImageStoreError::Store { path: path.clone(), source })?;
        Ok(Self::from_handle(path, handle, unpacker))
    }

    /// Opens the store in a home directory, if it exists; nothing is created.
    pub fn open_existing(home: &Path, unpacker: Unpacker) -> Result<Option<Self>, ImageStoreError> {
        let path = store_directory(home)?;
        let handle =
            files::existing_root(&path).map_err(|source| ImageStoreError::Store { path: path.clone(), source })?;
        Ok(handle.map(|handle| Self::from_handle(path, handle, unpacker)))
    }

    fn from_handle(path: PathBuf, handle: OwnedFd, unpacker: Unpacker) -> Self {
        // The path is handed to others, who should not need to follow symlinks.
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        Self { path, handle, unpacker }
    }

    pub fn find(&self, name: &str) -> Result<Option<StoredImage>, ImageStoreError> {
        let Some(named) = self.named(name)? else { return Ok(None) };
        let Some(record) = self.record(named.digest)? else { return Ok(None) };
        Ok(Some(self.stored(record, vec![named.name])))
    }

    /// Gets an image by its digest, with all its names.
    pub fn get(&self, digest: Digest) -> Result<Option<StoredImage>, ImageStoreError> {
        let Some(record) = self.record(digest)? else { return Ok(None) };
        let names = self.all_names()?.remove(&digest).unwrap_or_default();
        Ok(Some(self.stored(record, names)))
    }

    /// Lists all images, the newest first.
    pub fn list(&self) -> Result<Vec<StoredImage>, ImageStoreError> {
        let mut names = self.all_names()?;
        let records = self.records()?.read.into_iter();
        let mut images: Vec<_> = records
            .map(|record| {
                let names = names.remove(&record.digest).unwrap_or_default();
                self.stored(record, names)
            })
            .collect();
        images.sort_by(|a, b| (b.stored, a.digest).cmp(&(a.stored, b.digest)));
        Ok(images)
    }

    /// Images whose record cannot be read. They can be removed by digest.
    pub fn damaged(&self) -> Result<Vec<Digest>, ImageStoreError> {
        Ok(self.records()?.damaged)
    }

    /// Gives a name to an image of the store.
    pub fn name(&self, name: &str, digest: Digest) -> Result<(), ImageStoreError> {
        let held = self.hold(digest)?;
        let named = self.record_name(name, digest);
        held.end();
        named
    }

    fn record_name(&self, name: &str, digest: Digest) -> Result<(), ImageStoreError> {
        let place = place_of(name)?;
        let named = NameRecord { name: name.to_owned(), digest, resolved: record::now() };
        let names = self.lock_names()?;
        let bytes = serde_json::to_vec(&named).map_err(|error| self.failed(error.into()))?;
        files::replace(&names, &place, &bytes).map_err(|error| self.failed(error))
    }

    /// Opens and locks the directory of names.
    fn lock_names(&self) -> Result<OwnedFd, ImageStoreError> {
        let names = self.directory(NAMES)?;
        lock::flock(&names, FlockOperation::LockExclusive).map_err(|error| self.failed(error))?;
        Ok(names)
    }

    fn named(&self, name: &str) -> Result<Option<NameRecord>, ImageStoreError> {
        let path = format!("{NAMES}/{}", place_of(name)?);
        let bytes = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        // An unreadable name counts as missing; the next pull replaces it.
        Ok(bytes.and_then(|bytes| serde_json::from_slice::<NameRecord>(&bytes).ok()).filter(|named| named.name == name))
    }

    fn all_names(&self) -> Result<HashMap<Digest, Vec<String>>, ImageStoreError> {
        let mut found: HashMap<_, Vec<_>> = HashMap::new();
        for place in files::names(&self.handle, NAMES).map_err(|error| self.failed(error))? {
            let bytes = files::read(&self.handle, &format!("{NAMES}/{place}")).map_err(|error| self.failed(error))?;
            if let Some(named) = bytes.and_then(|bytes| serde_json::from_slice::<NameRecord>(&bytes).ok()) {
                found.entry(named.digest).or_default().push(named.name);
            }
        }
        found.values_mut().for_each(|names| names.sort());
        Ok(found)
    }

    fn record(&self, digest: Digest) -> Result<Option<ImageRecord>, ImageStoreError> {
        let path = format!("{IMAGES}/{}/{RECORD}", digest.hex());
        let read = || -> io::Result<Option<ImageRecord>> {
            let bytes = files::read(&self.handle, &path)?;
            Ok(bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose()?)
        };
        read().map_err(|source| ImageStoreError::Damaged { digest, source })
    }

    /// Reads all records; unreadable ones do not fail the call.
    fn records(&self) -> Result<ImageRecords, ImageStoreError> {
        let mut records = ImageRecords::default();
        for digest in self.digests()? {
            match self.record(digest) {
                Ok(record) => records.read.extend(record),
                Err(_) => records.damaged.push(digest),
            }
        }
        Ok(records)
    }

    fn digests(&self) -> Result<Vec<Digest>, ImageStoreError> {
        let names = files::names(&self.handle, IMAGES).map_err(|error| self.failed(error))?;
        Ok(names.iter().filter_map(|name| Digest::from_hex(name).ok()).collect())
    }

    fn damaged_image(&self, digest: Digest) -> ImageStoreError {
        let unknown = || self.failed(io::ErrorKind::InvalidData.into());
        self.record(digest).err().unwrap_or_else(unknown)
    }

    fn stored(&self, record: ImageRecord, names: Vec<String>) -> StoredImage {
        let patch = record.patched.then(|| self.path.join(IMAGES).join(record.digest.hex()).join(PATCH));
        let tree = |place: Digest| self.path.join(LAYERS).join(place.hex()).join(TREE);
        let layers = patch.into_iter().chain(record.shown.iter().copied().map(tree)).collect();
        StoredImage {
            digest: record.digest,
            packed: record.packed(),
            media_type: record.media_type,
            config: record.config,
            layers: record.layers.iter().map(|layer| layer.diff_id).collect(),
            root: RootFs { layers, ..RootFs::default() },
            size: record.unpacked,
            stored: SystemTime::UNIX_EPOCH + Duration::from_secs(record.stored),
            names,
        }
    }

    /// Opens a directory of the store, and creates it if needed.
    fn directory(&self, name: &str) -> Result<OwnedFd, ImageStoreError> {
        files::directory(&self.handle, name).map_err(|error| self.failed(error))
    }

    fn staged(&self) -> Result<StagingDirectory, ImageStoreError> {
        StagingDirectory::new(self.directory(STAGING)?, &self.path.join(STAGING)).map_err(|error| self.failed(error))
    }

    /// Takes the shared lock that keeps layers and blobs from being removed.
    fn add(&self) -> Result<StoreLock, ImageStoreError> {
        let lock = || {
            let claim = self.claim()?;
            lock::flock(&claim.0, FlockOperation::LockShared).map(|()| claim)
        };
        lock().map_err(|error: io::Error| self.failed(error))
    }

    /// Opens the lock file of all layers and blobs, without locking it.
    fn claim(&self) -> io::Result<StoreLock> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(StoreLock(rustix::fs::openat(&self.handle, LOCK, flags, Mode::from_raw_mode(0o600))?))
    }

    fn failed(&self, source: io::Error) -> ImageStoreError {
        ImageStoreError::Store { path: self.path.clone(), source }
    }
}

/// The file name for an image name.
fn place_of(name: &str) -> Result<String, ImageStoreError> {
    if name.is_empty() || name.len() > MAX_NAME_LENGTH {
        return Err(ImageStoreError::InvalidName(name.chars().take(64).collect()));
    }
    Ok(Digest::of(name.as_bytes()).hex())
}
