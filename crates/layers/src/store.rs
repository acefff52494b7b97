//! The store of images, addressed by content: every layer is unpacked once, whoever asks and however often.
//!
//! ```text
//! $HOME/images/            0700: what is in there has owners and set-id bits of its own
//!   lock                   shared by who adds, alone for who removes layers and blobs
//!   blobs/<sha256>         manifests, configurations and layers as they came, so that they can be sent on
//!   partial/<sha256>       a blob that is not complete; whoever works on it has it locked
//!   layers/<sha256>/       what a layer unpacked to: `tree` and `about.json`; complete, and never changed again. It is
//!                          named by its blob and by what that has to unpack to
//!   images/<sha256>/       an image, by its manifest: `image.json`, `lock`, `users/`, and `patch/` where one is needed
//!   names/<sha256>         what a name stands for, by the digest of the name
//!   archives/<state>       which image a file is, by what the system says about the file; also its lock
//!   staging/<random>/      what is being put together, locked by whoever works on it
//! ```
//!
//! What an image is made of is on the disk before the image is recorded, and the image before its name. So whatever is
//! recorded is complete; what is not may be used by the next pull after a look at it, and is nothing to anybody else.

mod archive;
mod blob;
mod budget;
mod files;
mod layer;
mod outer;
mod patch;
mod pull;
mod record;
mod remove;
mod save;
mod send;
mod usage;
mod users;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use carrel_image::RootFs;
use rustix::fs::FlockOperation;

pub use self::remove::Removed;
pub use self::usage::Usage;
pub use self::users::Hold;

use self::record::{Named, Record, Records};
use crate::config::Config;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::lock::{self, Claim};
use crate::staging::Staged;
use crate::unpack::Unpacker;

const LOCK: &str = "lock";
const BLOBS: &str = "blobs";
const PARTIAL: &str = "partial";
const LAYERS: &str = "layers";
const IMAGES: &str = "images";
const NAMES: &str = "names";
const ARCHIVES: &str = "archives";
const STAGING: &str = "staging";

/// In the directory of an image: what is known of it.
const RECORD: &str = "image.json";
/// In the directory of an image: who needs it.
const USERS: &str = "users";
/// In the directory of an image: directories over its layers.
const PATCH: &str = "patch";
/// In the directory of a layer: what it unpacked to.
const TREE: &str = "tree";
/// In the directory of a layer: what is known of it.
const ABOUT: &str = "about.json";

/// The longest name of an image.
const LONGEST_NAME: usize = 4096;

/// The store of images.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    handle: OwnedFd,
    unpacker: Unpacker,
}

/// An image in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The digest of its manifest: what it is recorded by.
    pub digest: Digest,
    /// What the manifest is.
    pub media_type: String,
    /// How it is to be run.
    pub config: Config,
    /// What its layers unpack from, the lowest first.
    pub layers: Vec<Digest>,
    /// Its root file system: directories of the store.
    pub root: RootFs,
    /// The sizes of all files of all layers together.
    pub size: u64,
    /// The sizes of its blobs together.
    pub packed: u64,
    /// When it came to the store.
    pub stored: SystemTime,
    /// The names that stand for it: all of them, or the one that it was found by.
    pub names: Vec<String>,
}

/// Where the store of a home is.
fn directory_of(home: &Path) -> Result<PathBuf, StoreError> {
    let path = std::path::absolute(home).map(|home| home.join("images"));
    path.map_err(|source| StoreError::Store { path: home.to_owned(), source })
}

// === impl Store ===

impl Store {
    /// Opens the store below a home, and makes it where there is none.
    pub fn open(home: &Path, unpacker: Unpacker) -> Result<Self, StoreError> {
        let path = directory_of(home)?;
        let handle = files::root(&path).map_err(|source| StoreError::Store { path: path.clone(), source })?;
        Ok(Self::over(path, handle, unpacker))
    }

    /// Opens the store of a home, if there is one: nothing is created.
    pub fn open_existing(home: &Path, unpacker: Unpacker) -> Result<Option<Self>, StoreError> {
        let path = directory_of(home)?;
        let handle = files::existing_root(&path).map_err(|source| StoreError::Store { path: path.clone(), source })?;
        Ok(handle.map(|handle| Self::over(path, handle, unpacker)))
    }

    fn over(path: PathBuf, handle: OwnedFd, unpacker: Unpacker) -> Self {
        // What it names is named without links, so that none has to be followed.
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        Self { path, handle, unpacker }
    }

    /// The image that a name stands for here.
    pub fn find(&self, name: &str) -> Result<Option<Stored>, StoreError> {
        let Some(named) = self.named(name)? else { return Ok(None) };
        let Some(record) = self.record(named.digest)? else { return Ok(None) };
        Ok(Some(self.stored(record, vec![named.name])))
    }

    /// An image by its digest, with all its names.
    pub fn get(&self, digest: Digest) -> Result<Option<Stored>, StoreError> {
        let Some(record) = self.record(digest)? else { return Ok(None) };
        let names = self.all_names()?.remove(&digest).unwrap_or_default();
        Ok(Some(self.stored(record, names)))
    }

    /// All images, those that came last first.
    pub fn list(&self) -> Result<Vec<Stored>, StoreError> {
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

    /// The images of which what is known cannot be read. They can be removed by their digests.
    pub fn damaged(&self) -> Result<Vec<Digest>, StoreError> {
        Ok(self.records()?.damaged)
    }

    /// Lets a name stand for an image that is here.
    pub fn name(&self, name: &str, digest: Digest) -> Result<(), StoreError> {
        let held = self.hold(digest)?;
        let named = self.record_name(name, digest);
        held.end();
        named
    }

    fn record_name(&self, name: &str, digest: Digest) -> Result<(), StoreError> {
        let place = place_of(name)?;
        let named = Named { name: name.to_owned(), digest, resolved: record::now() };
        let names = self.lock_names()?;
        let bytes = serde_json::to_vec(&named).map_err(|error| self.failed(error.into()))?;
        files::replace(&names, &place, &bytes).map_err(|error| self.failed(error))
    }

    /// The directory of names, which one at a time changes.
    fn lock_names(&self) -> Result<OwnedFd, StoreError> {
        let names = self.directory(NAMES)?;
        lock::flock(&names, FlockOperation::LockExclusive).map_err(|error| self.failed(error))?;
        Ok(names)
    }

    fn named(&self, name: &str) -> Result<Option<Named>, StoreError> {
        let path = format!("{NAMES}/{}", place_of(name)?);
        let bytes = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        // What cannot be read is none, and is written anew by the next pull.
        Ok(bytes.and_then(|bytes| serde_json::from_slice::<Named>(&bytes).ok()).filter(|named| named.name == name))
    }

    /// All names, by what they stand for.
    fn all_names(&self) -> Result<HashMap<Digest, Vec<String>>, StoreError> {
        let mut found: HashMap<_, Vec<_>> = HashMap::new();
        for place in files::names(&self.handle, NAMES).map_err(|error| self.failed(error))? {
            let bytes = files::read(&self.handle, &format!("{NAMES}/{place}")).map_err(|error| self.failed(error))?;
            if let Some(named) = bytes.and_then(|bytes| serde_json::from_slice::<Named>(&bytes).ok()) {
                found.entry(named.digest).or_default().push(named.name);
            }
        }
        found.values_mut().for_each(|names| names.sort());
        Ok(found)
    }

    fn record(&self, digest: Digest) -> Result<Option<Record>, StoreError> {
        let path = format!("{IMAGES}/{}/{RECORD}", digest.hex());
        let read = || -> io::Result<Option<Record>> {
            let bytes = files::read(&self.handle, &path)?;
            Ok(bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose()?)
        };
        read().map_err(|source| StoreError::Damaged { digest, source })
    }

    /// What is known of all images. One of which it cannot be read is in nobody's way.
    fn records(&self) -> Result<Records, StoreError> {
        let mut records = Records::default();
        for digest in self.digests()? {
            match self.record(digest) {
                Ok(record) => records.read.extend(record),
                Err(_) => records.damaged.push(digest),
            }
        }
        Ok(records)
    }

    /// The digests of all images.
    fn digests(&self) -> Result<Vec<Digest>, StoreError> {
        let names = files::names(&self.handle, IMAGES).map_err(|error| self.failed(error))?;
        Ok(names.iter().filter_map(|name| Digest::from_hex(name).ok()).collect())
    }

    fn damaged_image(&self, digest: Digest) -> StoreError {
        let unknown = || self.failed(io::ErrorKind::InvalidData.into());
        self.record(digest).err().unwrap_or_else(unknown)
    }

    fn stored(&self, record: Record, names: Vec<String>) -> Stored {
        let patch = record.patched.then(|| self.path.join(IMAGES).join(record.digest.hex()).join(PATCH));
        let tree = |place: Digest| self.path.join(LAYERS).join(place.hex()).join(TREE);
        let layers = patch.into_iter().chain(record.shown.iter().copied().map(tree)).collect();
        Stored {
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

    /// A directory of the store, made where there is none.
    fn directory(&self, name: &str) -> Result<OwnedFd, StoreError> {
        files::directory(&self.handle, name).map_err(|error| self.failed(error))
    }

    /// A new directory to put something together in.
    fn staged(&self) -> Result<Staged, StoreError> {
        Staged::new(self.directory(STAGING)?, &self.path.join(STAGING)).map_err(|error| self.failed(error))
    }

    /// Keeps layers and blobs from being removed while something is added.
    fn add(&self) -> Result<Claim, StoreError> {
        let lock = || {
            let claim = self.claim()?;
            lock::flock(&claim.0, FlockOperation::LockShared).map(|()| claim)
        };
        lock().map_err(|error: io::Error| self.failed(error))
    }

    /// The lock of all layers and blobs, which is not locked yet.
    fn claim(&self) -> io::Result<Claim> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Claim(rustix::fs::openat(&self.handle, LOCK, flags, Mode::from_raw_mode(0o600))?))
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::Store { path: self.path.clone(), source }
    }
}

/// The file of a name.
fn place_of(name: &str) -> Result<String, StoreError> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(StoreError::BadName(name.chars().take(64).collect()));
    }
    Ok(Digest::of(name.as_bytes()).hex())
}
