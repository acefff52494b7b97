//! Layers: each is fetched, unpacked and given its place by one at a time; whoever comes second finds it there.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use super::blob::{Broken, Flow, Known, Stop};
use super::record::{About, Layer};
use super::{ABOUT, BLOBS, LAYERS, PARTIAL, Store, TREE, files};
use crate::archive::Form;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::failpoint::Phase;
use crate::lock::Lock;
use crate::manifest::Descriptor;
use crate::progress::{Done, Progress};
use crate::source::Source;
use crate::staging::Staged;
use crate::unpack::{Compression, Unpacked, Unpacking};

/// A layer that is wanted, and how.
pub(super) struct Wanted<'a> {
    pub(super) number: usize,
    pub(super) layer: &'a Layer,
    pub(super) compression: Compression,
    pub(super) source: &'a dyn Source,
    pub(super) known: &'a Known,
    pub(super) stop: &'a Stop,
    pub(super) progress: &'a dyn Progress,
}

/// A layer that has no place yet.
pub(super) struct Fresh {
    staged: Staged,
    tree: OwnedFd,
}

// === impl Store ===

impl Store {
    /// Sees that a layer is unpacked and its blob kept.
    pub(super) fn layer(&self, wanted: &Wanted<'_>) -> Result<Done, StoreError> {
        let (layer, failed) = (wanted.layer, |error| self.failed(error));
        let partial = self.directory(PARTIAL)?;
        let _one = self.lock_layer(layer.place)?;
        let unpack = !self.unpacked(layer.place, wanted.known)?;
        let lock = Lock::take(&partial, &layer.blob.digest.hex()).map_err(failed)?;
        if self.has(&layer.blob, wanted.known, !unpack).map_err(failed)? {
            if !unpack {
                return Ok(Done::There);
            }
            let outcome = self.attempt(wanted, None);
            match outcome {
                // Only what no image has can be another than it was: it is fetched like one that is not there.
                Err(Broken::Other(_) | Broken::Unpack(_)) if !wanted.known.blobs.contains(&layer.blob.digest) => {
                    files::unlink(&self.directory(BLOBS)?, &layer.blob.digest.hex()).map_err(failed)?;
                }
                outcome => return self.ended(wanted, outcome),
            }
        }
        self.take_blob(wanted, lock, unpack)
    }

    /// Fetches a blob, and unpacks it on its way.
    fn take_blob(&self, wanted: &Wanted<'_>, lock: Lock, unpack: bool) -> Result<Done, StoreError> {
        let resumed = rustix::fs::fstat(&lock.file).map_err(|errno| self.failed(errno.into()))?.st_size > 0;
        let mut outcome = self.attempt(wanted, Some((&lock, unpack)));
        // What an earlier pull has left may be the reason.
        let stopped = matches!(outcome, Err(Broken::Stopped { .. }));
        if resumed && !stopped && outcome.as_ref().is_err_and(Broken::spoiled) {
            rustix::fs::ftruncate(&lock.file, 0).map_err(|errno| self.failed(errno.into()))?;
            outcome = self.attempt(wanted, Some((&lock, unpack)));
        }
        match &outcome {
            Ok(_) => {
                Phase::BlobComplete.begin();
                let blobs = self.directory(BLOBS)?;
                lock.keep(blobs, &wanted.layer.blob.digest.hex()).map_err(|error| self.failed(error))?;
                Phase::BlobComplete.end();
            }
            // It is removed.
            Err(broken) if broken.spoiled() => drop(lock),
            Err(_) => lock.leave(),
        }
        self.ended(wanted, outcome)
    }

    /// Reads a blob once, from the source or, without a lock, from the store.
    fn attempt(&self, wanted: &Wanted<'_>, fetch: Option<(&Lock, bool)>) -> Result<Option<(Fresh, Unpacked)>, Broken> {
        let blob = &wanted.layer.blob;
        let unpack = fetch.is_none_or(|(_, unpack)| unpack);
        let fresh = if unpack { Some(self.fresh().map_err(Broken::Into)?) } else { None };
        let start = |fresh: &Fresh| self.unpacker.start(&fresh.tree, wanted.compression);
        let unpacking = fresh.as_ref().map(start).transpose().map_err(Broken::Unpack)?;
        let mut flow = Flow::new(wanted.progress, wanted.number, wanted.stop, unpacking);
        match fetch {
            Some((lock, _)) => self.fetch(blob, lock, wanted.source, &mut flow)?,
            None => self.again(blob, &mut flow)?,
        }
        let unpacked = flow.unpacking.take().map(Unpacking::finish).transpose().map_err(Broken::Unpack)?;
        Ok(fresh.zip(unpacked))
    }

    /// Gives a layer its place that has come whole.
    fn ended(
        &self,
        wanted: &Wanted<'_>,
        outcome: Result<Option<(Fresh, Unpacked)>, Broken>,
    ) -> Result<Done, StoreError> {
        let layer = wanted.layer;
        if let Some((fresh, unpacked)) = outcome.map_err(|broken| broken.told(self, &layer.blob))? {
            let (blob, expected) = (layer.blob.digest, layer.diff_id);
            let same = wanted.compression != Compression::None || expected == blob;
            if unpacked.diff_id != expected || !same {
                if !wanted.known.blobs.contains(&blob) {
                    files::unlink(&self.directory(BLOBS)?, &blob.hex()).map_err(|error| self.failed(error))?;
                }
                return Err(StoreError::DiffId { blob, expected, found: unpacked.diff_id });
            }
            wanted.progress.unpacked(wanted.number, unpacked.bytes);
            self.keep_layer(fresh, &unpacked, layer)?;
        }
        Ok(Done::Fetched)
    }

    /// Lets one at a time work on a layer.
    pub(super) fn lock_layer(&self, place: Digest) -> Result<Lock, StoreError> {
        Lock::take(&self.directory(PARTIAL)?, &format!("{}.layer", place.hex())).map_err(|error| self.failed(error))
    }

    /// Whether a layer is unpacked. One that may not have come to the disk, before the machine was started anew, is
    /// removed, unless an image has it.
    pub(super) fn unpacked(&self, place: Digest, known: &Known) -> Result<bool, StoreError> {
        let about = self.about(place)?;
        if about.is_some_and(|about| known.layers.contains(&place) || about.of_this_boot()) {
            return Ok(true);
        }
        self.discard(self.directory(LAYERS)?, &place.hex())?;
        Ok(false)
    }

    /// A directory to unpack into.
    pub(super) fn fresh(&self) -> io::Result<Fresh> {
        let staged = self.staged().map_err(io::Error::other)?;
        let tree = staged.directory(TREE)?;
        Ok(Fresh { staged, tree })
    }

    /// Gives a layer its place.
    pub(super) fn keep_layer(&self, fresh: Fresh, unpacked: &Unpacked, layer: &Layer) -> Result<(), StoreError> {
        let write = || -> io::Result<()> {
            let about = serde_json::to_vec(&About::new(unpacked, layer.blob.digest))?;
            Phase::LayerStaged.begin();
            files::create(fresh.staged.handle(), ABOUT)?.write_all(&about)?;
            Phase::LayerStaged.end();
            Ok(())
        };
        write().map_err(|error| self.failed(error))?;
        let layers = self.directory(LAYERS)?;
        Phase::LayerKept.begin();
        fresh.staged.keep(layers, &layer.place.hex()).map_err(|error| self.failed(error))?;
        Phase::LayerKept.end();
        Ok(())
    }
}

// === impl Fresh ===

impl Fresh {
    /// The directory to unpack into.
    pub(super) fn tree(&self) -> &OwnedFd {
        &self.tree
    }

    /// A file beside it.
    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        files::create(self.staged.handle(), name)
    }

    /// Gives that file a place.
    pub(super) fn keep_file(&self, name: &str, place: &OwnedFd, new: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.staged.handle(), name, place, new)?)
    }
}

/// A layer by its blob and what that unpacks to. Both name its directory: what a blob unpacks to is said by the process
/// that unpacks it, and one that a hostile blob has taken over could say anything. So it can spoil what its own blob
/// unpacks to, and no layer of another. A whole root has another name than a layer of the same bytes: names that take
/// something away are only names there.
pub(super) fn layer(blob: Descriptor, diff_id: Digest, form: Form) -> Layer {
    let form = match form {
        Form::Layer => "layer",
        Form::Root => "root",
    };
    Layer { diff_id, place: Digest::of(format!("{form} {} {diff_id}", blob.digest).as_bytes()), blob }
}
