//! Removes names, unused images, and then unreferenced layers and blobs.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use super::record::{ImageLayer, NameRecord};
use super::references::ImageLock;
use super::{ABOUT, ARCHIVES, BLOBS, IMAGES, ImageStore, LAYERS, NAMES, PARTIAL, STAGING, files, place_of};
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::{archive_index, lock, staging};

/// The shortest digest prefix that selects an image.
const SHORTEST: usize = 8;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedImages {
    /// Names that no longer exist.
    pub names: Vec<String>,
    /// Digests of the manifests.
    pub images: Vec<Digest>,
    /// The freed disk space, in bytes.
    pub bytes: u64,
    /// Whether garbage remains, because a pull is running or a record cannot be read; the next prune removes it.
    pub left: bool,
}

/// Layers and blobs that may be unreferenced.
#[derive(Default)]
struct Unreferenced {
    layers: HashSet<Digest>,
    blobs: HashSet<Digest>,
}

// === impl ImageStore ===

impl ImageStore {
    /// Removes a name, and the image with its last one; or an image by its digest or a prefix, with all its names. An
    /// image in use is not removed.
    pub fn remove(&self, name_or_digest: &str) -> Result<RemovedImages, ImageStoreError> {
        let mut removed = RemovedImages::default();
        let Some(NameRecord { name, digest, .. }) = self.named(name_or_digest)? else {
            let digest = self.resolve_digest(name_or_digest)?;
            // Without a record, a prune finds its content.
            removed.left = matches!(self.record(digest), Err(ImageStoreError::Damaged { .. }));
            let loose = self.remove_image(digest, None, &mut removed)?;
            self.collect(&loose.unwrap_or_default(), &mut removed)?;
            return Ok(removed);
        };
        let requested = [name];
        let others = |names: Vec<String>| names.iter().any(|other| !requested.contains(other));
        let loose = match self.all_names()?.remove(&digest).is_some_and(others) {
            true => None,
            false => self.remove_image(digest, Some(&requested), &mut removed)?,
        };
        match loose {
            Some(loose) => drop(self.collect(&loose, &mut removed)?),
            // It has other names.
            None => removed.names.extend(self.unname(&requested, digest)?),
        }
        Ok(removed)
    }

    /// Removes images without a name, or with `unused` all that are not in use; unreferenced layers and blobs; and
    /// leftovers of interrupted pulls.
    pub fn prune(&self, unused: bool) -> Result<RemovedImages, ImageStoreError> {
        let names = self.all_names()?;
        let mut removed = RemovedImages::default();
        for digest in self.digests()? {
            let requested = names.get(&digest).map_or(&[][..], Vec::as_slice);
            if unused || requested.is_empty() {
                match self.remove_image(digest, Some(requested), &mut removed) {
                    // Its content is found below. An image that was named meanwhile stays.
                    Ok(_) | Err(ImageStoreError::InUse { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for (digest, names) in &names {
            removed.names.extend(self.unname_missing(names, *digest)?);
        }
        removed.names.sort();
        let digests = |directory| -> Result<HashSet<Digest>, ImageStoreError> {
            let names = files::all_names(&self.handle, directory).map_err(|error| self.failed(error))?;
            Ok(names.iter().filter_map(|name| Digest::from_hex(name).ok()).collect())
        };
        let loose = Unreferenced { layers: digests(LAYERS)?, blobs: digests(BLOBS)? };
        if self.collect(&loose, &mut removed)? {
            self.sweep(&mut removed).map_err(|error| self.failed(error))?;
        }
        Ok(removed)
    }

    /// Finds an image by digest or prefix.
    fn resolve_digest(&self, text: &str) -> Result<Digest, ImageStoreError> {
        let unknown = || ImageStoreError::Unknown(text.to_owned());
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < SHORTEST || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(unknown());
        }
        let images = files::names(&self.handle, IMAGES).map_err(|error| self.failed(error))?;
        let mut found =
            images.iter().filter(|name| name.starts_with(digits)).filter_map(|name| Digest::from_hex(name).ok());
        match (found.next(), found.next()) {
            (Some(digest), None) => Ok(digest),
            (None, _) => Err(unknown()),
            (Some(_), Some(_)) => Err(ImageStoreError::Ambiguous(text.to_owned())),
        }
    }

    /// Removes names that still point to an image. Returns those.
    fn unname(&self, requested: &[String], digest: Digest) -> Result<Vec<String>, ImageStoreError> {
        self.unname_from(&self.lock_names()?, requested, digest)
    }

    /// Removes names of a removed image. If it exists again, it was pulled since, and its names stay.
    fn unname_missing(&self, requested: &[String], digest: Digest) -> Result<Vec<String>, ImageStoreError> {
        let names = self.lock_names()?;
        let image = files::existing(&self.handle, &format!("{IMAGES}/{}", digest.hex()));
        match image.map_err(|error| self.failed(error))? {
            Some(_) => Ok(Vec::new()),
            None => self.unname_from(&names, requested, digest),
        }
    }

    fn unname_from(
        &self,
        names: &OwnedFd,
        requested: &[String],
        digest: Digest,
    ) -> Result<Vec<String>, ImageStoreError> {
        let mut gone = Vec::new();
        for name in requested {
            if self.named(name)?.is_some_and(|named| named.digest == digest) {
                files::unlink(names, &place_of(name)?).map_err(|error| self.failed(error))?;
                gone.push(name.clone());
            }
        }
        Ok(gone)
    }

    /// Removes an unused image and its names; does nothing if it has other names. Layers and blobs stay until it is
    /// known that no other image refers to them.
    fn remove_image(
        &self,
        digest: Digest,
        requested: Option<&[String]>,
        removed: &mut RemovedImages,
    ) -> Result<Option<Unreferenced>, ImageStoreError> {
        let failed = |error| self.failed(error);
        let in_use = |users| ImageStoreError::InUse { digest, users };
        // Persistent users can be checked without the lock.
        let users = self.users(digest).map_err(failed)?;
        if !users.is_empty() {
            return Err(in_use(users));
        }
        let held = match self.locked(digest, lock::try_exclusive).map_err(failed)? {
            ImageLock::Held(held) => held,
            ImageLock::Used => return Err(in_use(Vec::new())),
            // Only its names remain.
            ImageLock::Gone => {
                removed.names.extend(self.unname_missing(requested.unwrap_or_default(), digest)?);
                return Ok(Some(Unreferenced::default()));
            }
        };
        // From here on it gets no new user and no new name.
        let users = held.users().map_err(failed)?;
        if !users.is_empty() {
            return Err(in_use(users));
        }
        let names = self.all_names()?.remove(&digest).unwrap_or_default();
        if requested.is_some_and(|requested| names.iter().any(|name| !requested.contains(name))) {
            return Ok(None);
        }
        let loose = match self.record(digest) {
            Ok(record) => {
                record.map(|record| Unreferenced { layers: record.places().collect(), blobs: record.blobs().collect() })
            }
            Err(ImageStoreError::Damaged { .. }) => None,
            Err(error) => return Err(error),
        };
        removed.names.extend(self.unname(&names, digest)?);
        self.discard(self.directory(IMAGES)?, &digest.hex())?;
        removed.images.push(digest);
        Ok(Some(loose.unwrap_or_default()))
    }

    pub(super) fn users(&self, digest: Digest) -> io::Result<Vec<String>> {
        match self.locked(digest, |_| Ok(true))? {
            ImageLock::Held(held) => held.users(),
            ImageLock::Used | ImageLock::Gone => Ok(Vec::new()),
        }
    }

    /// Removes the content of a rejected image, as far as no other image refers to it.
    pub(super) fn refuse(&self, layers: &[ImageLayer]) -> Result<(), ImageStoreError> {
        let blobs = layers.iter().map(|layer| layer.blob.digest).collect();
        let layers = layers.iter().map(|layer| layer.place).collect();
        self.collect(&Unreferenced { layers, blobs }, &mut RemovedImages::default()).map(drop)
    }

    /// Removes unreferenced layers and blobs, unless a pull is running.
    fn collect(&self, loose: &Unreferenced, removed: &mut RemovedImages) -> Result<bool, ImageStoreError> {
        let claim = self.claim().map_err(|error| self.failed(error))?;
        if !lock::try_exclusive(&claim.0).map_err(|error| self.failed(error))? {
            removed.left = true;
            return Ok(false);
        }
        let records = self.records()?;
        if !records.damaged.is_empty() {
            // All of it may belong to the running pull.
            removed.left = true;
            return Ok(true);
        }
        let (layers, blobs) = (records.places(), records.blobs());
        for layer in loose.layers.difference(&layers) {
            removed.bytes = removed.bytes.saturating_add(self.about(*layer)?.map_or(0, |about| about.bytes));
            self.discard(self.directory(LAYERS)?, &layer.hex())?;
        }
        let directory = self.directory(BLOBS)?;
        for blob in loose.blobs.difference(&blobs).map(Digest::hex) {
            let size = files::size(&directory, &blob).map_err(|error| self.failed(error))?;
            files::unlink(&directory, &blob).map_err(|error| self.failed(error))?;
            removed.bytes = removed.bytes.saturating_add(size.unwrap_or(0));
        }
        Ok(true)
    }

    /// Removes leftovers of interrupted pulls, and archive entries whose image is gone.
    fn sweep(&self, removed: &mut RemovedImages) -> io::Result<()> {
        let claim = self.claim()?;
        if !lock::try_exclusive(&claim.0)? {
            return Ok(());
        }
        let partial = files::directory(&self.handle, PARTIAL)?;
        for name in files::all_names(&self.handle, PARTIAL)? {
            removed.bytes = removed.bytes.saturating_add(files::size(&partial, &name)?.unwrap_or(0));
            files::unlink(&partial, &name)?;
        }
        let names = files::directory(&self.handle, NAMES)?;
        for name in files::all_names(&self.handle, NAMES)?.iter().filter(|name| Digest::from_hex(name).is_err()) {
            files::unlink(&names, name)?;
        }
        let archives = files::directory(&self.handle, ARCHIVES)?;
        archive_index::sweep(&archives, |digest| {
            Ok(files::existing(&self.handle, &format!("{IMAGES}/{}", digest.hex()))?.is_some())
        })?;
        staging::sweep(&files::directory(&self.handle, STAGING)?, &self.path.join(STAGING))
    }

    /// Removes a directory of the store.
    pub(super) fn discard(&self, place: impl std::os::fd::AsFd, name: &str) -> Result<(), ImageStoreError> {
        let staging = self.directory(STAGING)?;
        staging::discard(&staging, &self.path.join(STAGING), place, name).map_err(|error| self.failed(error))
    }

    /// The record of an unpacked layer; an unreadable one counts as missing.
    pub(super) fn about(&self, place: Digest) -> Result<Option<super::record::LayerRecord>, ImageStoreError> {
        let path = format!("{LAYERS}/{}/{ABOUT}", place.hex());
        let bytes = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}
