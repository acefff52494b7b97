//! Layers: each is fetched and unpacked under a lock, so that concurrent pulls do it once.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use carrel_failpoint::Failpoints;

use super::blob::{BlobError, BlobFlow, PullStop, RecordedContent};
use super::budget::ImageBudget;
use super::record::{ImageLayer, LayerRecord};
use super::{ABOUT, BLOBS, ImageStore, LAYERS, PARTIAL, TREE, files};
use crate::archive::ArchiveForm;
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::failpoint::PullFailpointStep;
use crate::lock::FileLock;
use crate::manifest::Descriptor;
use crate::progress::{LayerOutcome, PullProgress};
use crate::source::ImageSource;
use crate::staging::StagingDirectory;
use crate::unpack::{Compression, UnpackedLayer};

/// The name of a blob in the staging directory of its layer.
pub(super) const BLOB: &str = "blob";

/// A layer to fetch, and the context of its pull.
pub(super) struct LayerPull<'a> {
    pub(super) number: usize,
    pub(super) layer: &'a ImageLayer,
    pub(super) compression: Compression,
    pub(super) source: &'a dyn ImageSource,
    pub(super) known: &'a RecordedContent,
    pub(super) budget: &'a ImageBudget,
    pub(super) halt: &'a PullStop<'a>,
    pub(super) progress: &'a dyn PullProgress,
}

/// A layer in a staging directory.
pub(super) struct StagedLayer {
    staged: StagingDirectory,
    tree: OwnedFd,
}

// === impl ImageStore ===

impl ImageStore {
    /// Ensures that a layer is unpacked and its blob is stored.
    pub(super) fn layer(&self, wanted: &LayerPull<'_>) -> Result<LayerOutcome, ImageStoreError> {
        let (layer, failed) = (wanted.layer, |error| self.failed(error));
        let partial = self.directory(PARTIAL)?;
        let lock = |name: &str| match FileLock::take_unless(&partial, name, || wanted.halt.is_set()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(ImageStoreError::Cancelled),
            outcome => outcome.map_err(failed),
        };
        let _one = lock(&of_layer(layer.place))?;
        let unpack = !self.unpacked(layer.place, wanted.known)?;
        let lock = lock(&layer.blob.digest.hex())?;
        if self.has(&layer.blob, wanted.known, !unpack).map_err(failed)? {
            if !unpack {
                return Ok(LayerOutcome::AlreadyPresent);
            }
            let outcome = self.attempt(wanted, None);
            match outcome {
                // Only a blob that no image refers to can be damaged: fetch it again.
                Err(BlobError::DigestMismatch(_) | BlobError::Unpack(_))
                    if !wanted.known.blobs.contains(&layer.blob.digest) =>
                {
                    files::unlink(&self.directory(BLOBS)?, &layer.blob.digest.hex()).map_err(failed)?;
                }
                outcome => return self.ended(wanted, outcome),
            }
        }
        self.take_blob(wanted, lock, unpack)
    }

    /// Fetches a blob and unpacks it at the same time.
    fn take_blob(&self, wanted: &LayerPull<'_>, lock: FileLock, unpack: bool) -> Result<LayerOutcome, ImageStoreError> {
        let resumed = rustix::fs::fstat(&lock.file).map_err(|errno| self.failed(errno.into()))?.st_size > 0;
        let mut outcome = self.attempt(wanted, Some((&lock, unpack)));
        // The partial file of an earlier pull may be the cause.
        let stopped = matches!(outcome, Err(BlobError::Stopped { .. }));
        if resumed && !stopped && outcome.as_ref().is_err_and(BlobError::must_discard_partial) {
            rustix::fs::ftruncate(&lock.file, 0).map_err(|errno| self.failed(errno.into()))?;
            outcome = self.attempt(wanted, Some((&lock, unpack)));
        }
        match &outcome {
            Ok(_) => {
                PullFailpointStep::BlobComplete.begin();
                let blobs = self.directory(BLOBS)?;
                lock.keep(blobs, &wanted.layer.blob.digest.hex()).map_err(|error| self.failed(error))?;
                PullFailpointStep::BlobComplete.end();
            }
            // Discard it: it is useless, or takes up space.
            Err(broken) if broken.must_discard_partial() || broken.full() => drop(lock),
            Err(_) => lock.release_keeping_file(),
        }
        self.ended(wanted, outcome)
    }

    /// Reads a blob once: from the source with a lock, or from the store without.
    fn attempt(
        &self,
        wanted: &LayerPull<'_>,
        fetch: Option<(&FileLock, bool)>,
    ) -> Result<Option<(StagedLayer, UnpackedLayer)>, BlobError> {
        let blob = &wanted.layer.blob;
        let unpack = fetch.is_none_or(|(_, unpack)| unpack);
        // Other layers may wait for the share, so do not block while holding it.
        let share = unpack.then(|| wanted.budget.share(self.unpacker.limits));
        let fresh = if unpack { Some(self.fresh().map_err(BlobError::Store)?) } else { None };
        let limits = share.as_ref().map_or(self.unpacker.limits, |share| share.limits);
        let start = |fresh: &StagedLayer| self.unpacker.within(limits).start(&fresh.tree, wanted.compression);
        let unpacking = fresh.as_ref().map(start).transpose().map_err(BlobError::Unpack)?;
        let mut flow = BlobFlow::new(self, wanted, unpacking);
        match fetch {
            Some((lock, _)) => self.fetch(blob, lock, wanted.source, &mut flow)?,
            None => self.replay_stored(blob, &mut flow)?,
        }
        let unpacked = flow.finish()?;
        if let Some((share, unpacked)) = share.zip(unpacked.as_ref()) {
            share.spend(unpacked);
        }
        Ok(fresh.zip(unpacked))
    }

    /// Moves a complete layer into place.
    fn ended(
        &self,
        wanted: &LayerPull<'_>,
        outcome: Result<Option<(StagedLayer, UnpackedLayer)>, BlobError>,
    ) -> Result<LayerOutcome, ImageStoreError> {
        let layer = wanted.layer;
        if let Some((fresh, unpacked)) = outcome.map_err(|broken| broken.into_error(self, &layer.blob))? {
            let (blob, expected) = (layer.blob.digest, layer.diff_id);
            let same = wanted.compression != Compression::None || expected == blob;
            if unpacked.diff_id != expected || !same {
                if !wanted.known.blobs.contains(&blob) {
                    files::unlink(&self.directory(BLOBS)?, &blob.hex()).map_err(|error| self.failed(error))?;
                }
                return Err(ImageStoreError::DiffId { blob, expected, found: unpacked.diff_id });
            }
            wanted.progress.unpacked(wanted.number, unpacked.bytes);
            self.keep_layer(fresh, &unpacked, layer)?;
        }
        Ok(LayerOutcome::Fetched)
    }

    /// Moves a layer into place that was written here together with its blob, unless it exists.
    pub(super) fn keep_written(
        &self,
        fresh: StagedLayer,
        unpacked: &UnpackedLayer,
        layer: &ImageLayer,
    ) -> Result<(), ImageStoreError> {
        let failed = |error| self.failed(error);
        let (known, blob, beside) = (self.known()?, &layer.blob, fresh.staged.handle());
        let (blobs, name) = (self.directory(BLOBS)?, blob.digest.hex());
        // The existing one may not be synced, unless an image refers to it.
        let there =
            known.blobs.contains(&blob.digest) && files::size(&blobs, &name).map_err(failed)? == Some(blob.size);
        if there {
            files::unlink(beside, BLOB).map_err(failed)?;
        } else {
            rustix::fs::renameat(beside, BLOB, blobs, name).map_err(|errno| self.failed(errno.into()))?;
        }
        let _one = FileLock::take(&self.directory(PARTIAL)?, &of_layer(layer.place)).map_err(failed)?;
        if self.unpacked(layer.place, &known)? { Ok(()) } else { self.keep_layer(fresh, unpacked, layer) }
    }

    /// Whether a layer is unpacked. One from an earlier boot that no image refers to may be incomplete on disk, and is
    /// removed.
    fn unpacked(&self, place: Digest, known: &RecordedContent) -> Result<bool, ImageStoreError> {
        let about = self.about(place)?;
        if about.as_ref().is_some_and(|about| known.layers.contains(&place) || about.of_this_boot()) {
            return Ok(true);
        }
        // It may belong to an image whose record cannot be read.
        if let (Some(_), Some(damaged)) = (about, known.damaged) {
            return Err(self.damaged_image(damaged));
        }
        self.discard(self.directory(LAYERS)?, &place.hex())?;
        Ok(false)
    }

    /// A staging directory to unpack into.
    pub(super) fn fresh(&self) -> io::Result<StagedLayer> {
        let staged = self.staged().map_err(io::Error::other)?;
        let tree = staged.directory(TREE)?;
        Ok(StagedLayer { staged, tree })
    }

    /// Moves a layer into place.
    fn keep_layer(
        &self,
        fresh: StagedLayer,
        unpacked: &UnpackedLayer,
        layer: &ImageLayer,
    ) -> Result<(), ImageStoreError> {
        let write = || -> io::Result<()> {
            let about = serde_json::to_vec(&LayerRecord::new(unpacked, layer.blob.digest))?;
            PullFailpointStep::LayerStaged.begin();
            files::create(fresh.staged.handle(), ABOUT)?.write_all(&about)?;
            PullFailpointStep::LayerStaged.end();
            Ok(())
        };
        write().map_err(|error| self.failed(error))?;
        let layers = self.directory(LAYERS)?;
        PullFailpointStep::LayerKept.begin();
        fresh.staged.keep(layers, &layer.place.hex()).map_err(|error| self.failed(error))?;
        PullFailpointStep::LayerKept.end();
        Ok(())
    }
}

// === impl StagedLayer ===

impl StagedLayer {
    /// The directory to unpack into.
    pub(super) fn tree(&self) -> &OwnedFd {
        &self.tree
    }

    /// Creates a file beside it.
    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        files::create(self.staged.handle(), name)
    }
}

/// The lock file of a layer.
fn of_layer(place: Digest) -> String {
    format!("{}.layer", place.hex())
}

/// A layer, by its blob and its diff ID. Both determine its directory: the diff ID is reported by the unpack process,
/// which a hostile blob might control. So it can damage the result of its own blob, but not another layer. A root file
/// system gets another directory than a layer of the same bytes, because whiteouts are ordinary names in it.
pub(super) fn layer(blob: Descriptor, diff_id: Digest, form: ArchiveForm) -> ImageLayer {
    let form = match form {
        ArchiveForm::Layer => "layer",
        ArchiveForm::Root => "root",
    };
    ImageLayer { diff_id, place: Digest::of(format!("{form} {} {diff_id}", blob.digest).as_bytes()), blob }
}
