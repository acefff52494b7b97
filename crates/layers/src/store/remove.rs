//! Removing: names, images that nobody needs, and then the layers and blobs that no image has.

use std::collections::HashSet;
use std::io;

use super::record::{Layer, Record};
use super::users::{Hold, Locked};
use super::{ABOUT, ARCHIVES, BLOBS, IMAGES, LAYERS, NAMES, PARTIAL, STAGING, Store, files, place_of};
use crate::digest::Digest;
use crate::error::StoreError;
use crate::{index, lock, staging};

/// The shortest beginning of a digest that names an image.
const SHORTEST: usize = 8;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that stand for nothing any more.
    pub names: Vec<String>,
    /// Images.
    pub images: Vec<Digest>,
    /// How much room that has made on the disk, in bytes.
    pub bytes: u64,
    /// Whether something that nobody needs had to stay, because images are being added: the next removal takes it.
    pub left: bool,
}

/// Layers and blobs that may go.
#[derive(Default)]
struct Loose {
    layers: HashSet<Digest>,
    blobs: HashSet<Digest>,
}

// === impl Store ===

impl Store {
    /// Removes a name, and the image with its last one; or an image by its digest or the beginning of it, with all its
    /// names. One that is in use is not removed.
    pub fn remove(&self, name_or_digest: &str) -> Result<Removed, StoreError> {
        let (digest, name) = match self.named(name_or_digest)? {
            Some(named) => (named.digest, Some(named.name)),
            None => (self.meant(name_or_digest)?, None),
        };
        let names = self.all_names()?.remove(&digest).unwrap_or_default();
        if let Some(name) = name {
            if names.iter().any(|other| *other != name) {
                self.unname(&name)?;
                return Ok(Removed { names: vec![name], ..Removed::default() });
            }
        }
        let mut removed = Removed::default();
        let loose = self.remove_image(digest, &names, &mut removed)?;
        self.collect(&loose, &mut removed)?;
        Ok(removed)
    }

    /// Removes what nothing needs: images without a name, or, with `unused`, all that are not in use; layers and blobs
    /// of no image; and what pulls that did not end have left.
    pub fn prune(&self, unused: bool) -> Result<Removed, StoreError> {
        let mut names = self.all_names()?;
        let mut removed = Removed::default();
        for record in self.records()? {
            let names = names.remove(&record.digest).unwrap_or_default();
            if unused || names.is_empty() {
                match self.remove_image(record.digest, &names, &mut removed) {
                    // What it has is found below.
                    Ok(_) | Err(StoreError::InUse { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        // What is left stands for images that are gone.
        for name in
            names.into_iter().filter(|(digest, _)| !removed.images.contains(digest)).flat_map(|(_, names)| names)
        {
            self.unname(&name)?;
            removed.names.push(name);
        }
        let digests = |directory| -> Result<HashSet<Digest>, StoreError> {
            let names = files::all_names(&self.handle, directory).map_err(|error| self.failed(error))?;
            Ok(names.iter().filter_map(|name| Digest::from_hex(name).ok()).collect())
        };
        let loose = Loose { layers: digests(LAYERS)?, blobs: digests(BLOBS)? };
        if self.collect(&loose, &mut removed)? {
            self.sweep(&mut removed).map_err(|error| self.failed(error))?;
        }
        Ok(removed)
    }

    /// The image that is meant by a digest, or the beginning of one.
    fn meant(&self, text: &str) -> Result<Digest, StoreError> {
        let unknown = || StoreError::Unknown(text.to_owned());
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < SHORTEST || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(unknown());
        }
        let images = files::names(&self.handle, IMAGES).map_err(|error| self.failed(error))?;
        let mut meant =
            images.iter().filter(|name| name.starts_with(digits)).filter_map(|name| Digest::from_hex(name).ok());
        match (meant.next(), meant.next()) {
            (Some(digest), None) => Ok(digest),
            (None, _) => Err(unknown()),
            (Some(_), Some(_)) => Err(StoreError::Ambiguous(text.to_owned())),
        }
    }

    fn unname(&self, name: &str) -> Result<(), StoreError> {
        let names = self.directory(NAMES)?;
        files::unlink(&names, &place_of(name)?).map_err(|error| self.failed(error))
    }

    /// Removes an image that nobody needs, and its names. Layers and blobs stay until it is known that no other has them.
    fn remove_image(&self, digest: Digest, names: &[String], removed: &mut Removed) -> Result<Loose, StoreError> {
        let in_use = |users| StoreError::InUse { digest, users };
        let Some(record) = self.record(digest)? else {
            // Only its names are left.
            names.iter().try_for_each(|name| self.unname(name))?;
            removed.names.extend_from_slice(names);
            return Ok(Loose::default());
        };
        // Who needs it durably is known at once.
        let users = self.users(digest).map_err(|error| self.failed(error))?;
        if !users.is_empty() {
            return Err(in_use(users));
        }
        let held = match self.locked(digest, lock::alone).map_err(|error| self.failed(error))? {
            Locked::Held(held) => Some(held),
            Locked::Gone => None,
            Locked::Used => return Err(in_use(Vec::new())),
        };
        // From here on nobody can come to need it.
        let users = held.as_ref().map_or(Ok(Vec::new()), Hold::users).map_err(|error| self.failed(error))?;
        if !users.is_empty() {
            return Err(in_use(users));
        }
        let images = self.directory(IMAGES)?;
        self.discard(images, &digest.hex())?;
        names.iter().try_for_each(|name| self.unname(name))?;
        removed.images.push(digest);
        removed.names.extend_from_slice(names);
        Ok(Loose { layers: record.places().collect(), blobs: record.blobs().collect() })
    }

    /// Who needs an image.
    pub(super) fn users(&self, digest: Digest) -> io::Result<Vec<String>> {
        match self.locked(digest, |_| Ok(true))? {
            Locked::Held(held) => held.users(),
            Locked::Used | Locked::Gone => Ok(Vec::new()),
        }
    }

    /// Removes what came of an image that is refused, and that no other has.
    pub(super) fn refuse(&self, layers: &[Layer]) -> Result<(), StoreError> {
        let blobs = layers.iter().map(|layer| layer.blob.digest).collect();
        let layers = layers.iter().map(|layer| layer.place).collect();
        self.collect(&Loose { layers, blobs }, &mut Removed::default()).map(drop)
    }

    /// Removes layers and blobs that no image has, unless somebody adds: then it is left to a later removal.
    fn collect(&self, loose: &Loose, removed: &mut Removed) -> Result<bool, StoreError> {
        let lock = self.lock_file().map_err(|error| self.failed(error))?;
        if !lock::alone(&lock).map_err(|error| self.failed(error))? {
            removed.left = true;
            return Ok(false);
        }
        let records = self.records()?;
        let layers: HashSet<_> = records.iter().flat_map(Record::places).collect();
        let blobs: HashSet<_> = records.iter().flat_map(Record::blobs).collect();
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

    /// Removes what was not completed, and what files were that are images no more.
    fn sweep(&self, removed: &mut Removed) -> io::Result<()> {
        let lock = self.lock_file()?;
        if !lock::alone(&lock)? {
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
        index::sweep(&archives, |digest| {
            Ok(files::existing(&self.handle, &format!("{IMAGES}/{}", digest.hex()))?.is_some())
        })?;
        staging::sweep(&files::directory(&self.handle, STAGING)?, &self.path.join(STAGING))
    }

    /// Removes a directory of the store.
    pub(super) fn discard(&self, place: impl std::os::fd::AsFd, name: &str) -> Result<(), StoreError> {
        let staging = self.directory(STAGING)?;
        staging::discard(&staging, &self.path.join(STAGING), place, name).map_err(|error| self.failed(error))
    }

    /// What is known of an unpacked layer. What cannot be read was not completed.
    pub(super) fn about(&self, place: Digest) -> Result<Option<super::record::About>, StoreError> {
        let path = format!("{LAYERS}/{}/{ABOUT}", place.hex());
        let bytes = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}
