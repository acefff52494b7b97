//! Layers: each is fetched, unpacked and given its place by one at a time; whoever comes second finds it there.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use super::blob::{Broken, Flow, Halt, Known};
use super::budget::Budget;
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
use crate::unpack::{Compression, Unpacked};

/// Beside the tree of a layer, while it is put together here: its blob.
pub(super) const BLOB: &str = "blob";

/// A layer that is wanted, and how.
pub(super) struct Wanted<'a> {
    pub(super) number: usize,
    pub(super) layer: &'a Layer,
    pub(super) compression: Compression,
    pub(super) source: &'a dyn Source,
    pub(super) known: &'a Known,
    pub(super) budget: &'a Budget,
    pub(super) halt: &'a Halt<'a>,
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
        let lock = |name: &str| match Lock::take_unless(&partial, name, || wanted.halt.is_set()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(StoreError::Stopped),
            outcome => outcome.map_err(failed),
        };
        let _one = lock(&of_layer(layer.place))?;
        let unpack = !self.unpacked(layer.place, wanted.known)?;
        let lock = lock(&layer.blob.digest.hex())?;
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
            // It is removed: it is of no use, or in the way.
            Err(broken) if broken.spoiled() || broken.full() => drop(lock),
            Err(_) => lock.leave(),
        }
        self.ended(wanted, outcome)
    }

    /// Reads a blob once, from the source or, without a lock, from the store.
    fn attempt(&self, wanted: &Wanted<'_>, fetch: Option<(&Lock, bool)>) -> Result<Option<(Fresh, Unpacked)>, Broken> {
        let blob = &wanted.layer.blob;
        let unpack = fetch.is_none_or(|(_, unpack)| unpack);
        // Others may have to wait for it, so nothing is waited for while it is had.
        let share = unpack.then(|| wanted.budget.share(self.unpacker.limits));
        let fresh = if unpack { Some(self.fresh().map_err(Broken::Into)?) } else { None };
        let limits = share.as_ref().map_or(self.unpacker.limits, |share| share.limits);
        let start = |fresh: &Fresh| self.unpacker.within(limits).start(&fresh.tree, wanted.compression);
        let unpacking = fresh.as_ref().map(start).transpose().map_err(Broken::Unpack)?;
        let mut flow = Flow::new(self, wanted, unpacking);
        match fetch {
            Some((lock, _)) => self.fetch(blob, lock, wanted.source, &mut flow)?,
            None => self.again(blob, &mut flow)?,
        }
        let unpacked = flow.finish()?;
        if let Some((share, unpacked)) = share.zip(unpacked.as_ref()) {
            share.spend(unpacked);
        }
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

    /// Gives a layer its place that was put together here with its blob beside it, where there is none already.
    pub(super) fn keep_written(&self, fresh: Fresh, unpacked: &Unpacked, layer: &Layer) -> Result<(), StoreError> {
        let failed = |error| self.failed(error);
        let (known, blob, beside) = (self.known()?, &layer.blob, fresh.staged.handle());
        let (blobs, name) = (self.directory(BLOBS)?, blob.digest.hex());
        // What an image has is on the disk, and this one may not be.
        let there =
            known.blobs.contains(&blob.digest) && files::size(&blobs, &name).map_err(failed)? == Some(blob.size);
        if there {
            files::unlink(beside, BLOB).map_err(failed)?;
        } else {
            rustix::fs::renameat(beside, BLOB, blobs, name).map_err(|errno| self.failed(errno.into()))?;
        }
        let _one = Lock::take(&self.directory(PARTIAL)?, &of_layer(layer.place)).map_err(failed)?;
        if self.unpacked(layer.place, &known)? { Ok(()) } else { self.keep_layer(fresh, unpacked, layer) }
    }

    /// Whether a layer is unpacked. One that may not have come to the disk, before the machine was started anew, is
    /// removed, unless an image has it.
    fn unpacked(&self, place: Digest, known: &Known) -> Result<bool, StoreError> {
        let about = self.about(place)?;
        if about.as_ref().is_some_and(|about| known.layers.contains(&place) || about.of_this_boot()) {
            return Ok(true);
        }
        // It may be the layer of an image of which nobody can say what it has.
        if let (Some(_), Some(damaged)) = (about, known.damaged) {
            return Err(self.damaged_image(damaged));
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
    fn keep_layer(&self, fresh: Fresh, unpacked: &Unpacked, layer: &Layer) -> Result<(), StoreError> {
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
}

/// What whoever works on a layer has locked.
fn of_layer(place: Digest) -> String {
    format!("{}.layer", place.hex())
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
