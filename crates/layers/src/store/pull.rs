//! Pulls an image: its layers in parallel, then its record, then its name.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use carrel_failpoint::Failpoints;
use rustix::fs::{Mode, OFlags};

use super::attribute_layer::{self, MissingEntries, PatchSource};
use super::blob::PullStop;
use super::budget::{self, ImageBudget};
use super::layer::{self, LayerPull};
use super::record::{self, ImageLayer, ImageRecord};
use super::{IMAGES, ImageStore, LAYERS, LOCK, PARTIAL, PATCH, RECORD, StoredImage, TREE, USERS, files};
use crate::archive::ArchiveForm;
use crate::cancellation::CancellationToken;
use crate::config::ParsedConfig;
use crate::digest::Digest;
use crate::error::ImageStoreError;
use crate::failpoint::PullFailpointStep;
use crate::lock::FileLock;
use crate::manifest::{Descriptor, ImageManifest, MAX_CONFIG_SIZE, Manifest, ManifestError};
use crate::platform::Platform;
use crate::progress::{LayerOutcome, PullProgress};
use crate::source::ImageSource;

/// Layers that are fetched and unpacked in parallel.
const PARALLEL_LAYERS: usize = 4;

/// A pull in progress.
struct ImagePull<'a> {
    store: &'a ImageStore,
    manifest: &'a Manifest,
    read: &'a ImageManifest,
    source: &'a dyn ImageSource,
    platform: &'a Platform,
    progress: &'a dyn PullProgress,
    stop: &'a CancellationToken,
    /// Set once the configuration is read.
    layers: OnceCell<Vec<ImageLayer>>,
}

/// An image whose content is complete but not recorded.
pub(super) struct UnrecordedImage<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) read: &'a ImageManifest,
    pub(super) described: ParsedConfig,
    pub(super) layers: Vec<ImageLayer>,
}

// === impl ImageStore ===

impl ImageStore {
    /// Pulls an image and names it. Content that the store has is not fetched.
    pub fn pull(
        &self,
        name: Option<&str>,
        source: &dyn ImageSource,
        platform: &Platform,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, ImageStoreError> {
        self.pull_cancellable(name, source, platform, progress, &CancellationToken::new())
    }

    /// Like [`Self::pull`], with cancellation. What was fetched is kept for the next pull.
    pub fn pull_cancellable(
        &self,
        name: Option<&str>,
        source: &dyn ImageSource,
        platform: &Platform,
        progress: &dyn PullProgress,
        stop: &CancellationToken,
    ) -> Result<StoredImage, ImageStoreError> {
        let outcome = self.pulled(name, source, platform, progress, stop);
        outcome.map_err(|error| match error {
            // Errors that follow from the cancellation are not reported.
            _ if stop.is_cancelled() => ImageStoreError::Cancelled,
            // A full disk is the cause, whichever layer noticed first.
            error if error.is_full() => self.full(),
            error => error,
        })
    }

    fn pulled(
        &self,
        name: Option<&str>,
        source: &dyn ImageSource,
        platform: &Platform,
        progress: &dyn PullProgress,
        stop: &CancellationToken,
    ) -> Result<StoredImage, ImageStoreError> {
        // Reject an invalid name before fetching.
        name.map(super::place_of).transpose()?;
        PullFailpointStep::Manifest.begin();
        let manifest = source.manifest(platform)?;
        let read = manifest.read()?;
        PullFailpointStep::Manifest.end();
        progress.begin(&read.layers);
        let layers = OnceCell::new();
        let pull =
            ImagePull { store: self, manifest: &manifest, read: &read, source, platform, progress, stop, layers };
        let outcome = self.add().and_then(|_adding| pull.named(name));
        if outcome.as_ref().is_err_and(|error| error.is_final() || error.is_full()) {
            let layers = pull.layers.get().map_or(&[][..], Vec::as_slice);
            // Report why it was rejected; what remains goes with the next removal.
            let _collected = self.refuse(layers);
        }
        outcome
    }

    /// Names a recorded image, if it gets a name, and returns it.
    pub(super) fn settle(&self, name: Option<&str>, digest: Digest) -> Result<StoredImage, ImageStoreError> {
        let _held = self.hold(digest)?;
        if let Some(name) = name {
            PullFailpointStep::NameRecorded.begin();
            self.record_name(name, digest)?;
            PullFailpointStep::NameRecorded.end();
        }
        self.get(digest)?.ok_or_else(|| ImageStoreError::Unknown(digest.to_string()))
    }

    /// Syncs the content, records the image, and then names it.
    pub(super) fn finish(
        &self,
        complete: &UnrecordedImage<'_>,
        name: Option<&str>,
    ) -> Result<StoredImage, ImageStoreError> {
        let digest = complete.manifest.digest;
        loop {
            if self.record(digest)?.is_none() {
                self.record_image(complete)?;
            }
            match self.settle(name, digest) {
                // Another process removed it at once. Its content is still there while the shared lock is held.
                Err(ImageStoreError::Unknown(_)) => {}
                outcome => return outcome,
            }
        }
    }

    fn record_image(&self, complete: &UnrecordedImage<'_>) -> Result<(), ImageStoreError> {
        let UnrecordedImage { manifest, read, described, layers } = complete;
        self.write_small_blob(&manifest.bytes)?;
        let shown = record::shown(layers);
        let (sheets, unpacked) = self.patch_sources(&shown)?;
        let staged = self.staged()?;
        let record = |patched| ImageRecord {
            digest: manifest.digest,
            media_type: manifest.media_type.clone(),
            size: manifest.bytes.len() as u64,
            described: read.config.clone(),
            config: described.config.clone(),
            layers: layers.clone(),
            shown: shown.clone(),
            unpacked,
            patched,
            stored: record::now(),
        };
        let write = || -> std::io::Result<()> {
            let patched = attribute_layer::make(&sheets, || staged.directory(PATCH))?;
            files::create(staged.handle(), RECORD)?.write_all(&serde_json::to_vec(&record(patched))?)?;
            files::create(staged.handle(), LOCK)?;
            files::directory(staged.handle(), USERS)?;
            Ok(rustix::fs::syncfs(&self.handle)?)
        };
        write().map_err(|error| {
            if attribute_layer::is_too_much(&error) {
                ImageStoreError::TooManyMissingEntries
            } else {
                self.failed(error)
            }
        })?;
        let images = self.directory(IMAGES)?;
        PullFailpointStep::ImageRecorded.begin();
        staged.keep(&images, &manifest.digest.hex()).map_err(|error| self.failed(error))?;
        rustix::fs::fsync(&images).map_err(|errno| self.failed(errno.into()))?;
        PullFailpointStep::ImageRecorded.end();
        Ok(())
    }

    /// The visible layers and the sum of their file sizes, within the limits of an image.
    fn patch_sources(&self, shown: &[Digest]) -> Result<(Vec<PatchSource>, u64), ImageStoreError> {
        let most = budget::whole(self.unpacker.limits).bytes;
        let (mut sheets, mut unpacked, mut spent, mut made) = (Vec::new(), 0_u64, 0_u64, MissingEntries::default());
        for place in shown {
            let about = self.about(*place)?.ok_or_else(|| ImageStoreError::Unknown(format!("layer {place}")))?;
            unpacked = unpacked.saturating_add(about.bytes);
            spent = spent.saturating_add(about.spent());
            if spent > most {
                return Err(ImageStoreError::TooLarge(most));
            }
            let sheet = PatchSource { tree: self.tree(*place)?, made: about.made().collect() };
            if !made.add(&sheet) {
                return Err(ImageStoreError::TooManyMissingEntries);
            }
            sheets.push(sheet);
        }
        Ok((sheets, unpacked))
    }

    /// Opens the tree of a layer.
    fn tree(&self, place: Digest) -> Result<OwnedFd, ImageStoreError> {
        let path = format!("{LAYERS}/{}/{TREE}", place.hex());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.handle, path, flags, Mode::empty()).map_err(|errno| self.failed(errno.into()))
    }
}

// === impl ImagePull ===

impl ImagePull<'_> {
    fn named(&self, name: Option<&str>) -> Result<StoredImage, ImageStoreError> {
        loop {
            if self.store.record(self.manifest.digest)?.is_some() {
                // The process that recorded it may have been killed before naming it.
                FileLock::sweep(&self.store.directory(PARTIAL)?, &self.lock_name())
                    .map_err(|error| self.store.failed(error))?;
                self.report_all_present();
            } else {
                self.fetch()?;
            }
            match self.store.settle(name, self.manifest.digest) {
                // Another process removed it at once.
                Err(ImageStoreError::Unknown(_)) => {}
                outcome => return outcome,
            }
        }
    }

    /// The lock file of a pull of this image.
    fn lock_name(&self) -> String {
        format!("{}.image", self.manifest.digest.hex())
    }

    fn report_all_present(&self) {
        (0..self.read.layers.len()).for_each(|number| self.progress.layer_done(number, LayerOutcome::AlreadyPresent));
    }

    /// Fetches an image under its lock.
    fn fetch(&self) -> Result<(), ImageStoreError> {
        let Self { store, manifest, read, .. } = self;
        self.check_cancelled()?;
        let lock = FileLock::take_unless(&store.directory(PARTIAL)?, &self.lock_name(), || self.stop.is_cancelled());
        let _one = lock.map_err(|error| store.failed(error))?;
        if store.record(manifest.digest)?.is_some() {
            self.report_all_present();
            return Ok(());
        }
        let packed = read.layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.size));
        let most = budget::whole(store.unpacker.limits).bytes;
        if packed > most {
            return Err(ImageStoreError::TooLarge(most));
        }
        let bytes = store.read_or_fetch(&read.config, MAX_CONFIG_SIZE, self.source)?;
        let described = ParsedConfig::read(&bytes)?;
        if let Some(there) = described.config.platform.as_ref().filter(|there| !self.platform.accepts(there)) {
            self.progress.message(&format!("the image is for {there}, not for {}", self.platform));
        }
        let (layers, diff_ids) = (read.layers.len(), described.layers.len());
        if layers != diff_ids {
            return Err(ManifestError::Layers { layers, diff_ids }.into());
        }
        let layer = |(diff_id, blob): (&Digest, &Descriptor)| layer::layer(blob.clone(), *diff_id, ArchiveForm::Layer);
        let layers = self.layers.get_or_init(|| described.layers.iter().zip(&read.layers).map(layer).collect()).clone();
        self.fetch_layers(&layers)?;
        self.check_cancelled()?;
        store.write_small_blob(&bytes)?;
        store.record_image(&UnrecordedImage { manifest, read, described, layers })
    }

    fn check_cancelled(&self) -> Result<(), ImageStoreError> {
        if self.stop.is_cancelled() { Err(ImageStoreError::Cancelled) } else { Ok(()) }
    }

    /// Fetches all layers in parallel. When one fails, the others are stopped.
    fn fetch_layers(&self, layers: &[ImageLayer]) -> Result<(), ImageStoreError> {
        let Self { store, source, progress, .. } = *self;
        let known = store.known()?;
        let mut observed = HashSet::new();
        let each = layers.iter().enumerate();
        // A layer that occurs twice is fetched once.
        let (first, again): (Vec<_>, Vec<_>) =
            each.partition(|(_, layer)| observed.insert((layer.place, layer.blob.digest)));
        let (next, halt, failure) = (AtomicUsize::new(0), PullStop::new(self.stop), Mutex::new(None));
        let budget = ImageBudget::new(store.unpacker.limits);
        let work = || -> Result<(), ImageStoreError> {
            while let Some((number, layer)) = first.get(next.fetch_add(1, Ordering::Relaxed)) {
                let compression = layer.blob.compression()?;
                let (number, budget, halt, known) = (*number, &budget, &halt, &known);
                let wanted = LayerPull { number, layer, compression, source, known, budget, halt, progress };
                progress.layer_done(number, store.layer(&wanted)?);
            }
            Ok(())
        };
        let guarded = || {
            if let Err(error) = work() {
                // Errors of the stopped ones come later and are not reported.
                if let Ok(mut failure) = failure.lock() {
                    failure.get_or_insert_with(|| {
                        halt.fail(error.is_final() || error.is_full());
                        error
                    });
                }
                next.store(usize::MAX / 2, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..first.len().min(PARALLEL_LAYERS) {
                scope.spawn(guarded);
            }
            guarded();
        });
        if let Some(error) = failure.into_inner().unwrap_or_default() {
            return Err(error);
        }
        again.iter().for_each(|(number, _)| progress.layer_done(*number, LayerOutcome::AlreadyPresent));
        Ok(())
    }
}
