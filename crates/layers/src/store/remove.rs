//! Removing: names, images that nobody needs, and then the layers and blobs that no image has.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use super::record::{Layer, Named};
use super::users::Locked;
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
    /// Whether something that nobody needs had to stay, because images are being added or what one has cannot be read:
    /// the next pruning takes it.
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
        let mut removed = Removed::default();
        let Some(Named { name, digest, .. }) = self.named(name_or_digest)? else {
            let digest = self.meant(name_or_digest)?;
            // What it has is found by a pruning if it is not known now.
            removed.left = matches!(self.record(digest), Err(StoreError::Damaged { .. }));
            let loose = self.remove_image(digest, None, &mut removed)?;
            self.collect(&loose.unwrap_or_default(), &mut removed)?;
            return Ok(removed);
        };
        let asked = [name];
        let others = |names: Vec<String>| names.iter().any(|other| !asked.contains(other));
        let loose = match self.all_names()?.remove(&digest).is_some_and(others) {
            true => None,
            false => self.remove_image(digest, Some(&asked), &mut removed)?,
        };
        match loose {
            Some(loose) => drop(self.collect(&loose, &mut removed)?),
            // It has others.
            None => removed.names.extend(self.unname(&asked, digest)?),
        }
        Ok(removed)
    }

    /// Removes what nothing needs: images without a name, or, with `unused`, all that are not in use; layers and blobs
    /// of no image; and what pulls that did not end have left.
    pub fn prune(&self, unused: bool) -> Result<Removed, StoreError> {
        let names = self.all_names()?;
        let mut removed = Removed::default();
        for digest in self.digests()? {
            let asked = names.get(&digest).map_or(&[][..], Vec::as_slice);
            if unused || asked.is_empty() {
                match self.remove_image(digest, Some(asked), &mut removed) {
                    // What it has is found below. One that was named meanwhile stays.
                    Ok(_) | Err(StoreError::InUse { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for (digest, names) in &names {
            removed.names.extend(self.unname_gone(names, *digest)?);
        }
        removed.names.sort();
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

    /// Removes names, as far as they still stand for an image. Which ones those were.
    fn unname(&self, asked: &[String], digest: Digest) -> Result<Vec<String>, StoreError> {
        self.unname_from(&self.lock_names()?, asked, digest)
    }

    /// Removes names of an image that is gone. If it is there, it has come since, and its names stay.
    fn unname_gone(&self, asked: &[String], digest: Digest) -> Result<Vec<String>, StoreError> {
        let names = self.lock_names()?;
        let image = files::existing(&self.handle, &format!("{IMAGES}/{}", digest.hex()));
        match image.map_err(|error| self.failed(error))? {
            Some(_) => Ok(Vec::new()),
            None => self.unname_from(&names, asked, digest),
        }
    }

    fn unname_from(&self, names: &OwnedFd, asked: &[String], digest: Digest) -> Result<Vec<String>, StoreError> {
        let mut gone = Vec::new();
        for name in asked {
            if self.named(name)?.is_some_and(|named| named.digest == digest) {
                files::unlink(names, &place_of(name)?).map_err(|error| self.failed(error))?;
                gone.push(name.clone());
            }
        }
        Ok(gone)
    }

    /// Removes an image that nobody needs, and its names; nothing, if it has a name that was not asked for. Layers and
    /// blobs stay until it is known that no other has them.
    fn remove_image(
        &self,
        digest: Digest,
        asked: Option<&[String]>,
        removed: &mut Removed,
    ) -> Result<Option<Loose>, StoreError> {
        let failed = |error| self.failed(error);
        let in_use = |users| StoreError::InUse { digest, users };
        // Who needs it durably is known at once.
        let users = self.users(digest).map_err(failed)?;
        if !users.is_empty() {
            return Err(in_use(users));
        }
        let held = match self.locked(digest, lock::alone).map_err(failed)? {
            Locked::Held(held) => held,
            Locked::Used => return Err(in_use(Vec::new())),
            // Only its names are left.
            Locked::Gone => {
                removed.names.extend(self.unname_gone(asked.unwrap_or_default(), digest)?);
                return Ok(Some(Loose::default()));
            }
        };
        // From here on nobody can come to need it, and no name can come to stand for it.
        let users = held.users().map_err(failed)?;
        if !users.is_empty() {
            return Err(in_use(users));
        }
        let names = self.all_names()?.remove(&digest).unwrap_or_default();
        if asked.is_some_and(|asked| names.iter().any(|name| !asked.contains(name))) {
            return Ok(None);
        }
        let loose = match self.record(digest) {
            Ok(record) => {
                record.map(|record| Loose { layers: record.places().collect(), blobs: record.blobs().collect() })
            }
            Err(StoreError::Damaged { .. }) => None,
            Err(error) => return Err(error),
        };
        removed.names.extend(self.unname(&names, digest)?);
        self.discard(self.directory(IMAGES)?, &digest.hex())?;
        removed.images.push(digest);
        Ok(Some(loose.unwrap_or_default()))
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
        let claim = self.claim().map_err(|error| self.failed(error))?;
        if !lock::alone(&claim.0).map_err(|error| self.failed(error))? {
            removed.left = true;
            return Ok(false);
        }
        let records = self.records()?;
        if !records.damaged.is_empty() {
            // All of it may be theirs.
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

    /// Removes what was not completed, and what files were that are images no more.
    fn sweep(&self, removed: &mut Removed) -> io::Result<()> {
        let claim = self.claim()?;
        if !lock::alone(&claim.0)? {
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
